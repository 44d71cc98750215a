"""
Aligns the clocks of a job's nodes on what the job itself does: all ranks leave a collective at nearly the same time. For when no bound says how far
the clocks are apart. Pure.
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
from timesyncd.units import percentile

NEEDS_ALL_RANKS = kinds_with(Trait.NEEDS_ALL_RANKS)

#: Assumed, since it cannot be measured without clocks: in the median two ranks leave a collective within this part of its shortest transfer.
ASYMMETRY_PART = 4

#: Standard errors that an uncertainty is wide: 99.7 % of Gaussian ones.
_STANDARD_ERRORS = 3

#: The standard error of a line through two half-windows' medians, at its ends, against that of one mean of all: sqrt(5) x sqrt(pi / 2).
_LINE = math.sqrt(5) * math.sqrt(math.pi / 2)

_SIGMA_OF_MAD = 1.4826


@dataclass(frozen=True, slots=True)
class Offset:
    """
    One clock minus the reference clock, both CLOCK_BOOTTIME: a line through two points, and +- how much it may be wrong. `error_ns` is statistical, and rests on
    ASYMMETRY_PART: no bound.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    error_ns: int

    def at(self, boottime_ns: int) -> int:
        """At this moment of the reference clock."""
        (first_ns, first_offset_ns), (second_ns, second_offset_ns) = self.first, self.second
        moved_ns = (boottime_ns - first_ns) * (second_offset_ns - first_offset_ns)
        return first_offset_ns + moved_ns // max(1, second_ns - first_ns)


@dataclass(frozen=True, slots=True)
class _Ending:
    """One collective: the median end on each clock (CLOCK_BOOTTIME), and the shortest time that any rank was inside, on its own clock."""

    ends_ns: Mapping[str, int]
    transfer_ns: int


def aligned(syncs: Sequence[Sync], known_within_ns: int | None = None) -> list[Sync] | None:
    """
    The same synchronizations on the time axis of the clock that most ranks read, each compared by what the collectives' ends tell of the other
    clocks. None: too few of them, one clock, or the ends tell no more than the clocks, which are known to compare within so much.
    """
    offsets = clock_offsets(syncs)
    if not offsets or (known_within_ns is not None and _error_ns(offsets) >= known_within_ns):
        return None
    return [_on_one_axis(sync, offsets) for sync in syncs]


def _error_ns(offsets: Mapping[str, Offset]) -> int:
    """Of the difference between any two clocks."""
    return READING_GRANULARITY_NS + sum(sorted(offset.error_ns for offset in offsets.values())[-2:])


def clock_offsets(syncs: Sequence[Sync]) -> dict[str, Offset]:
    """
    By clock; empty where any clock cannot be aligned. The collectives at one place of the step are one series; of several series the one that tells best
    counts, which is the shortest collective's: a barrier tells more than a large all-reduce.
    """
    clocks = Counter(arrival.clock for sync in syncs for arrival in sync.arrivals.values() if arrival.clock is not None)
    if len(clocks) < 2:
        return {}
    reference = max(sorted(clocks), key=lambda clock: clocks[clock])
    series: dict[tuple[int, int], list[_Ending]] = {}
    for sync in syncs:
        if sync.kind in NEEDS_ALL_RANKS and (ending := _ending(sync)) is not None:
            series.setdefault((sync.kind, sync.sync), []).append(ending)
    offsets = {reference: Offset((0, 0), (1, 0), 0)}
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


def _offset(series: Iterable[_Ending], clock: str, reference: str) -> Offset | None:
    both = [ending for ending in series if clock in ending.ends_ns and reference in ending.ends_ns]
    points = sorted((e.ends_ns[reference], e.ends_ns[clock] - e.ends_ns[reference]) for e in both)
    if len(points) < MIN_CONCLUSIVE_STEPS:
        return None
    half = len(points) // 2
    line = Offset(_middle(points[:half]), _middle(points[half:]), 0)
    spread_ns = _SIGMA_OF_MAD * percentile([abs(offset_ns - line.at(at_ns)) for at_ns, offset_ns in points], 50)
    random_ns = _STANDARD_ERRORS * _LINE * spread_ns / math.sqrt(len(points))
    transfer_ns = percentile([ending.transfer_ns for ending in both], 50)
    return replace(line, error_ns=round(random_ns) + transfer_ns // ASYMMETRY_PART + STEP_TOLERANCE_NS)


def _middle(points: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return percentile([at_ns for at_ns, _ in points], 50), percentile([offset_ns for _, offset_ns in points], 50)


def _on_one_axis(sync: Sync, offsets: Mapping[str, Offset]) -> Sync:
    arrivals = {rank: _shifted(arrival, offsets) for rank, arrival in sync.arrivals.items()}
    return replace(sync, arrivals=arrivals, comparison=compare(arrivals))


def _shifted(arrival: Arrival, offsets: Mapping[str, Offset]) -> Arrival:
    """On the reference's CLOCK_BOOTTIME, which nobody sets, so that an hour's step of a clock changes nothing."""
    if arrival.clock is None:
        return arrival
    offset = offsets[arrival.clock]
    boottime_ns = arrival.arrival_ns - arrival.real_minus_boot_ns
    shift_ns = arrival.real_minus_boot_ns + offset.at(boottime_ns)
    return Arrival(
        clock=arrival.clock,
        real_minus_boot_ns=0,
        arrival_ns=arrival.arrival_ns - shift_ns,
        begin_ns=arrival.begin_ns - shift_ns,
        end_ns=arrival.end_ns - shift_ns,
        error_ns=offset.error_ns,
        bytes=arrival.bytes,
    )
