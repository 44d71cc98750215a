"""
A line of a log, whatever brought it: syslog, the journal (as text or JSON), or a program's own standard output. Pure.

linuxptp begins each message with CLOCK_MONOTONIC, as `[12.345]`: in the system log after the program's name and pid, on
standard output (`-m`) directly after the name. A pid has no fraction, and the journal's own monotonic stamps have six
decimals, so three decimals in brackets are linuxptp's stamp and nothing else.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from typing import NamedTuple

PTP4L, PHC2SYS = "ptp4l", "phc2sys"

#: Programs of the same project with stamps of the same form, whose messages are not read.
_OTHERS = ("ts2phc", "timemaster", "pmc", "nsm", "phc_ctl", "hwstamp_ctl", "tz2alt")

_STAMP = re.compile(r"\[\s*(\d{1,12}\.\d{3})\]")
#: A field of an entry over several lines (journalctl -o export, verbose, json-pretty), whose pid is in another line.
_FIELD = re.compile(r'\s*"?MESSAGE"?\s*[=:]\s*"?')
_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_LINE_NUMBER = re.compile(r"(?:^|(?<=:))\d+[:-](?=[A-Za-z])")
_HEAD = re.compile(r"==> (?P<name>.+) <==")
_ATTACHED = re.compile(r"(?:^|.*\s)(\S+)$", re.DOTALL)
_IDENT = re.compile(r"(?P<head>(?:.*\s)?)(?:<\d+>)?(?P<program>[^\s\[\]:<>]+)(?:\[(?P<pid>\d+)\])?:\s*")
_RFC5424 = re.compile(
    r"(?:<\d+>)?1 (?P<time>\S+) (?P<host>\S+) (?P<program>\S+) (?P<pid>\S+) \S+ (?:-|\[.*\]) ?\ufeff?\s*"
)
_UNSTAMPED = re.compile(
    r"(?P<prefix>(?:.*?\s)?(?:<\d+>)?(?:ptp4l|phc2sys)[\w.@-]*(?:\[\d+\])?:)\s+(?P<text>.*)|"
    r"(?P<cut>(?:.*?\s)?(?:<\d+>)?(?:ptp4l|phc2sys)[\w.@-]*\[(?!\d+\]:).*)"
)
_MEASUREMENT = re.compile(r"\boffset\b.*\bfreq\b|\brms\b.*\bmax\b")

#: A token of the date and time that stand before the host's name.
_TIME = re.compile(r"\d{1,2}:\d{2}:\d{2}\S*|\d{4}-\d{2}-\d{2}\S*|\[?\d*\.\d+\]?|<?[+-]?\d+\.\d+>?\]|\d+|[+-]\d{4}")
#: A word of a date, a time zone, or a stream's name as containers log it.
_DATE_WORD = re.compile(r"[^\W\d_]{1,4}[.,]?|stdout|stderr|\W+")
_ZONE = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\S* [A-Z]{2,5}$")

#: journalctl -o json-sse puts it before each entry.
_EVENT = "data: "

_BOOT = re.compile(r"-- (?:Boot \w+|Reboot) --|\bkernel: (?:\[ *[\d.]+\] )?Linux version ")
_LOST = re.compile(
    r"Suppressed (?P<count>\d+) messages from (?P<unit>\S+)|(?P<lost>\d+) messages lost due to rate-limiting|"
    r"imuxsock.*(?:begin to drop messages|lost (?P<dropped>\d+) messages)"
)
_TIMING_UNIT = re.compile(r"ptp|phc|time|sync|clock|\.scope$", re.IGNORECASE)


class Origin(NamedTuple):
    """The running program that wrote a line; None = the line does not contain it."""

    program: str | None
    host: str | None = None
    pid: int | None = None


class LogLine(NamedTuple):
    """
    A message of ptp4l or phc2sys, or of a program whose name is unknown.

    `stamp` is linuxptp's own, in seconds of CLOCK_MONOTONIC; `wall` is the text of the date and time before it, empty
    where there is none. `boot` is the journal's boot id, `monotonic_us` its stamp of receipt: both from JSON alone.
    """

    origin: Origin
    stamp: str | None
    wall: str
    text: str
    boot: str | None = None
    monotonic_us: int | None = None


class Marker(Enum):
    """A line that is no message of a program that is read, and yet counts."""

    BOOT = auto()
    LOST = auto()
    CUT = auto()


class Head(NamedTuple):
    """The following lines are of this file: tail and head put it before the lines of each of several files."""

    name: str


class Lost(NamedTuple):
    """The logging service dropped lines; `lines` None = it does not report how many."""

    lines: int | None


def parse_line(line: str) -> LogLine | Lost | Marker | Head | None:
    """The message in a line; None: a line of another program, or none at all."""
    line = line.strip("\r\n\x1e\0")
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    line = line.removeprefix(_EVENT)
    if line.startswith("{"):
        return _of_json(line)
    stamp = _STAMP.search(line)
    if stamp is None:
        return _without_stamp(line)
    return _stamped(line[: stamp.start()], stamp[1], line[stamp.end() :])


def _stamped(before: str, stamp: str, after: str) -> LogLine | None:
    program = None
    if before and _FIELD.fullmatch(before):
        return None
    if before and not before[-1].isspace() and (attached := _ATTACHED.match(before)) is not None:
        program, before = attached[1].rpartition(">")[2], before[: attached.start(1)]
        program = _LINE_NUMBER.sub("", program)
        after = after.removeprefix(":")
    origin, wall = _origin(before)
    if program is not None:
        host = _label(before) if origin.host is None and origin.pid is None else origin.host
        origin = origin._replace(program=program, host=host)
    return None if _is_other(origin.program) else LogLine(origin, stamp, wall, after.strip())


def _label(prefix: str) -> str | None:
    """What a collector puts before a line that begins with the program's name: the machine, pod or container."""
    words = [word for word in prefix.split() if not _TIME.fullmatch(word) and not _DATE_WORD.fullmatch(word)]
    return " ".join(words).rstrip(":") or None


def _without_stamp(line: str) -> LogLine | Lost | Marker | Head | None:
    if line and f"{PTP4L}[".startswith(line):
        return Marker.CUT
    is_named = PTP4L in line or PHC2SYS in line
    if is_named and (found := _UNSTAMPED.fullmatch(line)) is not None:
        if found["cut"] is not None:
            return Marker.CUT
        origin, wall = _origin(found["prefix"])
        return LogLine(origin, None, wall, found["text"].strip())
    if ("offset" in line or "rms" in line) and _MEASUREMENT.search(line):
        origin, wall = _origin(line[: line.find(": ") + 1])
        return None if _is_other(origin.program) else LogLine(Origin(None), None, wall, line.strip())
    return _service_line(line)


def _service_line(line: str) -> Lost | Marker | Head | None:
    if line.startswith("==> ") and (head := _HEAD.fullmatch(line)) is not None:
        return Head(head["name"])
    if (line.startswith("-- ") or "Linux version" in line) and _BOOT.search(line):
        return Marker.BOOT
    found = _LOST.search(line) if "messages" in line else None
    if found is None or (found["unit"] and not _TIMING_UNIT.search(found["unit"])):
        return None
    count = found["count"] or found["lost"] or found["dropped"]
    return Lost(int(count) if count else None)


def _is_other(program: str | None) -> bool:
    return program is not None and program.startswith(_OTHERS)


def _origin(prefix: str) -> tuple[Origin, str]:
    """The program of a syslog prefix, and the text of its date and time."""
    if (found := _RFC5424.fullmatch(prefix)) is not None:
        pid = int(found["pid"]) if found["pid"].isdecimal() else None
        host = None if found["host"] == "-" else found["host"]
        return Origin(found["program"], host, pid), found["time"]
    if (found := _IDENT.fullmatch(prefix)) is None:
        return Origin(None), prefix.strip()
    host, wall = _host(found["head"])
    return Origin(found["program"], host, int(found["pid"]) if found["pid"] else None), wall


def _host(head: str) -> tuple[str | None, str]:
    """The host's name at the end of a prefix, and the date and time before it."""
    head = re.sub(r"^<\d+>", "", head.strip())
    before, _, last = head.rpartition(" ")
    if not last or _TIME.fullmatch(last) or _ZONE.search(head):
        return None, head
    return last, before.strip()


def _of_json(line: str) -> LogLine | Lost | Marker | Head | None:
    """An entry of `journalctl -o json`, or a line as Docker keeps it. Binary messages are arrays of octets, repeated fields arrays of strings."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return Marker.CUT
    if not isinstance(entry, dict):
        return None
    identifier = _text(entry.get("SYSLOG_IDENTIFIER")) or _text(entry.get("_COMM")) or None
    message = _text(entry.get("MESSAGE"))
    if message is None and isinstance(entry.get("log"), str):
        return parse_line(str(entry["log"]).lstrip("{"))
    if message is None:
        return Marker.CUT if identifier and identifier.startswith((PTP4L, PHC2SYS)) else None
    found = parse_line(message.lstrip("{")) or LogLine(Origin(None), None, "", message)
    if not isinstance(found, LogLine):
        return found
    program = found.origin.program or identifier
    if _is_other(program) or (found.stamp is None and not (program or "").startswith((PTP4L, PHC2SYS))):
        return None
    pid, monotonic = _text(entry.get("_PID")), _text(entry.get("__MONOTONIC_TIMESTAMP"))
    return LogLine(
        Origin(program, _text(entry.get("_HOSTNAME")), int(pid) if pid and pid.isdecimal() else None),
        found.stamp,
        _text(entry.get("__REALTIME_TIMESTAMP")) or "",
        found.text,
        _text(entry.get("_BOOT_ID")),
        int(monotonic) if monotonic and monotonic.isdecimal() and len(monotonic) < 19 else None,
    )


def _text(value: object) -> str | None:
    if isinstance(value, list) and value and all(isinstance(octet, int) and 0 <= octet < 256 for octet in value):
        return bytes(value).decode(errors="replace")
    if isinstance(value, list) and value:
        value = value[-1]
    return value if isinstance(value, str) else None
