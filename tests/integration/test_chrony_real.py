"""The chrony driver against a real chronyd, which follows another one; neither may touch the machine's clock (`-x`)."""

from __future__ import annotations

import asyncio
import csv
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from timesyncd.drivers.chrony._protocol import Command, SourceData, SourceStats, Tracking
from timesyncd.drivers.chrony.chrony import Address, Chrony, ChronyClient, ChronyOptions
from timesyncd.errors import Unreachable
from timesyncd.sample import NoSample, Reading, UtcSample
from timesyncd.simulation.bed.broker import free_port
from timesyncd.simulation.bed.host import dying_with_parent

pytestmark = pytest.mark.integration

#: The client's `offset` for its server: what it measures is shifted by so much, so it takes its clock for so much behind.
SHIFT_S = 0.002

#: The last digit of chronyc's times.
PRINTED_S = 1e-9

#: A report of chronyc: rows of cells.
Table = list[list[str]]


def find(tool: str) -> str:
    path = shutil.which(tool, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
    assert path is not None, f"{tool} is not installed: Debian package chrony"
    return path


@dataclass
class Chronyd:
    """A chronyd that only watches, in a folder of its own; `lines` are its configuration."""

    folder: Path
    lines: list[str]
    command_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o770)
        own = [
            f"cmdport {self.command_port}",
            "bindcmdaddress 127.0.0.1",
            f"bindcmdaddress {self.unix_address}",
            f"pidfile {self.folder / 'pid'}",
        ]
        (self.folder / "chrony.conf").write_text("\n".join([*own, *self.lines, ""]))

    @property
    def unix_address(self) -> Path:
        return self.folder / "chronyd.sock"

    @property
    def udp_address(self) -> tuple[str, int]:
        return "127.0.0.1", self.command_port

    def start(self) -> None:
        self.unix_address.unlink(missing_ok=True)  # a killed one leaves it
        command = [find("chronyd"), "-x", "-d", "-u", "root", "-f", str(self.folder / "chrony.conf")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(dying_with_parent(command), stdout=log, stderr=log)
        wait_until(self.unix_address.exists)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def ask(self, *question: str) -> Table:
        """What chrony's own client prints, as rows of a table."""
        command = [find("chronyc"), *stays_root(), "-c", "-n", "-h", str(self.unix_address), *question]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return list(csv.reader(done.stdout.splitlines()))


def stays_root() -> list[str]:
    """chronyc 4.8 and newer changes to chronyd's user, who may not enter these folders."""
    printed = subprocess.run([find("chronyc"), "-v"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", printed)
    assert found is not None, printed
    return ["-u", "root"] if (int(found[1]), int(found[2])) >= (4, 8) else []


@dataclass
class ChronyPair:
    server: Chronyd
    client: Chronyd


def wait_until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"{holds} did not come true"
        time.sleep(0.05)


@pytest.fixture
def pair() -> Iterator[ChronyPair]:
    """A server that passes its own clock for UTC, and a client that has it and a source which does not answer."""
    port = free_port()
    serves = [f"port {port}", "bindaddress 127.0.0.1", "local stratum 8", "allow 127.0.0.1"]
    follows = [
        "port 0",
        f"server 127.0.0.1 port {port} iburst minpoll -4 maxpoll -3 offset {SHIFT_S}",
        f"server 127.0.0.2 port {free_port()}",
    ]
    with tempfile.TemporaryDirectory(prefix="chrony-") as short:  # a UNIX socket's path has 107 characters at most
        both = ChronyPair(Chronyd(Path(short) / "server", serves), Chronyd(Path(short) / "client", follows))
        try:
            both.server.start()
            both.client.start()
            yield both
        finally:
            both.client.end(signal.SIGKILL)
            both.server.end(signal.SIGKILL)


def settled(chronyd: Chronyd) -> None:
    """Wait for a frequency that is known well: without, chronyd itself knows little."""
    wait_until(lambda: 0 < float(chronyd.ask("tracking")[0][9]) < 2, 30)


def driver_of(address: str, folder: Path) -> Chrony:
    return Chrony("utc", ChronyOptions(address=address), folder)


def written(chronyd: Chronyd, transport: str) -> str:
    return str(chronyd.unix_address) if transport == "unix" else f"127.0.0.1:{chronyd.command_port}"


async def polled(driver: Chrony) -> Reading:
    (reading,) = await driver.poll()
    return reading


async def sample_of(driver: Chrony, within_s: float = 60.0) -> UtcSample:
    """The first sample."""
    deadline = time.monotonic() + within_s
    while True:
        reading = await polled(driver)
        if isinstance(reading, UtcSample):
            return reading
        assert time.monotonic() < deadline, reading
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("transport", ["udp", "unix"])
async def test_both_transports_give_the_clock_as_it_is(pair: ChronyPair, transport: str, tmp_path: Path) -> None:
    """
    The client takes its clock for 2 ms behind, and the offset is negative; nothing is left behind in chronyd's folder.
    """
    settled(pair.client)
    driver = driver_of(written(pair.client, transport), tmp_path)
    await driver.open()
    taken = await sample_of(driver)
    await driver.close()

    assert (taken.reference, taken.stratum, taken.leap) == ("127.0.0.1", 9, "none")
    assert abs(taken.offset_ns + SHIFT_S * 1e9) < taken.error_ns
    assert 0 < taken.error_ns < 1_000_000
    assert [(source.name, source.state) for source in taken.ntp_sources] == [
        ("127.0.0.1", "selected"),
        ("127.0.0.2", "nonselectable"),
    ]
    assert taken.ntp_sources[1].offset_ns is None
    assert sorted(file.name for file in pair.client.folder.iterdir()) == ["chrony.conf", "chronyd.sock", "log", "pid"]


def shown(answer: Tracking) -> list[str]:
    """As `chronyc -c -n tracking` prints it."""
    _, seconds, nanoseconds = answer.reference_time
    leap = {
        "none": "Normal",
        "insert": "Insert second",
        "delete": "Delete second",
        "unsynchronised": "Not synchronised",
    }
    return [
        f"{answer.reference_id:08X}", answer.reference, str(answer.stratum), f"{seconds}.{nanoseconds:09d}",
        f"{answer.current_correction_s:.9f}", f"{answer.last_offset_s:.9f}", f"{answer.rms_offset_s:.9f}",
        f"{answer.frequency_ppm:.3f}", f"{answer.residual_frequency_ppm:.3f}", f"{answer.skew_ppm:.3f}",
        f"{answer.root_delay_s:.9f}", f"{answer.root_dispersion_s:.9f}", f"{answer.update_interval_s:.1f}", leap[answer.leap],
    ]  # fmt: skip


def shown_source(answer: SourceData) -> list[str]:
    """As `chronyc -c -n sources` prints it."""
    state = dict(zip(("selected", "nonselectable", "unselected", "selectable"), "*?-+", strict=True))[answer.state]
    since = 0xFFFFFFFF if answer.since_sample_s is None else answer.since_sample_s
    return [
        "^", state, answer.name, str(answer.stratum), str(answer.poll), f"{answer.reachability:o}", str(since),
        f"{answer.adjusted_s:.9f}", f"{answer.measured_s:.9f}", f"{answer.error_s:.9f}",
    ]  # fmt: skip


def shown_stats(answer: SourceStats) -> list[str]:
    """As `chronyc -c -n sourcestats` prints it."""
    return [
        answer.name, str(answer.samples), str(answer.runs), str(answer.span_s), f"{answer.residual_frequency_ppm:.3f}",
        f"{answer.skew_ppm:.3f}", f"{answer.offset_s:.9f}", f"{answer.deviation_s:.9f}",
    ]  # fmt: skip


async def everything(address: Address) -> tuple[list[str], Table, Table]:
    conversation = ChronyClient()
    await conversation.open(address, "utc")
    try:
        tracking = await conversation.request(Tracking, Command.TRACKING)
        data = [await conversation.request(SourceData, Command.SOURCE_DATA, index) for index in (0, 1)]
        stats = [await conversation.request(SourceStats, Command.SOURCE_STATS, index) for index in (0, 1)]
    finally:
        conversation.close()
    return shown(tracking), [shown_source(each) for each in data], [shown_stats(each) for each in stats]


@pytest.mark.parametrize("transport", ["udp", "unix"])
async def test_every_field_is_what_chronyc_reads(pair: ChronyPair, transport: str) -> None:
    """
    The server is gone, so that nothing happens in chronyd for a second at a time. What it computes again for each question
    (correction, dispersion, age of the samples, estimated offset) moves one way, so ours is between what chronyc reads before and after.
    """
    settled(pair.client)
    pair.server.end()
    address = pair.client.unix_address if transport == "unix" else pair.client.udp_address
    deadline = time.monotonic() + 60
    while True:
        before = reports(pair.client)
        tracking, sources, stats = await everything(address)
        after = reports(pair.client)
        if [fixed(report) for report in before] == [fixed(report) for report in after]:
            break
        assert time.monotonic() < deadline, (before, after)
    ours = [Report([tracking], MOVING[0]), Report(sources, MOVING[1]), Report(stats, MOVING[2])]

    assert [fixed(report) for report in ours] == [fixed(report) for report in before]
    for first, report, last in zip(before, ours, after, strict=True):
        for low, value, high in zip(moved(first), moved(report), moved(last), strict=True):
            assert min(low, high) - PRINTED_S <= value <= max(low, high) + PRINTED_S, (first, report, last)


#: The columns that move without an event, of tracking, sources and sourcestats.
MOVING = ({4, 11}, {6, 7}, {6})


class Report(NamedTuple):
    rows: Table
    moving: set[int]


def reports(chronyd: Chronyd) -> list[Report]:
    names = ("tracking", "sources", "sourcestats")
    return [Report(chronyd.ask(name), moving) for name, moving in zip(names, MOVING, strict=True)]


def fixed(report: Report) -> Table:
    return [[cell for index, cell in enumerate(row) if index not in report.moving] for row in report.rows]


def moved(report: Report) -> list[float]:
    return [float(cell) for row in report.rows for index, cell in enumerate(row) if index in report.moving]


async def test_the_truth_is_inside_while_the_server_goes_another_way(pair: ChronyPair, tmp_path: Path) -> None:
    """
    The server's own clock is sent 50 ppm ahead of ours, by its own command. How far it is, it states itself: that is the truth, which each
    sample must hold, also two seconds later. chronyd may not steer (-x), so the clock goes on to run 50 ppm too fast or slow.
    """
    settled(pair.client)
    pair.server.ask("dfreq", "50")
    await asyncio.sleep(5)
    settled(pair.client)
    driver = driver_of(written(pair.client, "unix"), tmp_path)
    await driver.open()
    before = true_offset_ns(pair.server)
    taken = await sample_of(driver)
    after = true_offset_ns(pair.server)
    await asyncio.sleep(2)
    later = true_offset_ns(pair.server)
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - taken.as_of_ns / 1e9
    await driver.close()

    assert taken.frequency_ppb == pytest.approx(-50_000, abs=5_000)
    assert min(before, after) - taken.error_ns <= taken.offset_ns <= max(before, after) + taken.error_ns
    assert abs(later - after) > 2 * taken.error_ns
    assert abs(later - taken.offset_ns) <= taken.error_ns + taken.growth_ppb * age_s


def true_offset_ns(server: Chronyd) -> float:
    """Local minus what the server serves, as the client measures it: both have one clock, and the server states what it adds to it."""
    return -(float(server.ask("tracking")[0][4]) + SHIFT_S) * 1e9


async def test_the_sign_of_a_source_s_offset(pair: ChronyPair, tmp_path: Path) -> None:
    """The server steps 50 ms back, so our clock is ahead of it: positive, as long as chronyd has not taken it in."""
    driver = driver_of(written(pair.client, "udp"), tmp_path)
    await driver.open()
    for _ in range(20):
        settled(pair.client)
        offset_ns, stepped_ns = await after_a_step(driver, pair.server)
        if offset_ns == pytest.approx(stepped_ns, rel=0.05):
            break  # else a packet of NTP waited for the processor, and half of its delay is in the offset
    await driver.close()

    assert offset_ns == pytest.approx(stepped_ns, rel=0.05)


async def after_a_step(driver: Chrony, server: Chronyd) -> tuple[int, float]:
    """The largest offset that the driver reads within two seconds after the server stepped 50 ms back, and the true one."""
    before = true_offset_ns(server)
    server.ask("doffset", "0.05")
    stepped_ns = true_offset_ns(server) - before
    offsets_ns = [0]
    for _ in range(100):
        reading = await polled(driver)
        if isinstance(reading, UtcSample):
            offsets_ns.append(reading.ntp_sources[0].offset_ns or 0)
        await asyncio.sleep(0.02)
    return max(offsets_ns, key=abs), stepped_ns


#: chronyd's sock_sample: time (two longs), offset in s, pulse, leap, padding, and "SOCK".
SOCK_SAMPLE = struct.Struct("qqdiiii")


@pytest.mark.parametrize("refid", ["GPS", "PHC0"])
async def test_a_reference_clock_counts_where_it_is_declared(refid: str, tmp_path: Path) -> None:
    """
    A real refclock, of which chronyd reports its mode and reference id: undeclared it bounds nothing, declared it does,
    and one that is named like a PHC never does.
    """
    with tempfile.TemporaryDirectory(prefix="chrony-") as short:
        feed = Path(short) / "feed"
        chronyd = Chronyd(Path(short) / "d", ["port 0", f"refclock SOCK {feed} refid {refid} poll 0 precision 1e-6"])
        chronyd.start()
        gps = {"GPS": {"gps": True, "error_ns": 5_000}}
        address = written(chronyd, "udp")
        declared = Chrony("utc", ChronyOptions.model_validate({"address": address, "refclocks": gps}), tmp_path)
        try:
            await asyncio.gather(declared.open(), (undeclared := driver_of(address, tmp_path)).open())
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
                deadline = time.monotonic() + 60
                while not isinstance(counted := await polled(declared), UtcSample):
                    assert time.monotonic() < deadline, counted
                    seconds, ns = divmod(time.time_ns(), 1_000_000_000)
                    receiver.sendto(SOCK_SAMPLE.pack(seconds, ns // 1000, 0.0, 0, 0, 0, 0x534F434B), str(feed))
                    await asyncio.sleep(0.1)
            uncounted = await polled(undeclared)
            await asyncio.gather(declared.close(), undeclared.close())
        finally:
            chronyd.end(signal.SIGKILL)

    assert isinstance(uncounted, UtcSample)
    assert (counted.reference, counted.ntp_sources[0].kind, counted.ntp_sources[0].name) == (refid, "refclock", refid)
    origins = {"GPS": ("receiver", "refclock"), "PHC0": ("phc", "phc")}
    assert (counted.origin, uncounted.origin) == origins[refid]


async def test_killed_and_started_again(pair: ChronyPair, tmp_path: Path) -> None:
    """Lost at the next poll with the reason, back after a new open; until it has measured, it is not synchronised."""
    driver = driver_of(written(pair.client, "unix"), tmp_path)
    await driver.open()
    await sample_of(driver)
    pair.client.end(signal.SIGKILL)
    with pytest.raises(Unreachable, match="connection refused: is chronyd running"):
        await driver.poll()
    await driver.close()
    pair.client.start()
    await driver.open()
    first = await polled(driver)
    again = await sample_of(driver)
    await driver.close()

    assert isinstance(first, NoSample) and not first.stepped
    assert re.fullmatch(
        r"chronyd is not synchronised: 127\.0\.0\.1 is \w+, 127\.0\.0\.2 is nonselectable", first.reason
    )
    assert again.reference == "127.0.0.1"


async def test_a_closed_udp_port(tmp_path: Path) -> None:
    """A closed port is an error at once, not after a timeout."""
    driver = driver_of(f"127.0.0.1:{free_port()}", tmp_path)
    await driver.open()
    with pytest.raises(Unreachable, match=r"^127\.0\.0\.1:\d+: connection refused: is chronyd running"):
        await driver.poll()
    await driver.close()


async def test_a_chronyd_that_follows_only_itself(pair: ChronyPair, tmp_path: Path) -> None:
    """The server calls itself synchronised with dispersion 0, although no source ever set its time."""
    driver = driver_of(written(pair.server, "udp"), tmp_path)
    await driver.open()
    taken = await polled(driver)
    await driver.close()

    assert isinstance(taken, NoSample)
    assert taken.reason == "chronyd follows its own clock (directive `local`) instead of a source"


async def test_the_unix_socket_is_not_for_everybody(pair: ChronyPair) -> None:
    """Another user gets an error that names the remedy."""
    os.seteuid(65534)
    try:
        with pytest.raises(
            Unreachable, match=r"chronyd\.sock: permission denied: .* every user may use UDP 127\.0\.0\.1:323$"
        ):
            await ChronyClient().open(pair.client.unix_address, "utc")
    finally:
        os.seteuid(0)
