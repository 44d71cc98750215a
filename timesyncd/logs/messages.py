"""
The messages of ptp4l and phc2sys (linuxptp 1.9 to 4.4) that say something of a clock. Pure.

Both print a measurement in one line, with the state of the servo: s0 is unlocked and does not steer; s1 has just stepped
the clock, so the offset is the one before the step; s2 steers; s3 steers and is stable. A message may begin with a tag
(the option `message_tag`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from timesyncd.sample import PortState

#: A tag contains the message's level where the option says `{level}`: it is the same program nevertheless.
_LEVEL = re.compile(r"(?<=:)[0-7](?=\]?$)|(?<=<)[0-7](?=>)")

#: No tag contains these: where one does, the line is two lines.
_NO_TAG = re.compile(r"\[\d+\.\d{3}\]|\boffset\b|\brms\b")

_TAG = r"(?:(?P<tag>\S(?:.*?\S)??)\s+)??"
_PORT = r"port (?P<port>\d{1,5}) ?(?:\((?P<interface>[^()]*)\))?:"
_NUMBERS = r"offset\s+(?P<offset>[+-]?\d{1,19}) s(?P<servo>[0-3]) freq\s+(?P<freq>[+-]?\d{1,12})"

_PTP4L = re.compile(
    _TAG + rf"(?:{_PORT} )?(?:(?:master|server|source) )?{_NUMBERS} path delay(?P<field>\s+(?P<delay>-?\d{{1,19}}))"
)
_PHC2SYS = re.compile(
    _TAG + rf"(?:(?P<sink>\S+) )?(?P<source>phc|sys|pps) {_NUMBERS}(?: delay(?P<field>\s+(?P<delay>\d{{1,19}})))?"
)
_SUMMARY = re.compile(_TAG + r"(?:(?P<sink>\S+) )?rms\s+\d+ max\s+\d+ freq\b.*")
_TRANSITION = re.compile(_TAG + rf"{_PORT} (?P<old>[A-Z_]+) to (?P<new>[A-Z_]+) on (?P<event>[A-Z_]+)(?: \(.*\))?")
_BEST = re.compile(_TAG + r"selected (?:best \S+ clock|(?P<local>local clock)) (?P<identity>[0-9a-f.]+).*")
_CLOCK = re.compile(_TAG + r"(?P<verb>selected|Switched to) (?P<device>/dev/ptp\d+) as PTP clock")
_CHECK = re.compile(_TAG + r"clockcheck: clock (?P<what>jumped (?:forward|backward)|frequency changed).*")

#: The beginning of a message that is read; where the rest does not follow, the line was cut or mixed with another.
_BEGUN = re.compile(
    r".*\b(?:master|server|source|phc|sys|pps) offset.*|(?:.*\s)?offset(?:\s+[+-]?\d.*)?|.*\bfreq\b.*\bdelay\b.*|"
    r".*\brms\s.*|.*\bport \d+ ?(?:\([^()]*\))?: [A-Z_]+ to\b.*|.*\bport \d+(?: \([^)]*)?|"
    r".*[A-Z_]{4,} to [A-Z_]{4,} on [A-Z_]+.*"
)
_SERVO = re.compile(r"\boffset\s+-?\d+ s(?P<servo>[0-3]) ")

#: ptp4l pads the path delay to at least this width, so a shorter field may have lost digits.
_DELAY_WIDTH = {"path delay": 9, "delay": 6}

_STATES = {state.name: state for state in PortState} | {"GRAND_MASTER": PortState.MASTER}


class Measurement(NamedTuple):
    """
    ptp4l: the clock minus the master, and the path delay. phc2sys: the clock `sink` minus the clock `source`, and the
    width of the reading. In nanoseconds; `freq_ppb` as printed, positive = the clock runs fast and is slowed by it.
    """

    offset_ns: int
    servo: int
    freq_ppb: int
    delay_ns: int | None
    sink: str | None = None
    port: int | None = None
    is_padded: bool = True


class OffsetSummary(NamedTuple):
    """The root mean square of many measurements, in place of each one."""

    sink: str | None = None


class Transition(NamedTuple):
    """A port changes its state. Port 0 is the management socket."""

    port: int
    interface: str | None
    old: PortState
    new: PortState


class BestMaster(NamedTuple):
    """The best master's clock identity; None: the clock itself."""

    identity: str | None


class ClockSelected(NamedTuple):
    """The PTP hardware clock that is steered; `is_switch`: in place of another one."""

    device: str
    is_switch: bool


class ClockCheck(NamedTuple):
    """Something else stepped the clock, or set its frequency."""

    is_jump: bool


class Unreadable(NamedTuple):
    """The message is cut or garbled. `may_hide_step`: the state of the servo is not legible, so it may be s1."""

    may_hide_step: bool


Message = Measurement | OffsetSummary | Transition | BestMaster | ClockSelected | ClockCheck | Unreadable


def parse_ptp4l(text: str) -> tuple[Message | None, str]:
    """The message and its tag; None: one that says nothing of the clock."""
    if (found := _whole(_PTP4L, text)) is not None:
        return _measurement(found, None, "path delay"), _tag(found)
    return _common(text)


def parse_phc2sys(text: str) -> tuple[Message | None, str]:
    """The message and its tag; None: one that says nothing of the clock."""
    if (found := _whole(_PHC2SYS, text)) is not None:
        return _measurement(found, found["sink"] or "", "delay"), _tag(found)
    return _common(text)


def _measurement(found: re.Match[str], sink: str | None, delay: str) -> Measurement:
    groups = found.groupdict()
    return Measurement(
        offset_ns=int(found["offset"]),
        servo=int(found["servo"]),
        freq_ppb=int(found["freq"]),
        delay_ns=None if found["delay"] is None else int(found["delay"]),
        sink=sink,
        port=int(groups["port"]) if groups.get("port") else None,
        is_padded=found["field"] is not None and len(found["field"]) > _DELAY_WIDTH[delay],
    )


def _whole(form: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = form.fullmatch(text)
    return None if found is None or (found["tag"] and _NO_TAG.search(found["tag"])) else found


def _common(text: str) -> tuple[Message | None, str]:
    if (found := _whole(_TRANSITION, text)) is not None:
        old, new = _STATES.get(found["old"]), _STATES.get(found["new"])
        if old is None or new is None:
            return Unreadable(True), _tag(found)
        return Transition(int(found["port"]), found["interface"], old, new), _tag(found)
    if (found := _whole(_SUMMARY, text)) is not None:
        return OffsetSummary(found["sink"]), _tag(found)
    if (found := _whole(_BEST, text)) is not None:
        return BestMaster(None if found["local"] else found["identity"]), _tag(found)
    if (found := _whole(_CLOCK, text)) is not None:
        return ClockSelected(found["device"], found["verb"] != "selected"), _tag(found)
    if (found := _whole(_CHECK, text)) is not None:
        return ClockCheck(found["what"].startswith("jumped")), _tag(found)
    return _unreadable(text), ""


def _unreadable(text: str) -> Unreadable | None:
    if not _BEGUN.fullmatch(text) and not "master offset".startswith(text):
        return None
    servos = {found["servo"] for found in _SERVO.finditer(text)}
    return Unreadable(not servos or "1" in servos or text.count("offset") > 1)


def _tag(found: re.Match[str]) -> str:
    return _LEVEL.sub("", found["tag"] or "")
