"""
The truth of a claim, from the clocks' logs of two virtual machines. Pure.

All moments are on one scale: ticks of the host's counter (TSC). A guest's counter is the host's minus a constant, which
`CounterOffset` bounds; the constant changes with stop/cont and with a migration, so a machine has one for each piece of its run.
The grandmaster's time is the clock of its network card (PHC), minus the whole seconds of TAI - UTC.
A claim of the node's client is that the grandmaster's time lay in [earliest, latest] at the moment when a clock was read.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

TAI_MINUS_UTC_NS = 37_000_000_000

#: Two rows that are further apart than this have a gap between them, in which nothing is known.
GAP_NS = 200_000_000

#: The clocks in a row of `clocktruth log`, in their order; after them come the PHCs.
CLOCKS = ("realtime", "raw", "boottime", "phc")


class CounterOffset(NamedTuple):
    """The host's counter minus the guest's lies in [lowest, highest] ticks."""

    lowest: int
    highest: int


class Reading(NamedTuple):
    """A clock's value at the moment `at` (host ticks), which is known to +- `error` ticks."""

    at: float
    error: float
    ns: int


class Range(NamedTuple):
    """A moment lies in [low, high] ticks."""

    low: float
    high: float

    @property
    def width(self) -> float:
        return self.high - self.low


class Value(NamedTuple):
    """A clock's value lies in [low, high]. Integers: nanoseconds since 1970 have more digits than a float keeps."""

    low: int
    high: int


class Piece(NamedTuple):
    """Between these two moments of the guest's counter the constant is this one."""

    from_guest: int
    until_guest: int
    offset: CounterOffset


class Claim(NamedTuple):
    """
    A line of guest/claims.py. `clock` showed `reading_ns` while CLOCK_MONOTONIC_RAW went from `before_ns` to `after_ns`. The claim was
    made at `asked_ns` of that clock, and names the interval in which the grandmaster's time lay then; None: unknown, with the reason.
    """

    kind: str
    clock: str
    reading_ns: int
    before_ns: int
    after_ns: int
    asked_ns: int
    earliest: int | None
    latest: int | None
    status: str
    reason: str


class Verdict(Enum):
    """OPEN: the error of the truth leaves it open whether the claim holds. NO_TRUTH: nothing is known of that moment."""

    HELD = auto()
    MISSED = auto()
    OPEN = auto()
    UNKNOWN = auto()
    NO_TRUTH = auto()


class Moment(NamedTuple):
    """
    A claim beside the truth. `at` is the moment of which it is made, `asked_at` that at which it was made (host ticks).
    `offset_ns`: the middle of the interval minus the true time, +- `truth_error_ns`. `bound_ns` is half of the interval.
    """

    claim: Claim
    at: float
    asked_at: float
    verdict: Verdict
    offset_ns: float | None = None
    truth_error_ns: float | None = None
    bound_ns: float | None = None

    @property
    def missed_by_ns(self) -> float:
        """How far beyond the interval the truth is at least; 0: it may lie within."""
        if self.offset_ns is None or self.bound_ns is None or self.truth_error_ns is None:
            return 0.0
        return max(0.0, abs(self.offset_ns) - self.bound_ns - self.truth_error_ns)


class Series:
    """The readings of one clock, which runs as evenly between two readings as it does on both sides of them."""

    def __init__(self, readings: Sequence[Reading], ticks_per_ns: float) -> None:
        self.readings = readings
        self._at = [each.at for each in readings]
        self._ticks_per_ns = ticks_per_ns

    def value_at(self, at: float) -> Value | None:
        """The clock's value at a moment. None: outside of the log, or in a gap."""
        index = self._bracket(at)
        if index is None:
            return None
        first, second = self.readings[index - 1], self.readings[index]
        share = (at - first.at) / (second.at - first.at)
        ns = first.ns + round(share * (second.ns - first.ns))
        error_ns = math.ceil(max(first.error, second.error) / self._ticks_per_ns + self._bend_ns(index))
        return Value(ns - error_ns, ns + error_ns)

    def moment_of(self, ns: int, within: Range) -> Range:
        """When, within the given moments, the clock showed the value. It stays what was given where the clock jumped there."""
        index = self._bracket((within.low + within.high) / 2)
        if index is None:
            return within
        first, second = self.readings[index - 1], self.readings[index]
        if second.ns <= first.ns:
            return within
        at = first.at + (ns - first.ns) * (second.at - first.at) / (second.ns - first.ns)
        error = max(first.error, second.error) + self._bend_ns(index) * self._ticks_per_ns
        low, high = max(within.low, at - error), min(within.high, at + error)
        return Range(low, high) if low <= high else within

    def first_jump(self, within: Range, other: Series, least_ns: float) -> Range | None:
        """The first two readings between which this clock moved by at least so much against the other one."""
        for first, second in pairwise(self.readings):
            if second.at < within.low or first.at > within.high:
                continue
            others = other.value_at(first.at), other.value_at(second.at)
            if others[0] is None or others[1] is None:
                continue
            moved_ns = (others[1].low + others[1].high - others[0].low - others[0].high) / 2
            if abs(second.ns - first.ns - moved_ns) >= least_ns:
                return Range(first.at - first.error, second.at + second.error)
        return None

    def _bracket(self, at: float) -> int | None:
        index = bisect.bisect(self._at, at)
        if not 0 < index < len(self._at):
            return None
        gap = self._at[index] - self._at[index - 1]
        return None if gap > GAP_NS * self._ticks_per_ns else index

    def _bend_ns(self, index: int) -> float:
        """How far the clock may be off the straight line: its rates before and after differ, and it changed anywhere in between."""
        rates = [self._rate(each) for each in (index - 1, index, index + 1) if 0 < each < len(self.readings)]
        gap = self._at[index] - self._at[index - 1]
        return (max(rates) - min(rates)) * gap / 4

    def _rate(self, index: int) -> float:
        first, second = self.readings[index - 1], self.readings[index]
        return (second.ns - first.ns) / (second.at - first.at)


class ClockError(NamedTuple):
    """How far a clock is ahead of another one at a moment (host ticks); known to +- `known_to_ns`."""

    at: float
    error_ns: float
    known_to_ns: float


def errors_of(clock: Series, reference: Series) -> list[ClockError]:
    """At each reading of the clock; where nothing is known of the reference, none."""
    found = []
    for reading in clock.readings:
        own, other = clock.value_at(reading.at), reference.value_at(reading.at)
        if own is not None and other is not None:
            middle_ns = (own.low + own.high - other.low - other.high) / 2
            found.append(ClockError(reading.at, middle_ns, (own.high - own.low + other.high - other.low) / 2))
    return found


def ranges_beyond(errors: Sequence[ClockError], limit_ns: float) -> list[Range]:
    """From the last moment before at which a clock surely kept the limit to the first one after."""
    ranges: list[Range] = []
    kept = -math.inf
    beyond = False
    for each in errors:
        if abs(each.error_ns) + each.known_to_ns > limit_ns:
            beyond = True
            continue
        if beyond:
            ranges.append(Range(kept, each.at))
        kept, beyond = each.at, False
    return [*ranges, Range(kept, math.inf)] if beyond else ranges


class MachineLog:
    """The log of `clocktruth log` of one machine, on the host's scale. Rows that are not whole, or in no piece, are left out."""

    def __init__(self, lines: Iterable[str], pieces: Sequence[Piece]) -> None:
        whole = [[int(cell) for cell in cells] for line in lines if len(cells := line.split()) == 3 * len(CLOCKS)]
        rows = [
            row for row in whole if any(each.from_guest <= row[0] and row[-2] <= each.until_guest for each in pieces)
        ]
        self._pieces = pieces
        self.ticks_per_ns = _ticks_per_ns(rows)
        self.series = {
            clock: Series([self._reading(*row[3 * index : 3 * index + 3]) for row in rows], self.ticks_per_ns)
            for index, clock in enumerate(CLOCKS)
        }
        self._raw_ns = [row[5] for row in rows]
        self._raw = [self._reading(*row[3:6]) for row in rows]

    def _reading(self, before: int, after: int, ns: int) -> Reading:
        offset = next(each.offset for each in self._pieces if each.from_guest <= before and after <= each.until_guest)
        middle = (before + after) / 2 + (offset.lowest + offset.highest) / 2
        return Reading(middle, (after - before) / 2 + abs(offset.highest - offset.lowest) / 2, ns)

    def moment_of_raw(self, raw_ns: int) -> Range | None:
        """When CLOCK_MONOTONIC_RAW showed this: it runs evenly. None: outside of the log, or in a gap."""
        index = bisect.bisect(self._raw_ns, raw_ns)
        if not 0 < index < len(self._raw):
            return None
        first, second = self._raw[index - 1], self._raw[index]
        if second.at - first.at > GAP_NS * self.ticks_per_ns:
            return None
        at = first.at + (raw_ns - first.ns) * (second.at - first.at) / (second.ns - first.ns)
        error = max(first.error, second.error)
        return Range(at - error, at + error)


def _ticks_per_ns(rows: Sequence[Sequence[int]]) -> float:
    """By the guest's own CLOCK_MONOTONIC_RAW."""
    if len(rows) < 2:
        raise ValueError("a log of fewer than two rows")
    first, last = rows[0], rows[-1]
    return (last[3] - first[3]) / (last[5] - first[5])


def parse_claims(lines: Iterable[str]) -> list[Claim]:
    """Lines that are not whole are left out: the last one of a run may be cut off."""
    return [_claim(cells) for line in lines if len(cells := line.split()) == 10]


def _claim(cells: Sequence[str]) -> Claim:
    kind, clock, reading, before, after, asked, earliest, latest, status, reason = cells
    known = earliest != "-"
    return Claim(
        kind, clock, int(reading), int(before), int(after), int(asked), int(earliest) if known else None,
        int(latest) if known else None, status, reason,
    )  # fmt: skip


def judge(claims: Iterable[Claim], grandmaster: MachineLog, node: MachineLog) -> list[Moment]:
    """Each claim beside the truth. Claims of moments outside of the node's log are left out."""
    moments = []
    for claim in claims:
        before, after = node.moment_of_raw(claim.before_ns), node.moment_of_raw(claim.after_ns)
        asked = node.moment_of_raw(claim.asked_ns)
        if before is not None and after is not None and asked is not None:
            within = Range(before.low, after.high)
            moments.append(_judged(claim, within, asked.high, grandmaster, node))
    return moments


def _judged(claim: Claim, within: Range, asked_at: float, grandmaster: MachineLog, node: MachineLog) -> Moment:
    at = (within.low + within.high) / 2
    if claim.earliest is None or claim.latest is None:
        return Moment(claim, at, asked_at, Verdict.UNKNOWN)
    when = node.series[claim.clock].moment_of(claim.reading_ns, within)
    low, high = (grandmaster.series["phc"].value_at(end) for end in when)
    if low is None or high is None:
        return Moment(claim, at, asked_at, Verdict.NO_TRUTH)
    truth = Value(low.low - TAI_MINUS_UTC_NS, high.high - TAI_MINUS_UTC_NS)
    offset_ns = (claim.earliest + claim.latest - truth.low - truth.high) / 2
    bound_ns, error_ns = (claim.latest - claim.earliest) / 2, (truth.high - truth.low) / 2
    verdict = _verdict(claim.earliest, claim.latest, truth)
    return Moment(claim, (when.low + when.high) / 2, asked_at, verdict, offset_ns, error_ns, bound_ns)


def _verdict(earliest: int, latest: int, truth: Value) -> Verdict:
    if latest < truth.low or earliest > truth.high:
        return Verdict.MISSED
    return Verdict.HELD if earliest <= truth.low and truth.high <= latest else Verdict.OPEN
