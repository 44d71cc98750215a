"""Findings about leap seconds: what is announced, whether it is due, and which sources contradict each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judgement
from timesyncd.messages.node import OK, GrandmasterState, NodeState, SourceState
from timesyncd.model.leap import (
    Leap,
    LeapTable,
    doubt_text,
    end_of_day_s,
    end_of_half_year_s,
    end_of_month_s,
    when_text,
)

#: For so long after midnight a flag may still be set: Announce clears it within two intervals, an NTP server with its next reply.
CLEARED_WITHIN_NS = 120 * NS_PER_S

#: In the last hour of the day every clock announces a leap second: PTP from 12 hours before on, NTP at least that day.
EVERYONE_KNOWS_S = 3_600

_LEAPS = {leap.value: leap for leap in Leap}


@dataclass(frozen=True, slots=True)
class LeapClaim:
    """What one clock says of the midnight `at_s` (Unix time); `speaker` names it in a sentence."""

    subject: str
    speaker: str
    kind: str
    leap: Leap
    at_s: int


def leap_findings(
    node: NodeState, grandmasters: Sequence[GrandmasterState], table: LeapTable | None, realtime_ns: int
) -> dict[tuple[str, str], Judgement]:
    """By (id, subject): of this node's sources, and of the `grandmasters` that this daemon polls."""
    own = [claim for source in node.sources if (claim := _of_source(node, source, realtime_ns)) is not None]
    polled = [claim for each in grandmasters if (claim := _of_grandmaster(each, realtime_ns)) is not None]
    found: dict[tuple[str, str], str] = {}
    for claim in own:
        if claim.leap is not Leap.NONE and claim.kind != "kernel":
            found["leap-announced", claim.subject] = f"{claim.speaker} announces: {when_text(claim.leap, claim.at_s)}"
    for claim in (*own, *polled):
        if claim.leap is not Leap.NONE and (doubt := doubt_text(claim.leap, claim.at_s, table)):
            found["leap-unexpected", claim.subject] = f"{claim.speaker}: {when_text(claim.leap, claim.at_s)}; {doubt}"
    followed = [claim for claim in polled if claim.subject == node.grandmaster]
    if contradiction := contradiction_text([*own, *followed], table, realtime_ns):
        found["leap-contradiction", node.node] = contradiction
    return {key: Judgement(evidence) for key, evidence in found.items()}


def contradiction_text(claims: Sequence[LeapClaim], table: LeapTable | None, realtime_ns: int) -> str | None:
    """How the clocks contradict each other; None where all can be right."""
    said = {claim.leap for claim in claims}
    announced = said - {Leap.NONE}
    if not announced:
        return None
    is_contradiction = Leap.BOTH in announced or len(announced) > 1
    speakers = [
        claim for claim in claims if not (claim.leap is Leap.NONE and not _must_know(claim, claims, table, realtime_ns))
    ]
    if not is_contradiction and len({claim.leap for claim in speakers}) < 2:
        return None
    return ", ".join(f"{claim.speaker}: {_said(claim.leap)}" for claim in speakers)


def _must_know(claim: LeapClaim, claims: Sequence[LeapClaim], table: LeapTable | None, realtime_ns: int) -> bool:
    """
    Whether a clock that announces nothing contradicts those that do. A kernel is armed on the last day, if at all. Clocks announce
    a leap second hours, days or months ahead, so one that is due is a contradiction in the last hour only.
    """
    if claim.kind == "kernel":
        return False
    announcing = [other for other in claims if other.leap is not Leap.NONE]
    is_due = any(table is not None and table.change_at(other.at_s) == other.leap.change_s for other in announcing)
    seconds_left = min(other.at_s for other in announcing) - realtime_ns // NS_PER_S
    return not is_due or 0 <= seconds_left < EVERYONE_KNOWS_S


def _said(leap: Leap) -> str:
    return {Leap.NONE: "no leap second", Leap.BOTH: "insert and delete at once"}.get(leap, f"{leap} a second")


def _of_source(node: NodeState, source: SourceState, realtime_ns: int) -> LeapClaim | None:
    """What a source with a fresh sample says."""
    leap = _LEAPS.get(source.leap or "")
    if leap is None or source.reason_code != OK:
        return None
    day_s, month_s = _day_end_s(realtime_ns), _month_end_s(realtime_ns)
    if source.kind == "ptp":
        return LeapClaim(source.name, f"Announce of {source.grandmaster_identity} ({source.name})", "ptp", leap, day_s)
    if source.kind == "utc":
        return LeapClaim(source.name, f"the NTP daemon ({source.name})", "utc", leap, month_s)
    return LeapClaim(node.node, "the kernel", "kernel", leap, day_s)


def _of_grandmaster(grandmaster: GrandmasterState, realtime_ns: int) -> LeapClaim | None:
    leap = _LEAPS.get(grandmaster.leap or "")
    if leap is None or not grandmaster.reachable:
        return None
    name = grandmaster.name
    return LeapClaim(name, f"{name} itself", "grandmaster", leap, half_year_end_s(realtime_ns))


def _day_end_s(realtime_ns: int) -> int:
    """The midnight that a flag means: the one that has just passed, while the flag may not be cleared yet."""
    return end_of_day_s(realtime_ns - CLEARED_WITHIN_NS)


def half_year_end_s(realtime_ns: int) -> int:
    """GNSS announces a leap second months ahead, and a grandmaster does not report the day: it is the usual one."""
    return end_of_half_year_s(realtime_ns - CLEARED_WITHIN_NS)


def _month_end_s(realtime_ns: int) -> int:
    return end_of_month_s(realtime_ns - CLEARED_WITHIN_NS)


def kernel_leap_text(leap: str, realtime_ns: int) -> str | None:
    """The evidence that a leap second is armed in the kernel; None where none is."""
    armed = _LEAPS.get(leap, Leap.NONE)
    if armed is Leap.NONE:
        return None
    at_s = end_of_day_s(realtime_ns)
    parts = (when_text(armed, at_s), "CLOCK_REALTIME steps by it", doubt_text(armed, at_s, None))
    return "; ".join(part for part in parts if part)
