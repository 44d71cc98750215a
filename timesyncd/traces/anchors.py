"""Reads a trace's file of anchors, and rejects values that no clock can have shown."""

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

_MAX_NS = 2**63
_MAX_PPB = 1_000_000_000

#: The longest pause between the readings of two clocks for one anchor. A longer one means that the machine was
#: suspended.
MAX_READING_PAUSE_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class AnchorFile:
    """The process that recorded the anchors, and its anchors in the order of time (CLOCK_MONOTONIC)."""

    name: str
    owner: AnchorsHeader
    anchors: tuple[Anchor, ...]


def read_anchors(lines: Iterable[str], name: str) -> AnchorFile:
    """
    Read the lines of an anchor file. A line without a line end is the last one of a process that was killed, and is
    ignored. Raises TraceError, which names the file and the line.
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
        raise TraceError(f"{name}:1: the file is empty; the first line of an anchor file must be its header")
    return AnchorFile(name, owner, tuple(anchors))


def _object(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"the line is not valid JSON: {error.msg}") from error
    if not isinstance(fields, dict):
        raise TypeError("the line is not a JSON object")
    return fields


def _owner(fields: dict[str, Any]) -> AnchorsHeader:
    if fields.get("format") != FORMAT:
        raise ValueError(
            f"format is {str(fields.get('format'))[:40]!r}; the first line of an anchor file must have {FORMAT!r}"
        )
    if fields.get("version") != VERSION:
        raise ValueError(f"version is {str(fields.get('version'))[:40]}; this timesyncd reads version {VERSION}")
    owner = AnchorsHeader(**_typed(AnchorsHeader, fields))
    if not 0 <= owner.rank < owner.world_size or min(owner.attempt, owner.pid, owner.time_namespace) < 0:
        raise ValueError(
            f"rank {owner.rank} of {owner.world_size}, attempt {owner.attempt}, process {owner.pid}, time namespace "
            f"{owner.time_namespace}: "
            "the rank must be below the world size, and no number may be negative"
        )
    return owner


def _anchor(fields: dict[str, Any]) -> Anchor:
    parts = {
        which: ReferenceOffset(**_typed(ReferenceOffset, _part(fields.get(which), which))) for which in ("gm", "utc")
    }
    anchor = Anchor(**_typed(Anchor, fields | parts))
    if anchor.status not in ClockStatus.__members__:
        raise ValueError(f"status is {anchor.status[:40]!r}; it must be one of {', '.join(ClockStatus.__members__)}")
    times = (anchor.realtime_ns, anchor.monotonic_ns, anchor.raw_ns, anchor.realtime_ns - anchor.real_minus_boot_ns)
    if not all(0 < ns < _MAX_NS for ns in times):
        raise ValueError(
            f"a clock shows {next(ns for ns in times if not 0 < ns < _MAX_NS)} ns; it must be above 0 and below 2^63"
        )
    for part in parts.values():
        _check_part(part)
    annotated = (anchor.before_ns, anchor.after_ns)
    if None not in annotated and not 0 <= (anchor.before_ns or 0) <= (anchor.after_ns or 0) < _MAX_NS:
        raise ValueError(
            f"before_ns is {anchor.before_ns} and after_ns is {anchor.after_ns}; they must ascend, from 0 to below 2^63"
        )
    return anchor


def _part(found: Any, which: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"{which} is {str(found)[:40]!r}; it must be an object")
    return found


def _check_part(part: ReferenceOffset) -> None:
    if part.bound_ns is not None and not 0 <= part.bound_ns < _MAX_NS:
        raise ValueError(f"bound_ns is {part.bound_ns}; it must be from 0 to below 2^63, or null")
    if not (0 <= part.growth_ppb <= _MAX_PPB and 0 <= part.past_growth_ppb <= _MAX_PPB):
        raise ValueError(
            f"growth_ppb is {part.growth_ppb} and past_growth_ppb is {part.past_growth_ppb}; both must be from 0 to "
            "10^9"
        )
    if abs(part.offset_ns) >= _MAX_NS:
        raise ValueError(f"offset_ns is {part.offset_ns}; its magnitude must be below 2^63")


def _check_order(last_two: list[Anchor]) -> None:
    """CLOCK_MONOTONIC runs forward, and CLOCK_REALTIME at the same rate, except for steps and suspends."""
    for one, other in pairwise(last_two):
        if other.monotonic_ns <= one.monotonic_ns or other.raw_ns <= one.raw_ns:
            raise ValueError("CLOCK_MONOTONIC or CLOCK_MONOTONIC_RAW did not advance since the anchor before")
        stepped_ns = other.real_minus_boot_ns - one.real_minus_boot_ns
        slept_ns = suspended_ns(one, other)
        if slept_ns < -MAX_READING_PAUSE_NS:
            raise ValueError(
                f"CLOCK_REALTIME went back by {-slept_ns} ns more than its step of {stepped_ns} ns explains"
            )


def suspended_ns(one: Anchor, other: Anchor) -> int:
    """
    How long the machine was suspended between two anchors, in ns: CLOCK_BOOTTIME advanced, CLOCK_MONOTONIC did not.
    """
    boot_ns = (other.realtime_ns - other.real_minus_boot_ns) - (one.realtime_ns - one.real_minus_boot_ns)
    return boot_ns - (other.monotonic_ns - one.monotonic_ns)


def is_continuous(one: Anchor, other: Anchor) -> bool:
    """Whether neither a step of CLOCK_REALTIME nor a suspend occurred between two anchors."""
    stepped_ns = other.real_minus_boot_ns - one.real_minus_boot_ns
    return abs(stepped_ns) <= STEP_TOLERANCE_NS and suspended_ns(one, other) <= MAX_READING_PAUSE_NS


def _typed(model: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The model's fields, with its types. Other fields, as of a newer version, are ignored. Raises TypeError."""
    hints = get_type_hints(model)
    values: dict[str, Any] = {}
    for key, expected in hints.items():
        value = fields.get(key)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise TypeError(
                f"{key} is {str(value)[:40]!r}; it must be of type {getattr(expected, '__name__', str(expected))}"
            )
        values[key] = value
    return values
