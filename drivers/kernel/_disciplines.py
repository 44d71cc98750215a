"""Finds the daemons that steer CLOCK_REALTIME or a PHC, by the processes in /proc and their command lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from timesyncd.clocks import NS_PER_S

SCAN_EVERY_NS = 30 * NS_PER_S
MIN_SCAN_INTERVAL_NS = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Process:
    """`comm` is the kernel's name of the process, at most 15 characters; `command` are the words of its command line."""

    pid: int
    comm: str
    command: tuple[str, ...]


def find_processes(proc: Path, comms: frozenset[str]) -> tuple[Process, ...] | None:
    """Every process of this pid namespace with one of these names; None if other users' processes are hidden."""
    try:
        (proc / "1" / "comm").read_text()
        pids = [int(path.name) for path in proc.iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    return tuple(process for pid in sorted(pids) if (process := _process(proc / str(pid), comms)) is not None)


def _process(folder: Path, comms: frozenset[str]) -> Process | None:
    """The process, if it has one of these names; None also if it has just ended."""
    try:
        comm = (folder / "comm").read_text(errors="replace").strip()
        if comm not in comms:
            return None
        line = (folder / "cmdline").read_text(errors="replace")
    except OSError:
        return None
    return Process(int(folder.name), comm, tuple(line.rstrip("\0").split("\0")))


def options(process: Process, valued: str) -> Iterator[tuple[str, str]]:
    """
    Each option with its value, as getopt(3) parses the command line; `valued` are the letters that have a value. A long option
    is `--name`, and its value is the next word unless it contains `=`.
    """
    words = iter(process.command[1:])
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            yield name, value if has_value else next(words, "")
        elif word.startswith("-"):
            yield from _short(word[1:], valued, words)


def _short(letters: str, valued: str, words: Iterator[str]) -> Iterator[tuple[str, str]]:
    for at, letter in enumerate(letters):
        if letter in valued:
            yield letter, letters[at + 1 :] or next(words, "")
            return
        yield letter, ""


class ProcessScanner:
    """Scans /proc in a thread, since a node may have thousands of processes, and keeps the result until the next scan."""

    def __init__(self, proc: Path, comms: frozenset[str]) -> None:
        self._proc = proc
        self._comms = comms
        self._scanned_ns: int | None = None
        self._is_requested = False
        self._processes: tuple[Process, ...] | None = None

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


REALTIME = "CLOCK_REALTIME"

#: Daemons that steer CLOCK_REALTIME, by the kernel's name of their process.
_DAEMONS = {"chronyd": "chronyd", "ntpd": "ntpd", "systemd-timesyn": "systemd-timesyncd", "ntp-daemon": "ntpd-rs"}

COMMS = frozenset({*_DAEMONS, "phc2sys", "ptp4l"})

_CHRONYD_VALUED = "fFlLPtu"
_PTP4L_VALUED = "fipl"
_PHC2SYS_VALUED = "cdfsEPISFRNOLMiunzltDA"

#: Servos of phc2sys that pass the offset to another daemon and steer no clock.
_PASSIVE_SERVOS = {"ntpshm", "refclock_sock"}


@dataclass(frozen=True, slots=True)
class Disciplines:
    """`steering` are the daemons that steer CLOCK_REALTIME, `undecided` those whose command line does not show whether they do."""

    steering: tuple[str, ...]
    undecided: tuple[str, ...]


def disciplines(processes: Iterable[Process]) -> Disciplines:
    steering, undecided = set(), set()
    for process in processes:
        steers, name = _steers_realtime(process), _name(process)
        if steers:
            steering.add(name)
        elif steers is None:
            undecided.add(name)
    if "openntpd" in steering:
        steering.discard("ntpd")  # openntpd has several processes, and not each of them is recognizable
    return Disciplines(tuple(sorted(steering)), tuple(sorted(undecided - steering)))


def maxerror_is_bound(steering: Sequence[str]) -> bool:
    """
    Whether the kernel's maxerror bounds the error of CLOCK_REALTIME. Only chronyd writes its root delay / 2 + root dispersion;
    phc2sys, ptp4l and systemd-timesyncd write 0 whatever the error is. `steering` must include the undecided daemons.
    """
    return set(steering) == {"chronyd"}


def may_steer_between(process: Process, index: int, index_of: Callable[[str], int | None]) -> bool:
    """
    Whether this is a phc2sys that may steer CLOCK_REALTIME by the PHC `index`, or the PHC by CLOCK_REALTIME. `index_of` returns the
    PHC of an interface, or None if it is unknown: that may be this one.
    """
    if process.comm != "phc2sys":
        return False
    command = _Phc2sys.of(process)
    if not command.steers or REALTIME not in command.clocks:
        return False
    return command.automatic or any(_is_phc(clock, index, index_of) for clock in command.clocks if clock != REALTIME)


def _is_phc(clock: str, index: int, index_of: Callable[[str], int | None]) -> bool:
    if clock.startswith("/dev/ptp"):
        return clock == f"/dev/ptp{index}"
    return clock.startswith("/dev/") or index_of(clock) in (
        None,
        index,
    )  # a PPS device does not show which clock drives it


def _steers_realtime(process: Process) -> bool | None:
    """None: the command line does not show it."""
    if process.comm == "chronyd":
        return not _has(process, _CHRONYD_VALUED, "x", "Q", "p")
    if process.comm == "phc2sys":
        command = _Phc2sys.of(process)
        return command.steers and REALTIME in command.sinks
    if process.comm == "ptp4l":
        return True if _has(process, _PTP4L_VALUED, "S") else False if _has(process, _PTP4L_VALUED, "H") else None
    return True


def _name(process: Process) -> str:
    if process.comm == "ntpd" and any("openntpd" in word or word.startswith("ntpd: ") for word in process.command):
        return "openntpd"  # its processes are titled, for example, "ntpd: ntp engine"
    return _DAEMONS.get(process.comm, process.comm)


def _has(process: Process, valued: str, *letters: str) -> bool:
    return any(letter in letters for letter, _ in options(process, valued))


@dataclass(frozen=True, slots=True)
class _Phc2sys:
    """What phc2sys does, by its command line. With `-a` its PHCs are those of ptp4l's ports, which are not named there."""

    automatic: bool
    steers: bool
    sinks: tuple[str, ...]
    clocks: tuple[str, ...]

    @classmethod
    def of(cls, process: Process) -> _Phc2sys:
        given = list(options(process, _PHC2SYS_VALUED))
        letters = {letter for letter, _ in given}
        steers = not any(letter == "E" and value in _PASSIVE_SERVOS for letter, value in given)
        if "a" in letters:
            clocks = (REALTIME,) if "r" in letters else ()
            return cls(True, steers, clocks, clocks)
        sinks = tuple(value for letter, value in given if letter == "c") or (REALTIME,)
        sources = tuple(value for letter, value in given if letter in "sd")
        return cls(False, steers, sinks, sinks + sources)
