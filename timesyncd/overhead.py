"""What synchronization costs a job, from the marks of its ranks: waits, skew, transfer, exposed time, the slow rank."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from timesyncd.clocks import STEP_TOLERANCE_NS

#: How finely a rank reads its clock: the time from the event to the reading, and the clock's own granularity.
READING_GRANULARITY_NS = 1_000

#: The chance, for a job whose ranks are all equally likely to be last, that any of them is called slow in one window.
FALSE_ALARM = 0.001

#: A pause lasts for several steps, so that few steps in a row are not independent: fewer than these name nobody.
MIN_CONCLUSIVE_STEPS = 10


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    One rank's part in one synchronization, in nanoseconds of its own CLOCK_REALTIME.

    Ranks with an equal `clock` read one clock; None = that clock was stepped near this mark, so it compares with nothing.
    `error_ns`: the clock is within +- this of a reference that all ranks of the synchronization share; None = unknown.
    """

    clock: str | None
    real_minus_boot_ns: int
    arrival_ns: int
    end_ns: int
    error_ns: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    The arrivals of all ranks, side by side. `waits_ns` and `lateness_ns` are by rank: the wait lasts until the last
    arrival; lateness is against the median arrival (positive = later). `error_ns`: every difference between two ranks, and
    so the skew, is true within +- this. `last_rank` None = inconclusive.
    """

    waits_ns: Mapping[int, int]
    lateness_ns: Mapping[int, int]
    skew_ns: int
    transfer_ns: int
    error_ns: int
    last_rank: int | None


@dataclass(frozen=True, slots=True)
class Sync:
    """
    One synchronization of a step. `kind` is the marks' own number for what it was. `comparison` None = a rank is missing, or
    the clocks do not compare.
    """

    step: int
    sync: int
    kind: int
    arrivals: Mapping[int, Arrival]
    comparison: Comparison | None


@dataclass(frozen=True, slots=True)
class RankWindow:
    """One rank over the comparable steps of a window; `last_share` of its conclusive steps (None: no such step)."""

    wait_p50_ns: int
    wait_total_ns: int
    lateness_p50_ns: int
    last_share: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """The signals over a window. `ranks` is empty, and the rest None, where nothing could be compared."""

    sync_overhead: float | None
    skew_p50_ns: int | None
    transfer_p50_ns: int | None
    conclusive_steps: int
    slow_rank: int | None
    ranks: Mapping[int, RankWindow]


def compare(arrivals: Mapping[int, Arrival]) -> Comparison | None:
    """Compare one synchronization's ranks; None when any two of them cannot be."""
    half_widths_ns = _half_widths_ns(arrivals)
    if half_widths_ns is None:
        return None
    times = sorted(arrival.arrival_ns for arrival in arrivals.values())
    last_ns, median_ns = times[-1], times[(len(times) - 1) // 2]
    return Comparison(
        waits_ns={rank: last_ns - arrival.arrival_ns for rank, arrival in arrivals.items()},
        lateness_ns={rank: arrival.arrival_ns - median_ns for rank, arrival in arrivals.items()},
        skew_ns=last_ns - times[0],
        transfer_ns=max(arrival.end_ns for arrival in arrivals.values()) - last_ns,
        error_ns=_largest_difference_error_ns(arrivals, half_widths_ns),
        last_rank=_last_rank(arrivals, half_widths_ns),
    )


def _half_widths_ns(arrivals: Mapping[int, Arrival]) -> dict[int, int] | None:
    """Each rank's clock error against what they all share; on one clock there is none. None = they do not compare."""
    by_clock: dict[str, list[Arrival]] = {}
    for arrival in arrivals.values():
        if arrival.clock is None or arrival.end_ns < arrival.arrival_ns:
            return None
        by_clock.setdefault(arrival.clock, []).append(arrival)
    if any(_stepped(group) for group in by_clock.values()):
        return None
    if len(by_clock) == 1:
        return dict.fromkeys(arrivals, 0)
    known = {rank: arrival.error_ns for rank, arrival in arrivals.items() if arrival.error_ns is not None}
    return known if len(known) == len(arrivals) else None


def _stepped(group: Sequence[Arrival]) -> bool:
    """Whether the clock that these marks share was set between them."""
    epochs = [arrival.real_minus_boot_ns for arrival in group]
    return max(epochs) - min(epochs) > STEP_TOLERANCE_NS


def _largest_difference_error_ns(arrivals: Mapping[int, Arrival], half_widths_ns: Mapping[int, int]) -> int:
    """Of the difference between any two ranks: the two widest clocks. The skew is such a difference, so it holds for it."""
    by_clock: dict[str | None, int] = {}
    for rank, arrival in arrivals.items():
        by_clock[arrival.clock] = max(by_clock.get(arrival.clock, 0), half_widths_ns[rank])
    widest = sorted(by_clock.values())[-2:]
    return READING_GRANULARITY_NS + (sum(widest) if len(widest) == 2 else 0)


def _last_rank(arrivals: Mapping[int, Arrival], half_widths_ns: Mapping[int, int]) -> int | None:
    """The rank whose lead over *every* other one exceeds the error of that difference: a third may have the wider error."""
    last = max(arrivals, key=lambda rank: arrivals[rank].arrival_ns)

    def surely_after(rank: int) -> bool:
        same_clock = arrivals[rank].clock == arrivals[last].clock
        error_ns = 0 if same_clock else half_widths_ns[rank] + half_widths_ns[last]
        return arrivals[last].arrival_ns - arrivals[rank].arrival_ns > READING_GRANULARITY_NS + error_ns

    others = [rank for rank in arrivals if rank != last]
    return last if others and all(map(surely_after, others)) else None


def summarize(syncs: Sequence[Sync]) -> Window:
    """The signals over these synchronizations, which are in the order of (step, sync)."""
    steps = [spokesman(group) for _, group in groupby(syncs, key=lambda sync: sync.step)]
    compared = [step.comparison for step in steps if step.comparison is not None]
    last_ranks = [comparison.last_rank for comparison in compared if comparison.last_rank is not None]
    skews = [comparison.skew_ns for comparison in compared]
    transfers = [comparison.transfer_ns for comparison in compared]
    return Window(
        sync_overhead=_sync_overhead(syncs),
        skew_p50_ns=percentile(skews, 50) if skews else None,
        transfer_p50_ns=percentile(transfers, 50) if transfers else None,
        conclusive_steps=len(last_ranks),
        slow_rank=slow_rank(last_ranks, max((len(c.waits_ns) for c in compared), default=0)),
        ranks=_rank_windows(compared, Counter(last_ranks)),
    )


def spokesman(syncs: Iterable[Sync]) -> Sync:
    """
    Of the synchronizations of one step (one or more) the one with the widest skew; one that compares before one that does not.

    After the first of them the ranks run level, and overlapping ones are late together: they are no further evidence, and
    their waits are the same wait.
    """
    return max(syncs, key=lambda sync: -1 if sync.comparison is None else sync.comparison.skew_ns)


def _rank_windows(compared: Sequence[Comparison], last_counts: Counter[int]) -> dict[int, RankWindow]:
    conclusive = last_counts.total()
    windows = {}
    for rank in sorted({rank for comparison in compared for rank in comparison.waits_ns}):
        mine = [comparison for comparison in compared if rank in comparison.waits_ns]
        waits = [comparison.waits_ns[rank] for comparison in mine]
        windows[rank] = RankWindow(
            wait_p50_ns=percentile(waits, 50),
            wait_total_ns=sum(waits),
            lateness_p50_ns=percentile([comparison.lateness_ns[rank] for comparison in mine], 50),
            last_share=last_counts[rank] / conclusive if conclusive else None,
        )
    return windows


def percentile(values: Sequence[int], percent: int) -> int:
    """The smallest of the values (one or more) that at least `percent` of a hundred do not exceed: the nearest rank."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def slow_rank(last_ranks: Sequence[int], world_size: int) -> int | None:
    """
    The rank that is last persistently: in more than half of at least `MIN_CONCLUSIVE_STEPS` conclusive steps, and so often
    that, were all ranks equally likely to be last, *any* of them would come to it with a chance below `FALSE_ALARM`
    (one-sided binomial test, multiplied by the number of ranks).
    """
    steps = len(last_ranks)
    if steps < MIN_CONCLUSIVE_STEPS or world_size < 2:
        return None
    rank, times = Counter(last_ranks).most_common(1)[0]
    persistent = 2 * times > steps and world_size * _binomial_tail(steps, times, 1 / world_size) < FALSE_ALARM
    return rank if persistent else None


def _binomial_tail(n: int, at_least: int, p: float) -> float:
    """P(X >= at_least) for X ~ Binomial(n, p), 0 < p < 1; by logarithms, since the coefficients overflow a float."""

    def log_mass(k: int) -> float:
        ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        return ways + k * math.log(p) + (n - k) * math.log1p(-p)

    return math.fsum(math.exp(log_mass(k)) for k in range(at_least, n + 1))


def _sync_overhead(syncs: Sequence[Sync]) -> float | None:
    """
    Time spent in synchronization over elapsed time, both summed over the ranks; None before any rank has two marks.

    Each rank's part is measured on its own clock, so no clock error enters, and it needs no PTP.
    """
    exposed_ns = elapsed_ns = 0
    for rank in {rank for sync in syncs for rank in sync.arrivals}:
        for run in _unbroken_runs(sync.arrivals.get(rank) for sync in syncs):
            exposed_ns += _exposed_ns(run)
            elapsed_ns += run[-1].arrival_ns - run[0].arrival_ns
    return exposed_ns / elapsed_ns if elapsed_ns > 0 else None


def _unbroken_runs(marks: Iterable[Arrival | None]) -> Iterator[list[Arrival]]:
    """A rank's marks, cut where one is missing and where the clock was stepped: time across a cut is not counted."""
    run: list[Arrival] = []
    for mark in marks:
        if mark is None or mark.clock is None or (run and _breaks(run[-1], mark)):
            if run:
                yield run
            run = []
        if mark is not None and mark.clock is not None:
            run.append(mark)
    if run:
        yield run


def _breaks(before: Arrival, after: Arrival) -> bool:
    return after.clock != before.clock or _stepped((before, after)) or after.arrival_ns < before.arrival_ns


def _exposed_ns(run: Sequence[Arrival]) -> int:
    """
    The time from the run's first arrival to its last that lies inside a synchronization. Synchronizations may overlap (the
    buckets of one step): time is counted once.
    """
    exposed_ns, covered_until_ns = 0, run[0].arrival_ns
    for mark in run[:-1]:
        end_ns = min(mark.end_ns, run[-1].arrival_ns)
        exposed_ns += max(0, end_ns - max(mark.arrival_ns, covered_until_ns))
        covered_until_ns = max(covered_until_ns, end_ns)
    return exposed_ns
