"""Finds the programs that steer CLOCK_REALTIME or a PHC, by the processes in /proc, their command lines and files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.kernel._programs import (
    PROGRAMS,
    REALTIME,
    Phc2sysCommand,
    Process,
    program_of,
)

SCAN_EVERY_NS = 30 * NS_PER_S
MIN_SCAN_INTERVAL_NS = 5 * NS_PER_S

_LARGEST_CONFIG = 1 << 16

#: Words in /proc/PID/cgroup of a process in a container, whose files are not those of this mount namespace.
_CONTAINERS = ("docker", "kubepods", "libpod", "containerd", "crio", "lxc", "machine.slice")


def find_processes(proc: Path, comms: frozenset[str]) -> tuple[Process, ...] | None:
    """
    Every process of this pid namespace with one of these names; None if other users' processes are hidden. A process may have the
    name from the kernel, or from the first word of its command line.
    """
    try:
        (proc / "1" / "comm").read_text()
        pids = [int(path.name) for path in proc.iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    return tuple(process for pid in sorted(pids) if (process := _process(proc / str(pid), comms)) is not None)


def sees_whole_machine(proc: Path) -> bool:
    """Whether /proc shows the machine's first pid namespace: in a container the host's processes are hidden."""
    try:
        return os.stat(proc / "self" / "ns" / "pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return True  # a kernel without pid namespaces


#: PROC_PID_INIT_INO of the kernel's proc_ns.h.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC


def _process(folder: Path, comms: frozenset[str]) -> Process | None:
    """The process, if it has one of these names; None also if it has just ended."""
    try:
        comm, line = _head(f"{folder}/comm").strip(), _head(f"{folder}/cmdline")
    except OSError:
        return None
    if not line:
        return None  # a thread of the kernel
    process = Process(int(folder.name), comm, tuple(line.rstrip("\0").split("\0")))
    program = program_of(process)
    if program is None or comms.isdisjoint((comm, Path(process.command[0]).name[:15])):
        return None
    path = program.config(process)
    return process if path is None else replace(process, config=_file_of(folder, Path(path)))


def _head(path: str) -> str:
    """The beginning of a file; by system calls alone, since a node may have thousands of processes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _LARGEST_CONFIG).decode(errors="replace")
    finally:
        os.close(fd)


def _file_of(folder: Path, path: Path) -> str | None:
    """A file as the process sees it; None where that cannot be read."""
    try:
        os.stat(folder / "root")
        found = folder / "cwd" / path if not path.is_absolute() else folder / "root" / path.relative_to("/")
    except OSError:
        if not path.is_absolute() or _is_in_container(folder):
            return None
        found = path
    try:
        with found.open(errors="replace") as file:
            return file.read(_LARGEST_CONFIG)
    except OSError:
        return None


def _is_in_container(folder: Path) -> bool:
    try:
        groups = (folder / "cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(word in groups for word in _CONTAINERS)


class ProcessScanner:
    """Scans /proc in a thread, since a node may have thousands of processes, and keeps the result until the next scan."""

    def __init__(self, proc: Path, comms: frozenset[str]) -> None:
        self._proc = proc
        self._comms = comms
        self._scanned_ns: int | None = None
        self._is_requested = False
        self._processes: tuple[Process, ...] | None = None

    @property
    def scanned_ns(self) -> int | None:
        """When the processes were scanned last, by CLOCK_BOOTTIME."""
        return self._scanned_ns

    def request_scan(self) -> None:
        """Scan again as soon as MIN_SCAN_INTERVAL_NS permits: something changed."""
        self._is_requested = True

    async def processes(self, boottime_ns: int) -> tuple[Process, ...] | None:
        """The processes of the last scan, after a new one if it is due; None if other users' processes are hidden."""
        if self._is_due(boottime_ns):
            self._scanned_ns, self._is_requested = boottime_ns, False
            self._processes = await asyncio.to_thread(find_processes, self._proc, self._comms)
        return self._processes

    def _is_due(self, boottime_ns: int) -> bool:
        if self._scanned_ns is None:
            return True
        return boottime_ns - self._scanned_ns >= (MIN_SCAN_INTERVAL_NS if self._is_requested else SCAN_EVERY_NS)


@dataclass(frozen=True, slots=True)
class Disciplines:
    """
    `steering` are the programs that steer CLOCK_REALTIME, `undecided` those whose process does not show whether they do.
    `undecided_ptp4l` are the process ids of the ptp4l among these.
    """

    steering: tuple[str, ...]
    undecided: tuple[str, ...]
    undecided_ptp4l: tuple[int, ...] = ()


def disciplines(processes: Iterable[Process]) -> Disciplines:
    steering, undecided, pids = set(), set(), []
    for process in processes:
        program = program_of(process)
        if program is None:
            continue
        steers, name = program.steers(process), _name(process, program.name)
        if steers:
            steering.add(name)
        elif steers is None:
            undecided.add(name)
            pids += [process.pid] if name == "ptp4l" else []
    if "openntpd" in steering:
        steering.discard("ntpd")  # openntpd has several processes, and not each of them is recognizable
    return Disciplines(tuple(sorted(steering)), tuple(sorted(undecided - steering)), tuple(pids))


#: Hyper-V's time synchronization is a part of the kernel and no process (Linux, drivers/hv/hv_util.c).
HYPERV = "hv_utils"

#: HV_TS_GUID: the device of the host's TimeSync component.
_TIMESYNC = "{9527e630-d0ae-497b-adce-e80ab0175caf}"


def hyperv_steers(sys: Path) -> bool | None:
    """
    True where the module's parameter `timesync_implicit` is set: each sample of the host then may set the clock. Without it only a
    resume of the machine does, which is a step. None for an older kernel, which has no such parameter.
    """
    if not any(_text(device / "class_id") == _TIMESYNC for device in (sys / "bus/vmbus/devices").glob("*")):
        return False
    implicit = _text(sys / "module/hv_utils/parameters/timesync_implicit")
    return None if implicit is None else implicit in ("Y", "1")


def with_hyperv(found: Disciplines, steers: bool | None) -> Disciplines:
    """The same with Hyper-V's time synchronization, by `hyperv_steers`."""
    if steers is None:
        return replace(found, undecided=tuple(sorted({*found.undecided, HYPERV})))
    return replace(found, steering=tuple(sorted({*found.steering, HYPERV}))) if steers else found


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _name(process: Process, name: str) -> str:
    if name == "ntpd" and any("openntpd" in word or word.startswith("ntpd: ") for word in process.command):
        return "openntpd"  # its processes are titled, for example, "ntpd: ntp engine"
    return name


def may_steer_between(process: Process, index: int, index_of: Callable[[str], int | None]) -> bool:
    """
    Whether this is a phc2sys that may steer CLOCK_REALTIME by the PHC `index`, or the PHC by CLOCK_REALTIME. `index_of` returns the
    PHC of an interface, or None if it is unknown: that may be this one.
    """
    if program_of(process) is not PROGRAMS["phc2sys"]:
        return False
    command = Phc2sysCommand.of(process)
    if not command.steers or REALTIME not in command.clocks:
        return False
    return command.automatic or any(_is_phc(clock, index, index_of) for clock in command.clocks if clock != REALTIME)


def _is_phc(clock: str, index: int, index_of: Callable[[str], int | None]) -> bool:
    if clock.startswith("/dev/ptp"):
        return clock == f"/dev/ptp{index}"
    # A PPS device does not show which clock drives it.
    return clock.startswith("/dev/") or index_of(clock) in (None, index)
