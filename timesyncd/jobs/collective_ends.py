"""
Aligns the clocks of a job's nodes by the job's own collectives: all ranks leave one at nearly the same time. For jobs
whose clocks have no bounds that suffice. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.ipc.job_datagram import Trait, kinds_with
from timesyncd.jobs.arrivals import READING_GRANULARITY_NS, Arrival, Sync, compare
from timesyncd.jobs.lateness import MIN_CONCLUSIVE_STEPS
from timesyncd.units import SIGMA_PER_MAD, percentile

NEEDS_ALL_RANKS = kinds_with(Trait.NEEDS_ALL_RANKS)

#: An assumption that cannot be measured without clocks: in the median two ranks leave a collective within one part in
#: so many of its shortest transfer.
ASYMMETRY_PART = 4

#: An uncertainty is so many standard errors wide, which holds 99.7 % of a Gaussian distribution.
_STANDARD_ERRORS = 3

#: The standard error at the ends of a line through the medians of two half-windows, relative to that of one mean of
#: all: sqrt(5) x sqrt(pi / 2).
_LINE = math.sqrt(5) * math.sqrt(math.pi / 2)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """
    One clock minus the reference clock, both CLOCK_BOOTTIME, as a line through two points, right within +-`error_ns`.
    This is a statistical uncertainty that rests on ASYMMETRY_PART, not a bound.

    The points are at times of the reference. The two clocks may differ by days: each node's CLOCK_BOOTTIME begins when
    it boots, and each time namespace has an offset of its own.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    error_ns: int

    def at(self, boottime_ns: int) -> int:
        """The offset at this time of the reference clock."""
        (first_ns, first_offset_ns), (second_ns, second_offset_ns) = self.first, self.second
        moved_ns = (boottime_ns - first_ns) * (second_offset_ns - first_offset_ns)
        return first_offset_ns + moved_ns // max(1, second_ns - first_ns)

    def at_own(self, boottime_ns: int) -> int:
        """
        The offset at this time of the clock itself. The line is of the reference's time, so its slope must not be
        multiplied by the difference of two uptimes: 2 ppm of 11 days are 1.9 s.
        """
        (first_ns, first_offset_ns), (second_ns, second_offset_ns) = self.first, self.second
        elapsed_ns = max(1, second_ns - first_ns)
        drifted_ns = second_offset_ns - first_offset_ns
        moved_ns = (boottime_ns - first_ns - first_offset_ns) * drifted_ns
        return first_offset_ns + moved_ns // max(1, elapsed_ns + drifted_ns)


@dataclass(frozen=True, slots=True)
class _Ending:
    """
    One collective: by clock the median end (CLOCK_BOOTTIME), and the shortest time that a rank was inside, on its own
    clock.
    """

    ends_ns: Mapping[str, int]
    transfer_ns: int


def aligned(syncs: Sequence[Sync], known_within_ns: int | None = None) -> list[Sync] | None:
    """
    The same synchronizations on the time axis of the clock that most ranks read, compared by the offsets that the
    collectives' ends give. None: too few collectives, one clock, or ends whose error is not below `known_within_ns`,
    the error of the clocks' own bounds.
    """
    offsets = clock_offsets(syncs)
    if not offsets or (known_within_ns is not None and _error_ns(offsets) >= known_within_ns):
        return None
    return [_on_one_axis(sync, offsets) for sync in syncs]


def _error_ns(offsets: Mapping[str, ClockOffset]) -> int:
    """The error of the difference between any two clocks."""
    return READING_GRANULARITY_NS + sum(sorted(offset.error_ns for offset in offsets.values())[-2:])


def clock_offsets(syncs: Sequence[Sync]) -> dict[str, ClockOffset]:
    """
    By clock; empty where any clock cannot be aligned. The collectives at one position of the step are one series. The
    series with the smallest error counts, which is that of the shortest collective: a barrier is better than a large
    all-reduce.
    """
    clocks = Counter(arrival.clock for sync in syncs for arrival in sync.arrivals.values() if arrival.clock is not None)
    if len(clocks) < 2:
        return {}
    reference = max(sorted(clocks), key=lambda clock: clocks[clock])
    series: dict[tuple[int, int], list[_Ending]] = {}
    for sync in syncs:
        if sync.kind in NEEDS_ALL_RANKS and (ending := _ending(sync)) is not None:
            series.setdefault((sync.kind, sync.sync), []).append(ending)
    offsets = {reference: ClockOffset((0, 0), (1, 0), 0)}
    for clock in clocks.keys() - {reference}:
        found = [offset for each in series.values() if (offset := _offset(each, clock, reference)) is not None]
        if not found:
            return {}
        offsets[clock] = min(found, key=lambda offset: offset.error_ns)
    return offsets


def _ending(sync: Sync) -> _Ending | None:
    by_clock: dict[str, list[int]] = {}
    for arrival in sync.arrivals.values():
        if arrival.clock is None or arrival.end_ns < arrival.arrival_ns:
            return None
        by_clock.setdefault(arrival.clock, []).append(arrival.end_ns - arrival.real_minus_boot_ns)
    transfer_ns = min(arrival.end_ns - arrival.arrival_ns for arrival in sync.arrivals.values())
    return _Ending({clock: percentile(ends, 50) for clock, ends in by_clock.items()}, transfer_ns)


def _offset(series: Iterable[_Ending], clock: str, reference: str) -> ClockOffset | None:
    both = [ending for ending in series if clock in ending.ends_ns and reference in ending.ends_ns]
    points = sorted((e.ends_ns[reference], e.ends_ns[clock] - e.ends_ns[reference]) for e in both)
    if len(points) < MIN_CONCLUSIVE_STEPS:
        return None
    half = len(points) // 2
    line = ClockOffset(_middle(points[:half]), _middle(points[half:]), 0)
    spread_ns = SIGMA_PER_MAD * percentile([abs(offset_ns - line.at(at_ns)) for at_ns, offset_ns in points], 50)
    random_ns = _STANDARD_ERRORS * _LINE * spread_ns / math.sqrt(len(points))
    transfer_ns = percentile([ending.transfer_ns for ending in both], 50)
    return replace(line, error_ns=round(random_ns) + transfer_ns // ASYMMETRY_PART + STEP_TOLERANCE_NS)


def _middle(points: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return percentile([at_ns for at_ns, _ in points], 50), percentile([offset_ns for _, offset_ns in points], 50)


def _on_one_axis(sync: Sync, offsets: Mapping[str, ClockOffset]) -> Sync:
    arrivals = {rank: _shifted(arrival, offsets) for rank, arrival in sync.arrivals.items()}
    return replace(sync, arrivals=arrivals, comparison=compare(arrivals))


def _shifted(arrival: Arrival, offsets: Mapping[str, ClockOffset]) -> Arrival:
    """
    The arrival on the reference's CLOCK_BOOTTIME, which is never stepped: a step of CLOCK_REALTIME changes nothing.
    """
    if arrival.clock is None:
        return arrival
    offset = offsets[arrival.clock]
    boottime_ns = arrival.arrival_ns - arrival.real_minus_boot_ns
    shift_ns = arrival.real_minus_boot_ns + offset.at_own(boottime_ns)
    return Arrival(
        clock=arrival.clock,
        real_minus_boot_ns=0,
        arrival_ns=arrival.arrival_ns - shift_ns,
        begin_ns=arrival.begin_ns - shift_ns,
        end_ns=arrival.end_ns - shift_ns,
        error_ns=offset.error_ns,
        bytes=arrival.bytes,
    )
