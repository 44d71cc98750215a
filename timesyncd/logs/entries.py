"""From the lines of a log to its messages, each with the instance that wrote it and its time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S
from timesyncd.logs.instances import Instance, Instances
from timesyncd.logs.lines import PHC2SYS, PTP4L, Head, LogLine, Lost, Marker, Origin, parse_line
from timesyncd.logs.messages import (
    ClockCheck,
    Measurement,
    Message,
    OffsetSummary,
    Unreadable,
    parse_phc2sys,
    parse_ptp4l,
)
from timesyncd.logs.walltime import parse_walltime

_PARSERS: dict[str, Callable[[str], tuple[Message | None, str]]] = {PTP4L: parse_ptp4l, PHC2SYS: parse_phc2sys}

#: The last line of a file that ends without a line feed may be cut anywhere.
_END = "\n"


class LogTime(NamedTuple):
    """
    The time of a line: as it is written in the output, in nanoseconds, and by which clock it was stamped.

    `base` is "stamp" (linuxptp's own), "journal" (the journal's monotonic stamp), "wall", or "whole" for a wall time
    without a fraction.
    """

    t_s: str
    time_ns: int
    base: str


class Entry(NamedTuple):
    """
    A message of `program` (ptp4l or phc2sys; None: not known which). A `message` of None says nothing of a clock.
    `instance` and `time` are None for what concerns the log as a whole, or has none.
    """

    line: int
    program: str | None
    instance: Instance | None
    message: Message | Lost | None
    time: LogTime | None = None
    text: str = ""


def concerns(entry: Entry, program: str, instances: Instances) -> bool:
    """
    Whether the message is one of `program`, or may be one: not where it is known to be of an instance that is not
    replayed. A garbled line is of anybody, whose name may be garbled too.
    """
    if entry.program not in (None, program):
        return False
    if entry.instance is None or isinstance(entry.message, (Measurement, OffsetSummary)):
        return True
    origin = entry.instance.origin
    if instances.rejects(origin):
        return False
    if entry.program == program or isinstance(entry.message, Unreadable):
        return True
    return origin.program is None or instances.knows(origin)


def read_entries(lines: Iterable[str]) -> Iterator[Entry]:
    """The messages of ptp4l and phc2sys in the lines of a log; a line without a line feed is the last one, maybe cut."""
    boot, boots, file = 0, dict[str, int](), ""
    for number, line in enumerate(lines, start=1):
        found = parse_line(line)
        if isinstance(found, LogLine):
            count = boot if found.boot is None else boots.setdefault(found.boot, len(boots))
            if file:
                found = found._replace(origin=_in_file(found.origin, file))
            yield _entry(number, found, count, is_whole=line.endswith(_END) or line.startswith("{"))
        elif isinstance(found, Lost):
            yield Entry(number, None, None, found)
        elif isinstance(found, Head):
            file = found.name
        elif found is Marker.BOOT:
            boot += 1
        elif found is Marker.CUT:
            yield Entry(number, None, None, Unreadable(may_hide_step=True))


def _in_file(origin: Origin, file: str) -> Origin:
    return origin._replace(host=f"{file} {origin.host}" if origin.host else file)


def _entry(number: int, found: LogLine, boot: int, is_whole: bool) -> Entry:
    program, message, tag = _parsed(found)
    if isinstance(message, Measurement) and not is_whole and not message.is_padded:
        message = Unreadable(message.servo == 1)
    sink = message.sink or "" if isinstance(message, (Measurement, OffsetSummary)) and program == PHC2SYS else ""
    time = None if message is None else log_time(found)
    return Entry(number, program, Instance(found.origin, tag, sink, boot), message, time, found.text)


def _parsed(found: LogLine) -> tuple[str | None, Message | None, str]:
    """The program that wrote a message: by its name, or by the message where the name is missing or another one."""
    for program, parse in _PARSERS.items():
        if (found.origin.program or "").startswith(program):
            return program, *parse(found.text)
    message, tag = parse_ptp4l(found.text)
    if isinstance(message, Unreadable):
        other, other_tag = parse_phc2sys(found.text)
        if not isinstance(other, Unreadable):
            return PHC2SYS, other, other_tag
    if isinstance(message, OffsetSummary):
        return PHC2SYS if message.sink else PTP4L, message, tag
    return (None if message is None or isinstance(message, (ClockCheck, Unreadable)) else PTP4L), message, tag


def log_time(line: LogLine) -> LogTime | None:
    """The time of a line by linuxptp's own stamp, or else by the logging service's; None: it has neither."""
    if line.stamp is not None:
        seconds, _, milliseconds = line.stamp.partition(".")
        return LogTime(line.stamp, int(seconds) * NS_PER_S + int(milliseconds) * 1_000_000, "stamp")
    if line.monotonic_us is not None:
        return _as_seconds(line.monotonic_us * 1_000, "journal")
    wall = parse_walltime(line.wall)
    return None if wall is None else _as_seconds(wall.time_ns, "whole" if wall.is_whole else "wall")


def _as_seconds(time_ns: int, base: str) -> LogTime:
    fraction = "" if base == "whole" else f".{time_ns % NS_PER_S:09d}"
    return LogTime(f"{time_ns // NS_PER_S}{fraction}", time_ns, base)
