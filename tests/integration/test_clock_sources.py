"""The drivers kernel, phc and phc2sys against this machine's own kernel and real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.kernel._disciplines import disciplines, find_processes
from timesyncd.drivers.kernel._machine import Machine, system_timex
from timesyncd.drivers.kernel._programs import COMMS, Process
from timesyncd.drivers.kernel.kernel import Kernel, KernelOptions
from timesyncd.drivers.phc._device import phc_index
from timesyncd.drivers.phc.phc import Phc, PhcOptions
from timesyncd.errors import Refused, Unreachable
from timesyncd.sample import KernelSample
from timesyncd.simulation.bed import host

pytestmark = pytest.mark.integration

NO_PHC = 4_319
NOBODY_UID = 65534

AS_ANYBODY = """
import asyncio, pathlib
from timesyncd.drivers.kernel.kernel import Kernel, KernelOptions
(sample,) = asyncio.run(Kernel("kernel", KernelOptions(), pathlib.Path()).poll())
print(sample.tai_offset_s, *sample.disciplines)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path: chronyd binds a socket in it."""
    with tempfile.TemporaryDirectory(prefix="timesyncd-") as made:
        yield Path(made)


@contextmanager
def running(*command: str | Path) -> Iterator[int]:
    """A process with its standard input held open, seen in /proc under its own name; its pid."""
    words = host.dying_with_parent([str(word) for word in command])
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_name(child, Path(command[0]).name)
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def wait_for_name(child: subprocess.Popen[bytes], name: str) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child.pid}/comm").read_text().strip() != name[:15]:
        assert child.poll() is None, f"{name} ended with {child.returncode}"
        assert time.monotonic() < deadline, f"{name} did not start"
        time.sleep(0.01)


def chronyd(folder: Path) -> list[str | Path]:
    """A chronyd that controls no clock, queries no server and serves no client."""
    config = folder / "chrony.conf"
    config.write_text(f"port 0\ncmdport 0\nbindcmdaddress {folder}/chronyd.sock\npidfile {folder}/chronyd.pid\n")
    return [host.find("chronyd"), "-x", "-d", "-u", "root", "-f", config]


def stand_in(folder: Path, name: str) -> Path:
    """A shell that waits for input, under another program's name: what is looked for is a name and a command line."""
    path = folder / name
    shutil.copy(host.find("sh"), path)
    return path


def seen(pid: int) -> Process:
    (found,) = [process for process in find_processes(Path("/proc"), COMMS) or () if process.pid == pid]
    return found


def test_a_real_chronyd_that_controls_nothing_steers_nothing(folder: Path) -> None:
    """It is found in /proc, and its -x is believed."""
    command = chronyd(folder)
    with running(*command) as pid:
        process = seen(pid)

    assert process == Process(pid, "chronyd", tuple(map(str, command)))
    assert disciplines([process]).steering == ()


def test_two_disciplines_are_found_among_real_processes(folder: Path) -> None:
    """A phc2sys that sets CLOCK_REALTIME and a systemd-timesyncd, whose name the kernel cuts to 15 characters."""
    timesyncd, phc2sys = stand_in(folder, "systemd-timesyncd"), stand_in(folder, "phc2sys")
    with running(timesyncd) as one, running(phc2sys, "-s", "eth0", "-w") as other:
        found = disciplines([seen(one), seen(other)])

    assert found.steering == ("phc2sys", "systemd-timesyncd")


def test_a_program_beside_chronyd_is_found_among_real_processes(folder: Path) -> None:
    """An sfptpd steers too, so chronyd's word on the error is not the kernel's."""
    with running(stand_in(folder, "chronyd")) as one, running(stand_in(folder, "sfptpd")) as other:
        found = disciplines([seen(one), seen(other)])

    assert (found.steering, found.undecided) == (("chronyd", "sfptpd"), ())


async def test_the_kernels_own_word() -> None:
    """adjtimex agrees with other system calls: the time, and TAI by CLOCK_TAI."""
    before_s = time.clock_gettime_ns(time.CLOCK_REALTIME) // NS_PER_S
    timex = system_timex()
    after_s = time.clock_gettime_ns(time.CLOCK_REALTIME) // NS_PER_S
    tai_s = round(time.clock_gettime(time.CLOCK_TAI) - time.clock_gettime(time.CLOCK_REALTIME))

    assert before_s <= timex.time_s <= after_s
    assert (timex.modes, timex.precision_us, timex.tolerance) == (0, 1, 500 << 16)
    assert timex.tai_s == tai_s
    assert 9_000 <= timex.tick_us <= 11_000


async def test_the_driver_reads_this_machine() -> None:
    """Opened and polled as the daemon does it."""
    driver = Kernel("kernel", KernelOptions(), Path())
    await driver.open()
    (sample,) = await driver.poll()
    await driver.close()

    assert isinstance(sample, KernelSample)
    assert sample.leap in ("none", "insert", "delete")
    assert abs(sample.frequency_ppb) <= 100_500_000
    assert sample.synchronized is not bool(system_timex().status & 0x40)


def test_it_needs_no_privilege(folder: Path) -> None:
    """A user without any capability, except to read the interpreter's files, reads adjtimex and sees root's processes."""
    reading = [
        "--bounding-set=-all,+dac_read_search",
        "--inh-caps=-all,+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
    identity = [f"--reuid={NOBODY_UID}", f"--regid={NOBODY_UID}", "--clear-groups", "--no-new-privs", *reading]
    with running(stand_in(folder, "phc2sys"), "-s", "eth0"):
        reported = subprocess.run(
            [host.find("setpriv"), *identity, sys.executable, "-c", AS_ANYBODY],
            check=True,
            capture_output=True,
            text=True,
            cwd="/",
        ).stdout.split()

    assert reported[0] == str(system_timex().tai_s)
    assert "phc2sys" in reported[1:]


def test_an_interface_of_this_machine_is_asked() -> None:
    """`lo` has no clock, and an interface that is not there is unreachable."""
    with pytest.raises(Refused, match="lo: this interface has no PTP hardware clock"):
        phc_index("lo", Machine())
    with pytest.raises(Unreachable, match="no-such0: no such interface"):
        phc_index("no-such0", Machine())


async def test_a_clock_that_is_not_there() -> None:
    """The kernel's own error, in words."""
    with pytest.raises(Unreachable, match=f"/dev/ptp{NO_PHC}: no such device"):
        await Phc("nic", PhcOptions(index=NO_PHC), Path()).open()


async def test_a_file_that_is_no_clock(folder: Path) -> None:
    """The kernel supports none of the three ioctls there, and that is the error."""
    (folder / "ptp0").touch()
    driver = Phc("nic", PhcOptions(index=0), Path(), machine=Machine(dev=folder))
    await driver.open()
    try:
        with pytest.raises(Refused, match="supports no ioctl that reads the offset"):
            await driver.poll()
    finally:
        await driver.close()
