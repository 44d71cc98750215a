"""What synchronization costs a job, from the marks of its ranks: waits, skew, transfer, who was late, and how often by chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby, pairwise

from timesyncd.clocks import STEP_TOLERANCE_NS
from timesyncd.units import median, percentile

#: How finely a rank reads its clock: the time from the event to the reading, and the clock's own granularity.
READING_GRANULARITY_NS = 1_000

#: A moment that an accelerator stamped may be told wrong by so much more. No mark says whether it is one, so that no `error_ns` holds it.
DEVICE_ERROR_NS = 100_000

#: The chance, for a job whose ranks are all alike, that any of them is called a straggler in one window.
FALSE_ALARM = 0.001

#: A pause lasts for several steps, so that few steps in a row are not independent: fewer than these name nobody.
MIN_CONCLUSIVE_STEPS = 10

#: From step to step the lateness of ranks correlates by so much where their job does not show by how much: its weight is that of so many steps of one rank.
PRIOR_CORRELATION = 0.3
_PRIOR_STEPS = 2.5


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    One rank's part in one synchronization, in nanoseconds of its own CLOCK_REALTIME: from `arrival_ns` it was ready, from `begin_ns`
    it did nothing but wait, until `end_ns`.

    Ranks with an equal `clock` read one clock; None = that clock was stepped near this mark, so it compares with nothing.
    `error_ns`: the clock is within +- this of a reference that all ranks of the synchronization share; None = unknown.
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
    One rank's step, in nanoseconds of its own CLOCK_REALTIME: it began at `arrival_ns`, the last own gradient was ready at `ready_ns` (None:
    not told), the parameters were updated at `end_ns`. `step` is a key.
    """

    step: int
    arrival_ns: int
    ready_ns: int | None
    end_ns: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """
    The arrivals of all ranks, side by side. `waits_ns` and `lateness_ns` are by rank: the wait lasts until the last
    arrival, or the rank's own end where it left before that; lateness is against the (lower) median arrival (positive = later). `error_ns`: every difference between two ranks, and
    so the skew, is true within +- this. `last_rank` None = inconclusive.

    `late_ranks` came after the median arrival, at most half of all; `surely_late_ranks` beyond all error after half of them.
    The variances are over the ranks. `margin_ns` is the least time from any rank's arrival to any other's end, as long as the errors allow:
    negative, somebody left before somebody else was there.
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
    One synchronization of a step. `kind` is the marks' own number for what it was. `comparison` None = a rank is missing, or
    the clocks do not compare. `step` is a key.
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
    wait_p99_ns: int
    wait_total_ns: int
    lateness_p50_ns: int
    last_share: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """What the arrivals of a window say. `ranks` is empty, and the rest None, where nothing could be compared."""

    skew_p50_ns: int | None
    skew_p99_ns: int | None
    transfer_p50_ns: int | None
    transfer_p99_ns: int | None
    arrival_variance_ns2: float | None
    end_variance_ns2: float | None
    conclusive_steps: int
    ranks: Mapping[int, RankWindow]


def compare(arrivals: Mapping[int, Arrival]) -> Comparison | None:
    """Compare one synchronization's ranks; None when any two of them cannot be."""
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
    """Each rank's clock error against what they all share; on one clock there is none. None = they do not compare."""
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


def _surely_late(arrivals: Mapping[int, Arrival], half_widths_ns: Mapping[int, int]) -> tuple[int, ...]:
    """
    The ranks that came after half of all, whatever the clocks did within their errors. That two ranks of one clock compare better is left
    out: it errs to naming fewer.
    """
    latest = sorted(arrival.arrival_ns + half_widths_ns[rank] for rank, arrival in arrivals.items())
    half_were_there_ns = latest[(len(latest) - 1) // 2] + READING_GRANULARITY_NS
    return tuple(
        rank for rank, arrival in arrivals.items() if arrival.arrival_ns - half_widths_ns[rank] > half_were_there_ns
    )


def _variance(times_ns: Sequence[int]) -> float:
    """In ns^2, of the whole set. In integers: squares of epoch nanoseconds leave a float's precision."""
    first_ns, count = min(times_ns), len(times_ns)
    offsets = [time_ns - first_ns for time_ns in times_ns]
    return (count * sum(offset * offset for offset in offsets) - sum(offsets) ** 2) / count**2


def summarize(syncs: Sequence[Sync]) -> Window:
    """What the arrivals say over these synchronizations, which are in the order of (step, sync)."""
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
    Of the synchronizations of one step (one or more) the one with the widest skew; one that compares before one that does not.

    After the first of them the ranks run level, and overlapping ones are late together: they are no further evidence, and
    their waits are the same wait.
    """
    return max(syncs, key=lambda sync: -1 if sync.comparison is None else sync.comparison.skew_ns)


def step_ns(syncs: Sequence[Sync]) -> int | None:
    """From a step's first arrival to the next one's, of the first rank, in the median."""
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


def is_persistent(times_late: int, steps: int, tests: int) -> bool:
    """
    Whether a rank that came after the median arrival in so many of these steps did so by more than chance: in a job whose ranks are all
    alike it does with a chance of at most 1/2, and the chance that *any* of as many `tests` (ranks times positions) comes to it must be below
    FALSE_ALARM (one-sided sign test, Bonferroni's correction). The steps are independent ones: see `independent`.
    """
    return steps >= MIN_CONCLUSIVE_STEPS and times_late >= _least_times(steps, tests)


def independent_part(late: Sequence[AbstractSet[int]]) -> float:
    """
    Of so many steps, in each of which these ranks came after the median: what part as many independent ones are that tell as much, 1 at most.

    1 / (1 + 2 x the sum of the correlations of the lateness over the lags): its integrated autocorrelation time (Sokal 1997), summed as long as
    the pairs of lags are positive (Geyer 1992), and at least the time of a first-order process with the correlation of lag 1. All ranks together: in a job whose
    ranks are all alike they share it. Where no rank is late now and then the window does not show it: then it is as PRIOR_CORRELATION says.
    """
    correlations = _correlations(late)
    first = next(correlations, 0.0)
    time = _geyer(chain([first], correlations), len(late) / MIN_CONCLUSIVE_STEPS)
    first = max(0.0, first)
    return min((1 - first) / (1 + first), 1 / time)


def _geyer(correlations: Iterator[float], enough: float) -> float:
    """The integrated autocorrelation time, 1 at least; from `enough` on it is not told how long it is."""
    time, even = 0.0, 1.0
    for odd in correlations:
        if even + odd <= 0:
            break
        time += 2 * (even + odd)
        if time - 1 >= enough:
            break
        even = next(correlations, 0.0)
    return max(1.0, time - 1)


def _correlations(late: Sequence[AbstractSet[int]]) -> Iterator[float]:
    """Lag by lag, up to a third of the steps: from that of the signs by the arcsine law (Van Vleck and Middleton 1966)."""
    steps = len(late)
    signs: dict[int, int] = {}
    for at, ranks in enumerate(late):
        for rank in ranks:
            signs[rank] = signs.get(rank, 0) | 1 << at
    apart = math.fsum(count * (1 - count / steps) for count in (each.bit_count() for each in signs.values()))
    for lag in range(1, steps // 3 + 1):
        together = math.fsum(_covariance(each, steps, lag) for each in signs.values()) * steps / (steps - lag)
        shown = (together + _PRIOR_STEPS * PRIOR_CORRELATION**lag) / (apart + _PRIOR_STEPS)
        yield math.sin(math.pi / 2 * min(1.0, max(-1.0, shown)))


def _covariance(signs: int, steps: int, lag: int) -> float:
    """Summed over the steps, of one rank's signs, which are bits."""
    mean = signs.bit_count() / steps
    before, after = signs & (1 << steps - lag) - 1, signs >> lag
    return (before & after).bit_count() - mean * (before.bit_count() + after.bit_count()) + mean**2 * (steps - lag)


def independent(times_late: int, steps: int, part: float) -> tuple[int, int]:
    """As `times_late` and `steps`, so many independent ones; whoever was late always still was."""
    whole = math.floor(part * steps)
    return whole - min(whole, math.ceil(part * (steps - times_late))), whole


@lru_cache(maxsize=1_024)
def _least_times(steps: int, tests: int) -> int:
    """The least number of times late that names a rank; more than `steps`: no number does. In integers: a float overflows."""
    limit = 2**steps
    ways = tail = 1
    for early in range(steps // 2 + 1):
        if tail * tests * _ONE_IN >= limit:
            return steps - early + 1
        ways = ways * (steps - early) // (early + 1)
        tail += ways
    return steps // 2 + 1


_ONE_IN = round(1 / FALSE_ALARM)
