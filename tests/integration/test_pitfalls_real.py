"""Traps that real parts set: ptp4l's sockets and counters, real processes, a writer that dies, a time namespace."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab import eventually
from published import publish

from timesyncd.bound import ClockStatus, Reason
from timesyncd.client import Clock
from timesyncd.drivers.kernel.kernel import Kernel, KernelOptions
from timesyncd.drivers.ptp4l._management import ManagementId, PortDataSet, PortStats
from timesyncd.drivers.ptp4l._socket import ManagementClient, new_requester
from timesyncd.drivers.ptp4l.ptp4l import Ptp4l, Ptp4lOptions
from timesyncd.errors import Unreachable
from timesyncd.findings.node import kernel_conditions
from timesyncd.sample import KernelSample
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.ptp4l import DOMAIN, major_version

pytestmark = pytest.mark.integration

SUPPORT = Path(__file__).parents[1] / "support"
SYNC, ANNOUNCE = 0, 11

#: A writer that is killed in the midst of its second write: the fifth word of its payload never comes.
DYING_WRITER = """
import os, signal, sys
from pathlib import Path
from published import EPOCH, good_bound
from timesyncd.ipc import clock_segment as segment, seqlock

class Payload(list):
    # Read once for the checksum, and then to be stored.
    times_read = 0

    def __iter__(self):
        self.times_read += 1
        for index, word in enumerate(list(self[:])):
            if index == 5 and self.times_read == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield word

writer = seqlock.SegmentWriter(Path(sys.argv[1]) / segment.NAME, segment.MAGIC, segment.LAYOUT_VERSION, segment.WORD_COUNT)
bound = good_bound(holdover_after_ns=1_500_000_000, void_after_ns=3_000_000_000)
writer.write(segment.encode(bound, EPOCH))
sys.stdout.write("written\\n")
sys.stdout.flush()
sys.stdin.readline()
writer.write(Payload(segment.encode(bound, EPOCH)))
"""

#: In a time namespace whose CLOCK_BOOTTIME is ten minutes ahead of CLOCK_MONOTONIC, as after a suspend of as long.
AFTER_SUSPEND = """
import json, sys, time
from pathlib import Path
from published import good_bound, publish
from timesyncd.client import Clock

folder = Path(sys.argv[1])
outside = Clock(folder).gm_now(), Clock(folder).reason()
publish(folder, as_of_ns=good_bound().as_of_ns - 600 * 10**9)
clock = Clock(folder)
inside = clock.gm_now()
asleep_s = round(time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC))
print(json.dumps([asleep_s, outside[0].status, outside[1], inside.status, inside.latest - inside.earliest]))
"""


def python(script: str, *arguments: str | Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, *host.dying_with_parent([sys.executable, "-c", script, *map(str, arguments)])],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def stand_in(folder: Path, name: str, *words: str) -> Iterator[int]:
    """A shell that waits, under another program's name and with its command line; its pid."""
    path = folder / name
    shutil.copy(host.find("sh"), path)
    child = subprocess.Popen(
        host.dying_with_parent([str(path), *words]), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: Path(f"/proc/{child.pid}/comm").read_text().strip(), name[:15].__eq__)
        yield child.pid
    finally:
        child.kill()
        child.communicate()


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path: a UNIX socket's address holds 107 octets."""
    with tempfile.TemporaryDirectory(prefix="ts-") as made:
        yield Path(made)


def pmc(bed: PtpBed, folder: Path, question: str) -> str:
    server = bed.nodes["a"].uds_address
    command = [host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", server, "-i", str(folder / "pmc"), question]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def test_pitfall_13_wrong_domain_and_missing_read_only_socket_are_errors(ptp_pair: PtpBed, folder: Path) -> None:
    """A real ptp4l ignores another domain, and 3.1.1 has no read-only socket: each error names what to check."""
    server = Path(ptp_pair.nodes["a"].uds_address)
    read_only = server.with_name(f"{server.name}.ro")
    wrong_domain = await refusal(Ptp4lOptions(uds_address=server, domain=DOMAIN + 1), folder)

    assert wrong_domain.endswith(
        f"set the source's domain and transport_specific to ptp4l's; they are {DOMAIN + 1} and 0 here"
    )
    if major_version() < 4:
        missing = await refusal(Ptp4lOptions(uds_address=read_only, domain=DOMAIN), folder)
        assert missing == f"{read_only}: no such socket: is ptp4l running?"


async def refusal(options: Ptp4lOptions, folder: Path) -> str:
    driver = Ptp4l("a", options, folder)
    with pytest.raises(Unreachable) as reported:
        await driver.open()
    await driver.close()
    return str(reported.value)


async def test_pitfall_14_counters_are_little_endian_and_all_else_is_big(ptp_pair: PtpBed, folder: Path) -> None:
    """
    Between two readings by linuxptp's own client lie ours, of the same counters; a number read the wrong way round is
    2^56 and more.
    """
    questions = ManagementClient(folder / "own", Path(ptp_pair.nodes["a"].uds_address), new_requester(DOMAIN, 0))
    for message in ("rx_Announce", "rx_Sync"):  # which of the two comes first is chance
        eventually(lambda: counted(pmc(ptp_pair, folder, "GET PORT_STATS_NP"))[message], bool)  # noqa: B023
    before = counted(pmc(ptp_pair, folder, "GET PORT_STATS_NP"))
    stats, port = await questions.query([(ManagementId.PORT_STATS_NP, 1), (ManagementId.PORT_DATA_SET, 1)])
    after = counted(pmc(ptp_pair, folder, "GET PORT_STATS_NP"))
    questions.close()

    assert isinstance(stats, PortStats) and isinstance(port, PortDataSet)
    assert 0 < before["rx_Sync"] <= stats.received[SYNC] <= after["rx_Sync"]
    assert 0 < before["rx_Announce"] <= stats.received[ANNOUNCE] <= after["rx_Announce"]
    assert (port.port, port.log_sync_interval, port.log_min_delay_req_interval) == (1, -3, -3)


def counted(shown: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"((?:rx|tx)_\w+)\s+(\d+)", shown)}


async def test_pitfall_17_two_disciplines_on_one_clock_are_reported(folder: Path) -> None:
    """
    A phc2sys that steers CLOCK_REALTIME and a systemd-timesyncd, found among the real processes, are a finding that
    names both.
    """
    with stand_in(folder, "systemd-timesyncd"), stand_in(folder, "phc2sys", "-s", "eth0", "-w"):
        both = await kernel_word(folder)
    neither = await kernel_word(folder)
    evidence = kernel_conditions(both, None, time.time_ns())["two-disciplines"]

    assert evidence is not None and "phc2sys" in evidence and "systemd-timesyncd" in evidence
    assert not {"phc2sys", "systemd-timesyncd"} <= set(neither.disciplines)


async def kernel_word(folder: Path) -> KernelSample:
    driver = Kernel("kernel", KernelOptions(), folder)
    await driver.open()
    (sample,) = await driver.poll()
    await driver.close()
    assert isinstance(sample, KernelSample)
    return sample


def test_pitfall_20_a_writer_that_died_half_way_stops_no_reader(tmp_path: Path) -> None:
    """A writer killed during a write leaves an odd generation: a reader continues with its cached state, which ages; a new reader gets the reason."""
    writer = python(DYING_WRITER, tmp_path)
    assert writer.stdout is not None and writer.stdout.readline() == "written\n"
    clock = Clock(tmp_path)
    first, snapshot = clock.gm_now().status, clock.snapshot()
    writer.communicate("die\n")
    cached, later = clock.gm_now().status, Clock(tmp_path)
    aged = eventually(lambda: clock.gm_now().status, ClockStatus.HOLDOVER.__eq__)
    expired = eventually(lambda: clock.gm_now(), lambda now: now.status is ClockStatus.UNKNOWN)

    assert writer.returncode == -signal.SIGKILL
    assert (first, cached, aged) == (ClockStatus.SYNCHRONIZED, ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER)
    assert clock.snapshot() == snapshot
    assert (expired.earliest, expired.latest) == (None, None)
    assert (later.gm_now().status, later.reason()) == (ClockStatus.UNKNOWN, Reason.TORN_SEGMENT.text)


def test_what_a_suspended_machine_slept_is_age(tmp_path: Path) -> None:
    """
    Where CLOCK_BOOTTIME is ten minutes ahead of CLOCK_MONOTONIC a bound of before is ten minutes old; one of another
    time namespace is none.
    """
    publish(tmp_path)
    before = (host.find("unshare"), "--time", "--boottime", "600", "--fork")
    child = python(AFTER_SUSPEND, tmp_path, before=before)
    asleep_s, outside, why, inside, width_ns = json.loads(child.communicate()[0])
    slept_s = round(time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC))

    assert asleep_s - slept_s == 600
    assert (outside, why) == (ClockStatus.UNKNOWN, Reason.OTHER_TIME_NAMESPACE.text)
    assert inside == ClockStatus.HOLDOVER
    assert width_ns >= 2 * (5_000 + 600 * 50_100)


async def test_the_kernel_s_own_word_on_leap_seconds_and_tai(folder: Path) -> None:
    """
    What this machine's kernel states of both is judged: TAI - UTC against CLOCK_TAI, which nothing here reads for a
    bound.
    """
    sample = await kernel_word(folder)
    tai_s = round(time.clock_gettime(time.CLOCK_TAI) - time.clock_gettime(time.CLOCK_REALTIME))

    assert kernel_conditions(sample, tai_s, time.time_ns())["tai-offset"] is None
    assert kernel_conditions(sample, tai_s + 1, time.time_ns())["tai-offset"] is not None
    assert (kernel_conditions(sample, None, time.time_ns())["kernel-leap"] is None) == (sample.leap == "none")
