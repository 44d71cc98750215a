"""
The ranks' arrivals at a synchronization, compared: waits, skew, transfer, the last rank, and the window over many
steps. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.ipc.wire_types import MAX_VARIANCE_NS2
from timesyncd.units import median, percentile

#: How precisely a rank reads its clock: the time from the event to the reading, and the clock's own granularity.
READING_GRANULARITY_NS = 1_000

#: A time that an accelerator stamped may be wrong by so much more. No mark says whether it is one, so no `error_ns`
#: includes it.
DEVICE_ERROR_NS = 100_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    One rank's part in one synchronization, in nanoseconds of its own CLOCK_REALTIME: it was ready at `arrival_ns`, and
    from `begin_ns` to `end_ns` it only waited.

    Ranks with an equal `clock` read one clock. None: that clock was stepped near this mark, so it compares with no
    other. `error_ns`: the clock is within +- this of a reference that all ranks of the synchronization share; None:
    unknown.
    """

    clock: str | None
    real_minus_boot_ns: int
    arrival_ns: int
    begin_ns: int
    end_ns: int
    error_ns: int | None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepMark:
    """
    One rank's step, in nanoseconds of its own CLOCK_REALTIME: it began at `arrival_ns`, its last own gradient was ready
    at `ready_ns` (None: unknown), and its parameters were updated at `end_ns`. `step` is a key.
    """

    step: int
    arrival_ns: int
    ready_ns: int | None
    end_ns: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    The arrivals of all ranks of a synchronization, compared. `waits_ns` and `lateness_ns` are by rank. A wait lasts
    until the last arrival, or until the rank's own end where that is earlier. Lateness is the arrival minus the (lower)
    median arrival: positive, the rank is late. `error_ns`: every difference between two ranks, and so the skew, is
    right within +- this. `last_rank` None: inconclusive.

    `late_ranks` arrived after the median arrival, at most half of all; `surely_late_ranks` did so beyond all error. The
    variances are over the ranks. `margin_ns` is the least time from any rank's arrival to any other's end, as long as
    the errors allow: negative, a rank left before another arrived.
    """

    waits_ns: Mapping[int, int]
    lateness_ns: Mapping[int, int]
    skew_ns: int
    transfer_ns: int
    error_ns: int
    last_rank: int | None
    late_ranks: tuple[int, ...]
    surely_late_ranks: tuple[int, ...]
    arrival_variance_ns2: float
    end_variance_ns2: float
    margin_ns: int


@dataclass(frozen=True, slots=True)
class Sync:
    """
    One synchronization of a step, joined over the ranks. `kind` is a number of `ipc.job_datagram.Kind`. `comparison`
    None: a rank is missing, or the clocks do not compare. `step` is a key.
    """

    step: int
    sync: int
    kind: int
    arrivals: Mapping[int, Arrival]
    comparison: Comparison | None


@dataclass(frozen=True, slots=True)
class RankWindow:
    """
    One rank over the compared steps of a window. It was last in `last_share` of its conclusive steps (None: no such
    step).
    """

    wait_p50_ns: int
    wait_p99_ns: int
    wait_total_ns: int
    lateness_p50_ns: int
    last_share: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """The arrivals of a window, summarized. `ranks` is empty, and the rest None, where no synchronization compares."""

    skew_p50_ns: int | None
    skew_p99_ns: int | None
    transfer_p50_ns: int | None
    transfer_p99_ns: int | None
    arrival_variance_ns2: float | None
    end_variance_ns2: float | None
    conclusive_steps: int
    ranks: Mapping[int, RankWindow]


def compare(arrivals: Mapping[int, Arrival]) -> Comparison | None:
    """Compare the ranks of one synchronization; None: two of them do not compare."""
    half_widths_ns = half_widths(arrivals)
    if half_widths_ns is None:
        return None
    times = sorted(arrival.arrival_ns for arrival in arrivals.values())
    ends = [arrival.end_ns for arrival in arrivals.values()]
    last_ns, median_ns = times[-1], times[(len(times) - 1) // 2]
    lateness_ns = {rank: arrival.arrival_ns - median_ns for rank, arrival in arrivals.items()}
    return Comparison(
        waits_ns={rank: min(last_ns, each.end_ns) - each.arrival_ns for rank, each in arrivals.items()},
        lateness_ns=lateness_ns,
        skew_ns=last_ns - times[0],
        transfer_ns=max(ends) - last_ns,
        error_ns=_largest_difference_error_ns(arrivals, half_widths_ns),
        last_rank=_last_rank(arrivals, half_widths_ns),
        late_ranks=tuple(rank for rank, late_ns in lateness_ns.items() if late_ns > 0),
        surely_late_ranks=_surely_late(arrivals, half_widths_ns),
        arrival_variance_ns2=_variance(times),
        end_variance_ns2=_variance(ends),
        margin_ns=min(arrival.end_ns + half_widths_ns[rank] for rank, arrival in arrivals.items())
        - max(arrival.arrival_ns - half_widths_ns[rank] for rank, arrival in arrivals.items()),
    )


def half_widths(arrivals: Mapping[int, Arrival]) -> dict[int, int] | None:
    """Each rank's clock error against the reference that all share, 0 on one clock. None: they do not compare."""
    by_clock: dict[str, list[Arrival]] = {}
    for arrival in arrivals.values():
        if arrival.clock is None or arrival.end_ns < arrival.arrival_ns:
            return None
        by_clock.setdefault(arrival.clock, []).append(arrival)
    if any(stepped(group) for group in by_clock.values()):
        return None
    if len(by_clock) == 1:
        return dict.fromkeys(arrivals, 0)
    known = {rank: arrival.error_ns for rank, arrival in arrivals.items() if arrival.error_ns is not None}
    return known if len(known) == len(arrivals) else None


def stepped(group: Sequence[Arrival]) -> bool:
    """Whether the clock that these marks share was stepped between them."""
    epochs = [arrival.real_minus_boot_ns for arrival in group]
    return max(epochs) - min(epochs) > STEP_TOLERANCE_NS


def _largest_difference_error_ns(arrivals: Mapping[int, Arrival], half_widths_ns: Mapping[int, int]) -> int:
    """The error of the difference between any two ranks, by the two widest clocks. The skew is such a difference."""
    by_clock: dict[str | None, int] = {}
    for rank, arrival in arrivals.items():
        by_clock[arrival.clock] = max(by_clock.get(arrival.clock, 0), half_widths_ns[rank])
    widest = sorted(by_clock.values())[-2:]
    return READING_GRANULARITY_NS + (sum(widest) if len(widest) == 2 else 0)


def _last_rank(arrivals: Mapping[int, Arrival], half_widths_ns: Mapping[int, int]) -> int | None:
    """
    The rank that arrived after *every* other one by more than the error of that difference: a third may have the widest
    error.
    """
    last = max(arrivals, key=lambda rank: arrivals[rank].arrival_ns)

    def surely_after(rank: int) -> bool:
        same_clock = arrivals[rank].clock == arrivals[last].clock
        error_ns = 0 if same_clock else half_widths_ns[rank] + half_widths_ns[last]
        return arrivals[last].arrival_ns - arrivals[rank].arrival_ns > READING_GRANULARITY_NS + error_ns

    others = [rank for rank in arrivals if rank != last]
    return last if others and all(map(surely_after, others)) else None


def _surely_late(arrivals: Mapping[int, Arrival], half_widths_ns: Mapping[int, int]) -> tuple[int, ...]:
    """
    The ranks that arrived after half of all, wherever the clocks are within their errors. Two ranks of one clock
    compare better than this assumes, so it errs towards fewer ranks.
    """
    latest = sorted(arrival.arrival_ns + half_widths_ns[rank] for rank, arrival in arrivals.items())
    half_arrived_ns = latest[(len(latest) - 1) // 2] + READING_GRANULARITY_NS
    return tuple(
        rank for rank, arrival in arrivals.items() if arrival.arrival_ns - half_widths_ns[rank] > half_arrived_ns
    )


def _variance(times_ns: Sequence[int]) -> float:
    """
    The variance in ns^2 of the whole set, at most what a message holds: ranks that lie may be further apart after their
    alignment. In integers: squares of epoch nanoseconds exceed a float's precision.
    """
    first_ns, count = min(times_ns), len(times_ns)
    offsets = [time_ns - first_ns for time_ns in times_ns]
    return min((count * sum(offset * offset for offset in offsets) - sum(offsets) ** 2) / count**2, MAX_VARIANCE_NS2)


def summarize(syncs: Sequence[Sync]) -> Window:
    """Summarize synchronizations, which are in the order of (step, sync)."""
    steps = [widest_skew_sync(group) for _, group in groupby(syncs, key=lambda sync: sync.step)]
    compared = [step.comparison for step in steps if step.comparison is not None]
    last_ranks = [comparison.last_rank for comparison in compared if comparison.last_rank is not None]
    skews = [comparison.skew_ns for comparison in compared]
    transfers = [comparison.transfer_ns for comparison in compared]
    return Window(
        skew_p50_ns=median(skews),
        skew_p99_ns=percentile(skews, 99) if skews else None,
        transfer_p50_ns=median(transfers),
        transfer_p99_ns=percentile(transfers, 99) if transfers else None,
        arrival_variance_ns2=_mean([comparison.arrival_variance_ns2 for comparison in compared]),
        end_variance_ns2=_mean([comparison.end_variance_ns2 for comparison in compared]),
        conclusive_steps=len(last_ranks),
        ranks=_rank_windows(compared, Counter(last_ranks)),
    )


def widest_skew_sync(syncs: Iterable[Sync]) -> Sync:
    """
    The synchronization of one step (one or more) with the widest skew; any that compares precedes those that do not.

    After the first synchronization the ranks run level, and overlapping ones are late together. So the others are no
    further evidence, and their waits are the same wait.
    """
    return max(syncs, key=lambda sync: -1 if sync.comparison is None else sync.comparison.skew_ns)


def step_ns(syncs: Sequence[Sync]) -> int | None:
    """The median time from a step's first arrival to that of the next, of the first rank; None: unknown."""
    firsts = [next(iter(step)).arrivals for _, step in groupby(syncs, key=lambda sync: sync.step)]
    rank = min((rank for arrivals in firsts[:1] for rank in arrivals), default=0)
    times = [arrivals[rank].arrival_ns for arrivals in firsts if rank in arrivals]
    return median([after - before for before, after in pairwise(times) if after > before])


def _rank_windows(compared: Sequence[Comparison], last_counts: Counter[int]) -> dict[int, RankWindow]:
    conclusive = last_counts.total()
    windows = {}
    for rank in sorted({rank for comparison in compared for rank in comparison.waits_ns}):
        mine = [comparison for comparison in compared if rank in comparison.waits_ns]
        waits = [comparison.waits_ns[rank] for comparison in mine]
        windows[rank] = RankWindow(
            wait_p50_ns=percentile(waits, 50),
            wait_p99_ns=percentile(waits, 99),
            wait_total_ns=sum(waits),
            lateness_p50_ns=percentile([comparison.lateness_ns[rank] for comparison in mine], 50),
            last_share=last_counts[rank] / conclusive if conclusive else None,
        )
    return windows


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
