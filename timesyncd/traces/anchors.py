"""A side file of anchors, read back and checked: what no clock can have shown is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_type_hints

from timesyncd.bound import ClockStatus
from timesyncd.client.anchors import FORMAT, VERSION, Anchor, AnchorsHeader, ReferenceOffset
from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.errors import TraceError

_LARGEST = 2**63
_LARGEST_PPB = 1_000_000_000

#: Of a time read on two clocks one after the other, the pause between is at most this much, else the machine was suspended.
MAX_READING_PAUSE_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class AnchorFile:
    """Whose they are, and the anchors in the order of time (CLOCK_MONOTONIC)."""

    name: str
    owner: AnchorsHeader
    anchors: tuple[Anchor, ...]


def read_anchors(lines: Iterable[str], name: str) -> AnchorFile:
    """
    A line that lacks its end is the last, of a process that was killed, and counts for nothing. Raises TraceError, which names the
    file and the line.
    """
    number = 0
    owner: AnchorsHeader | None = None
    anchors: list[Anchor] = []
    try:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                break
            fields = _object(line)
            if owner is None:
                owner = _owner(fields)
            else:
                anchors.append(_anchor(fields))
                _check_order(anchors[-2:])
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceError(f"{name}:{number}: {error}") from error
    if owner is None:
        raise TraceError(f"{name}:1: no anchors: the first line says whose they are")
    return AnchorFile(name, owner, tuple(anchors))


def _object(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg}") from error
    if not isinstance(fields, dict):
        raise TypeError("no JSON object")
    return fields


def _owner(fields: dict[str, Any]) -> AnchorsHeader:
    if fields.get("format") != FORMAT:
        raise ValueError(f"no anchors: the first line has format {FORMAT!r}")
    if fields.get("version") != VERSION:
        raise ValueError(f"anchors of version {fields.get('version')!r}; this timesyncd reads {VERSION}")
    owner = AnchorsHeader(**_typed(AnchorsHeader, fields))
    if not 0 <= owner.rank < owner.world_size or min(owner.attempt, owner.pid, owner.time_namespace) < 0:
        raise ValueError(f"rank {owner.rank} of {owner.world_size}, process {owner.pid}: there is no such")
    return owner


def _anchor(fields: dict[str, Any]) -> Anchor:
    parts = {
        which: ReferenceOffset(**_typed(ReferenceOffset, _part(fields.get(which), which))) for which in ("gm", "utc")
    }
    anchor = Anchor(**_typed(Anchor, fields | parts))
    if anchor.status not in ClockStatus.__members__:
        raise ValueError(f"status = {anchor.status!r}: there is no such")
    times = (anchor.realtime_ns, anchor.monotonic_ns, anchor.raw_ns, anchor.realtime_ns - anchor.real_minus_boot_ns)
    if not all(0 < ns < _LARGEST for ns in times):
        raise ValueError("its clocks show a time that cannot be")
    for part in parts.values():
        _check_part(part)
    annotated = (anchor.before_ns, anchor.after_ns)
    if None not in annotated and not 0 <= (anchor.before_ns or 0) <= (anchor.after_ns or 0) < _LARGEST:
        raise ValueError("its annotation ends before it begins")
    return anchor


def _part(found: Any, which: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"{which}: an object is wanted")
    return found


def _check_part(part: ReferenceOffset) -> None:
    if part.bound_ns is not None and not 0 <= part.bound_ns < _LARGEST:
        raise ValueError(f"bound_ns = {part.bound_ns}: a bound is at least 0, or null")
    if not (0 <= part.growth_ppb <= _LARGEST_PPB and 0 <= part.past_growth_ppb <= _LARGEST_PPB):
        raise ValueError(f"growth_ppb = {part.growth_ppb}, past_growth_ppb = {part.past_growth_ppb}: from 0 to 10^9")
    if abs(part.offset_ns) >= _LARGEST:
        raise ValueError(f"offset_ns = {part.offset_ns} is out of range")


def _check_order(last_two: list[Anchor]) -> None:
    """CLOCK_MONOTONIC runs forward; CLOCK_REALTIME runs as fast, but for what steps and suspends tell."""
    for one, other in pairwise(last_two):
        if other.monotonic_ns <= one.monotonic_ns or other.raw_ns <= one.raw_ns:
            raise ValueError("CLOCK_MONOTONIC did not go on since the anchor before")
        stepped_ns = other.real_minus_boot_ns - one.real_minus_boot_ns
        slept_ns = suspended_ns(one, other)
        if slept_ns < -MAX_READING_PAUSE_NS:
            raise ValueError(f"CLOCK_REALTIME fell back by {-slept_ns} ns more than its step of {stepped_ns} ns")


def suspended_ns(one: Anchor, other: Anchor) -> int:
    """How long the machine was suspended between two anchors, in ns: CLOCK_BOOTTIME ran, CLOCK_MONOTONIC did not."""
    boot_ns = (other.realtime_ns - other.real_minus_boot_ns) - (one.realtime_ns - one.real_minus_boot_ns)
    return boot_ns - (other.monotonic_ns - one.monotonic_ns)


def is_continuous(one: Anchor, other: Anchor) -> bool:
    """Neither a step of CLOCK_REALTIME nor a suspend lies between."""
    stepped_ns = other.real_minus_boot_ns - one.real_minus_boot_ns
    return abs(stepped_ns) <= STEP_TOLERANCE_NS and suspended_ns(one, other) <= MAX_READING_PAUSE_NS


def _typed(model: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The model's fields, of its types; what it does not know counts for nothing, as of a newer version. Raises TypeError."""
    hints = get_type_hints(model)
    values: dict[str, Any] = {}
    for key, wanted in hints.items():
        value = fields.get(key)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise TypeError(f"{key} = {str(value)[:40]!r}: {getattr(wanted, '__name__', str(wanted))} is wanted")
        values[key] = value
    return values
