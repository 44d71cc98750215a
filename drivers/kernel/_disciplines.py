"""
Who steers which clock, by the processes that run. Pure.

The processes that may have to do with clocks, looked for in /proc, and their command lines.
"""

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
    """`comm` is what the kernel calls it, at most 15 characters; `command` the words that it shows as its command line."""

    pid: int
    comm: str
    command: tuple[str, ...]


def find_processes(proc: Path, comms: frozenset[str]) -> tuple[Process, ...] | None:
    """Every process with one of these names, of this pid namespace. None: others' processes are hidden from us."""
    try:
        (proc / "1" / "comm").read_text()
        pids = [int(path.name) for path in proc.iterdir() if path.name.isdecimal()]
    except OSError:
        return None
    return tuple(process for pid in sorted(pids) if (process := _process(proc / str(pid), comms)) is not None)


def _process(folder: Path, comms: frozenset[str]) -> Process | None:
    """None too where it has just ended."""
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
    Each option with its value, as getopt(3) reads its command line: `valued` are the letters that have one. A long option is
    given as `--name`, and its value is the next word where it holds no `=`.
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
    """Looks in a thread, since a node may have thousands of processes; between two looks the last one counts."""

    def __init__(self, proc: Path, comms: frozenset[str]) -> None:
        self._proc = proc
        self._comms = comms
        self._looked_ns: int | None = None
        self._wanted = False
        self._seen: tuple[Process, ...] | None = None

    def want(self) -> None:
        """Something changed: look again as soon as may be."""
        self._wanted = True

    async def seen(self, boottime_ns: int) -> tuple[Process, ...] | None:
        if self._is_due(boottime_ns):
            self._looked_ns, self._wanted = boottime_ns, False
            self._seen = await asyncio.to_thread(find_processes, self._proc, self._comms)
        return self._seen

    def _is_due(self, boottime_ns: int) -> bool:
        if self._looked_ns is None:
            return True
        return boottime_ns - self._looked_ns >= (MIN_SCAN_INTERVAL_NS if self._wanted else SCAN_EVERY_NS)


REALTIME = "CLOCK_REALTIME"

#: Daemons that steer CLOCK_REALTIME, by the kernel's name of their process.
_STEER = {"chronyd": "chronyd", "ntpd": "ntpd", "systemd-timesyn": "systemd-timesyncd", "ntp-daemon": "ntpd-rs"}

COMMS = frozenset({*_STEER, "phc2sys", "ptp4l"})

_CHRONYD_VALUED = "fFlLPtu"
_PTP4L_VALUED = "fipl"
_PHC2SYS_VALUED = "cdfsEPISFRNOLMiunzltDA"

#: Servos of phc2sys that hand the offset to another daemon and steer nothing.
_ONLY_TELLING_SERVOS = {"ntpshm", "refclock_sock"}


@dataclass(frozen=True, slots=True)
class Disciplines:
    """`steering` names the daemons that steer CLOCK_REALTIME, `undecided` those whose process does not tell whether they do."""

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
        steering.discard("ntpd")  # one program of several processes, of which not each shows whose it is
    return Disciplines(tuple(sorted(steering)), tuple(sorted(undecided - steering)))


def maxerror_is_bound(steering: Sequence[str]) -> bool:
    """
    Whether the kernel's maxerror bounds the error of CLOCK_REALTIME. chronyd alone writes what it knows, root delay / 2 + root
    dispersion; phc2sys, ptp4l and systemd-timesyncd write 0 whatever the error is. Give it the undecided ones too.
    """
    return set(steering) == {"chronyd"}


def may_steer_between(process: Process, index: int, index_of: Callable[[str], int | None]) -> bool:
    """
    Whether this is a phc2sys that could steer CLOCK_REALTIME by the PHC `index`, or the PHC by CLOCK_REALTIME. `index_of`
    tells the PHC behind an interface, None where it cannot: that may be this one.
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
    return clock.startswith("/dev/") or index_of(clock) in (None, index)  # a PPS device does not tell whose pulse it is


def _steers_realtime(process: Process) -> bool | None:
    """None: the process does not tell."""
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
        return "openntpd"  # its parts show as "ntpd: ntp engine"
    return _STEER.get(process.comm, process.comm)


def _has(process: Process, valued: str, *letters: str) -> bool:
    return any(letter in letters for letter, _ in options(process, valued))


@dataclass(frozen=True, slots=True)
class _Phc2sys:
    """What its command line makes it do. With `-a` the PHCs are those of ptp4l's ports, which it does not name."""

    automatic: bool
    steers: bool
    sinks: tuple[str, ...]
    clocks: tuple[str, ...]

    @classmethod
    def of(cls, process: Process) -> _Phc2sys:
        given = list(options(process, _PHC2SYS_VALUED))
        letters = {letter for letter, _ in given}
        steers = not any(letter == "E" and value in _ONLY_TELLING_SERVOS for letter, value in given)
        if "a" in letters:
            clocks = (REALTIME,) if "r" in letters else ()
            return cls(True, steers, clocks, clocks)
        sinks = tuple(value for letter, value in given if letter == "c") or (REALTIME,)
        sources = tuple(value for letter, value in given if letter in "sd")
        return cls(False, steers, sinks, sinks + sources)
