"""Who steers which clock, by the processes that run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from timesyncd.drivers.kernel._processes import Process, options

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
