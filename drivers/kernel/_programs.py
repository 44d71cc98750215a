"""What each known program does to CLOCK_REALTIME, by its command line and its configuration file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

REALTIME = "CLOCK_REALTIME"


@dataclass(frozen=True, slots=True)
class Process:
    """
    `comm` is the kernel's name of the process, at most 15 characters; `command` are the words of its command line. `config` is the
    text of the configuration file that they name; None: they name none, or it cannot be read.
    """

    pid: int
    comm: str
    command: tuple[str, ...]
    config: str | None = None


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


_CHRONYD_VALUED = "fFlLPtu"
_PTP4L_VALUED = "fipl"
_PHC2SYS_VALUED = "cdfsEPISFRNOLMiunzltDAC"

#: linuxptp's servos that pass the offset to another program and steer no clock.
_PASSIVE_SERVOS = {"ntpshm", "refclock_sock"}

#: Short options of linuxptp as (item, value); "" is the option's own value.
_PTP4L_SHORT = {
    "S": ("time_stamping", "software"),
    "H": ("time_stamping", "hardware"),
    "L": ("time_stamping", "legacy"),
}
_PHC2SYS_SHORT = {"E": ("clock_servo", "")}


def linuxptp_settings(process: Process, valued: str, short: dict[str, tuple[str, str]]) -> dict[str, str]:
    """
    linuxptp's configuration items, in lower case: those of the section [global] of the file, which those of the command line
    override (config.c: CFG_ITEM_LOCKED). Every item is also a long option.
    """
    settings = dict(_global_section(process.config or ""))
    for option, value in options(process, valued):
        if option in short:
            item, fixed = short[option]
            settings[item] = (fixed or value).lower()
        elif option.startswith("--"):
            settings[option[2:].lower()] = value.lower()
    return settings


def _global_section(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.lower()
        elif section == "[global]" and not line.startswith("#"):
            item, _, value = line.replace("\t", " ").partition(" ")
            yield item.lower(), value.strip().lower()


def _is_passive(settings: dict[str, str]) -> bool:
    return settings.get("clock_servo") in _PASSIVE_SERVOS or settings.get("free_running") == "1"


@dataclass(frozen=True, slots=True)
class Phc2sysCommand:
    """What phc2sys does, by its command line. With `-a` its PHCs are those of ptp4l's ports, which are not named there."""

    automatic: bool
    steers: bool
    sinks: tuple[str, ...]
    clocks: tuple[str, ...]

    @classmethod
    def of(cls, process: Process) -> Phc2sysCommand:
        given = list(options(process, _PHC2SYS_VALUED))
        letters = {letter for letter, _ in given}
        steers = not _is_passive(linuxptp_settings(process, _PHC2SYS_VALUED, _PHC2SYS_SHORT))
        if "a" in letters:
            clocks = (REALTIME,) if "r" in letters else ()
            return cls(True, steers, clocks, clocks)
        sinks = tuple(value for letter, value in given if letter == "c") or (REALTIME,)
        sources = tuple(value for letter, value in given if letter in ("s", "d"))
        return cls(False, steers, sinks, sinks + sources)


def _phc2sys(process: Process) -> bool | None:
    command = Phc2sysCommand.of(process)
    if not command.steers or REALTIME not in command.sinks:
        return False
    # A file that cannot be read may name a servo that steers nothing, unless the command line overrides it.
    is_hidden = process.config is None and _has(process, _PHC2SYS_VALUED, "f")
    names_servo = "clock_servo" in linuxptp_settings(process, _PHC2SYS_VALUED, _PHC2SYS_SHORT)
    return None if is_hidden and not names_servo else True


def _ptp4l(process: Process) -> bool | None:
    """It steers CLOCK_REALTIME with software time stamps, else a PHC."""
    settings = linuxptp_settings(process, _PTP4L_VALUED, _PTP4L_SHORT)
    is_server = "1" in (settings.get("serveronly"), settings.get("masteronly"))
    if _is_passive(settings) or is_server:
        return False
    stamping = settings.get("time_stamping")
    if stamping is None and process.config is None and _has(process, _PTP4L_VALUED, "f"):
        return None
    return stamping == "software"


def _chronyd(process: Process) -> bool | None:
    return not _has(process, _CHRONYD_VALUED, "x", "Q", "p")


def _has(process: Process, valued: str, *letters: str) -> bool:
    return any(letter in letters for letter, _ in options(process, valued))


@dataclass(frozen=True, slots=True)
class _Configured:
    """
    A program whose configuration file decides. `config_options` name the file; the first of `lines` that the file contains decides,
    else `by_default`, and `if_unreadable` where it cannot be read. Words of the command line in `never` mean that it does not steer.
    """

    by_default: bool | None
    if_unreadable: bool | None = None
    config_options: tuple[str, ...] = ()
    lines: tuple[tuple[str, bool], ...] = ()
    never: tuple[str, ...] = ()

    def __call__(self, process: Process) -> bool | None:
        if any(word in self.never for word in process.command[1:]):
            return False
        if process.config is None:
            return self.by_default if _value_of(process, self.config_options) is None else self.if_unreadable
        found = (steers for line, steers in self.lines if re.search(line, process.config, re.IGNORECASE | re.MULTILINE))
        return next(found, self.by_default)


def _value_of(process: Process, names: tuple[str, ...]) -> str | None:
    """The value of the last of these options, as `-f file`, `-ffile` or `--config=file`."""
    words, found = process.command, None
    for at, word in enumerate(words[1:], 1):
        for name in names:
            if word == name:
                found = words[at + 1] if at + 1 < len(words) else None
            elif word.startswith(f"{name}="):
                found = word.partition("=")[2]
            elif len(name) == 2 and word.startswith(name):
                found = word[2:]
    return found


@dataclass(frozen=True, slots=True)
class Program:
    """
    A program that can steer CLOCK_REALTIME. `steers` decides by the process: True, False, or None where the process does not show it.
    `config` returns the configuration file that the command line names.
    """

    name: str
    steers: Callable[[Process], bool | None]
    config: Callable[[Process], str | None] = field(default=lambda process: None)


def _linuxptp(name: str, steers: Callable[[Process], bool | None], valued: str) -> Program:
    def config(process: Process) -> str | None:
        return next((value for option, value in options(process, valued) if option == "f"), None)

    return Program(name, steers, config)


def _program(name: str, steers: _Configured) -> Program:
    return Program(name, steers, lambda process: _value_of(process, steers.config_options))


_ALWAYS, _UNKNOWN = _Configured(True), _Configured(None)
_NTPD = _Configured(True, True, ("-c", "--configfile"), ((r"^\s*disable\b.*\bntp\b", False),))
_SFPTPD = _Configured(
    True,
    None,
    ("-f",),
    ((r"^\s*clock_readonly\b.*\bsystem\b", False), (r"^\s*clock_control\s+no-adjust", False)),
)
_PTPD = _Configured(
    True,
    None,
    ("-c", "--config-file"),
    ((r"no_adjust\s*=\s*y", False), (r"preset\s*=\s*masteronly", False)),
    ("-n", "--noadjust", "-M", "--masteronly", "--clock:no_adjust=Y", "--clock:no_adjust=y"),
)
_SPTP = _Configured(
    None,
    None,
    ("-config", "--config"),
    (
        (r"^\s*freerunning:\s*true", False),
        (r"^\s*timestamping:\s*\"?software", True),
        (r"^\s*timestamping:\s*\"?hardware", False),
    ),
)
_STATIME = _Configured(True, None, ("-c", "--config"), ((r"^\s*virtual-system-clock\s*=\s*true", False),))
_TIMEBEAT = _Configured(
    None, None, ("-c",), ((r"^\s*adjust_clock:\s*false", False), (r"^\s*adjust_clock:\s*true", True))
)

#: By the name of the executable. What a hypervisor's guest tools do is set on the host, which a process does not show.
PROGRAMS = {
    "chronyd": Program("chronyd", _chronyd),
    "phc2sys": _linuxptp("phc2sys", _phc2sys, _PHC2SYS_VALUED),
    "ptp4l": _linuxptp("ptp4l", _ptp4l, _PTP4L_VALUED),
    "ntpd": _program("ntpd", _NTPD),
    "busybox": Program("busybox-ntpd", lambda process: "ntpd" in process.command[1:2]),
    "openntpd": _program("openntpd", _ALWAYS),
    "ntp-daemon": _program("ntpd-rs", _ALWAYS),
    "systemd-timesyncd": _program("systemd-timesyncd", _ALWAYS),
    "clockbound": _program("clockbound", _UNKNOWN),
    "ntpclient": _program("ntpclient", _ALWAYS),
    "htpdate": _program("htpdate", _ALWAYS),
    "sfptpd": _program("sfptpd", _SFPTPD),
    "ptpd": _program("ptpd", _PTPD),
    "ptpd2": _program("ptpd", _PTPD),
    "sptp": _program("sptp", _SPTP),
    "statime": _program("statime", _STATIME),
    "statime-linux": _program("statime", _STATIME),
    "timebeat": _program("timebeat", _TIMEBEAT),
    "vmtoolsd": _program("vmtoolsd", _Configured(None, never=("vmusr",))),
    "VBoxService": _program("VBoxService", _Configured(None, never=("--disable-timesync",))),
    "prltoolsd": _program("prltoolsd", _UNKNOWN),
    "google_guest_agent": _program("google_guest_agent", _UNKNOWN),
    "google_clock_skew_daemon": _program("google_clock_skew_daemon", _UNKNOWN),
}

_COMM_LENGTH = 15
_BY_COMM = {name[:_COMM_LENGTH]: program for name, program in PROGRAMS.items()}

COMMS = frozenset(_BY_COMM)


def program_of(process: Process) -> Program | None:
    """By the kernel's name of the process, which a program may change, or by the name that it was started under."""
    started_as = process.command[0].rpartition("/")[2] if process.command else ""
    return _BY_COMM.get(process.comm) or PROGRAMS.get(started_as)
