"""
What the exposed synchronization time of a step consists of: waiting for ranks, latency, bandwidth, and a rest. Pure.

A transfer of b bytes takes alpha + beta * b (R. Hockney, "The communication challenge for MPP", Parallel Computing 20,
1994, eq. 1). Alpha and beta are fitted by the kind of synchronization, then the steps are replayed without beta's part,
without both parts, and without any transfer. The differences add up to the exposed time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Literal

from timesyncd.audit.buckets import BusyPeriod, ReductionCost, fit_cost
from timesyncd.audit.headline import short_duration
from timesyncd.audit.measured import Measured
from timesyncd.audit.remedies import StepTime, replay
from timesyncd.audit.timeline import RecordedStep, Run
from timesyncd.jobs.arrivals import Sync
from timesyncd.jobs.recording import positions, same_step

#: The largest and the smallest mean size of a fit differ by this factor at least.
_APART = 2

#: The steps are also fitted and replayed in so many parts; Student's 95 % quantile for one degree of freedom less.
_PARTS = 5
_STUDENT = 2.776
MIN_STEPS = 4 * _PARTS

#: A part of the exposed time above this share of it, by more than its error, is what limits the job.
_MOST = 0.5

Limit = Literal["waiting", "latency", "bandwidth", "unknown"]


@dataclass(frozen=True, slots=True)
class Duration:
    """A time in ns, and half of its 95 % interval."""

    ns: float
    error_ns: float


@dataclass(frozen=True, slots=True)
class KindCost:
    """
    A synchronization of this kind takes `latency` plus its bytes at `bytes_per_s`, which lies from `bytes_per_s_low` to
    `bytes_per_s_high` (None: without a limit). Fitted to `sizes` different sizes.
    """

    kind: int
    sizes: int
    latency: Duration
    bytes_per_s: float
    bytes_per_s_low: float
    bytes_per_s_high: float | None


@dataclass(frozen=True, slots=True)
class TransferSplit:
    """
    A step's exposed time in the mean of the ranks: `waiting`, `latency` and `bandwidth` and `rest` add up to it. The
    rest is what the fitted costs do not explain, and the transfers of kinds without a cost.

    `limit`: the part with more than half of it; "unknown": none for sure, for `reason`. `saved_by_bandwidth`: what a
    step would save if each link were twice as fast; `saved_by_latency`: if each latency were half as long.
    """

    exposed: Duration
    waiting: Duration
    latency: Duration
    bandwidth: Duration
    rest: Duration
    saved_by_bandwidth: Duration
    saved_by_latency: Duration
    costs: tuple[KindCost, ...]
    limit: Limit
    reason: str


@dataclass(frozen=True, slots=True)
class _Period:
    """From an idle link to an idle link, in a step: what was transferred, and of which kinds."""

    busy: BusyPeriod
    kinds: frozenset[int]


_Costs = Mapping[int, ReductionCost]
_Places = Mapping[str, tuple[int, int]]


def divide(now: Measured, runs: Sequence[Run]) -> TransferSplit | str:
    """
    The split, or the reason why there is none. `runs`: as `build.comparable_runs` gives them; empty: the ranks are not
    comparable.
    """
    if not runs:
        return "the ranks are not comparable, so waiting and transfer cannot be separated"
    steps = sum(len(run.steps) for run in runs)
    if steps < MIN_STEPS:
        return f"{steps} complete steps are too few: {MIN_STEPS} are needed"
    by_step = [list(_periods(step)) for _, step in same_step(now.aligned.syncs)]
    costs = fitted(_flat(by_step))
    parts = [fitted(_flat(by_step[_part(len(by_step), at)])) for at in range(_PARTS)]
    common = {kind: cost for kind, cost in costs.items() if all(kind in part for part in parts)}
    if not common:
        return (
            "no kind of synchronization was recorded in sizes that differ by a factor of two, so latency and bandwidth "
            "cannot be separated: record once with other sizes (bucket_cap_mb_list)"
        )
    places = _places(now)
    whole = _shares(runs, common, places)
    each = [_shares(some, part, places) for some, part in zip(_in_parts(runs), parts, strict=True)]
    return _split(whole, each, tuple(_kind_costs(by_step, common, parts)))


def fitted(periods: Sequence[_Period]) -> dict[int, ReductionCost]:
    """By kind, its cost from the periods of this kind alone; without the kinds whose sizes are too alike."""
    found = {}
    for kind in sorted({kind for period in periods for kind in period.kinds}):
        typical = _typical([period.busy for period in periods if period.kinds == {kind}])
        sizes = [each.mean_bytes for each in typical]
        if sizes and max(sizes) >= _APART * min(sizes):
            found[kind] = fit_cost(typical)
    return found


def _typical(periods: Sequence[BusyPeriod]) -> list[BusyPeriod]:
    """The median duration of each number of transfers and bytes: single queues on the network do not count."""
    took: dict[tuple[int, int], list[float]] = defaultdict(list)
    for period in periods:
        if period.bytes and period.took_ns > 0:
            took[period.buckets, period.bytes].append(period.took_ns)
    return [BusyPeriod(*size, median(found)) for size, found in took.items()]


def _periods(step: Sequence[Sync]) -> Iterator[_Period]:
    """The periods of one step in which at least one transfer is in progress: after the last arrival, until its end."""
    spans = sorted((max(a.arrival_ns for a in s.arrivals.values()), n) for n, s in enumerate(step) if s.arrivals)
    began_ns = until_ns = -math.inf
    group: list[Sync] = []
    for last_ns, number in spans:
        if last_ns >= until_ns and group:
            yield _period(group, until_ns - began_ns)
            group = []
        if not group:
            began_ns = until_ns = last_ns
        group.append(step[number])
        until_ns = max(until_ns, *(arrival.end_ns for arrival in step[number].arrivals.values()))
    if group:
        yield _period(group, until_ns - began_ns)


def _period(group: Sequence[Sync], took_ns: float) -> _Period:
    sizes = [max(arrival.bytes for arrival in sync.arrivals.values()) for sync in group]
    known = all(sizes)
    return _Period(BusyPeriod(len(group), sum(sizes) if known else 0, took_ns), frozenset(sync.kind for sync in group))


def _flat(by_step: Sequence[Sequence[_Period]]) -> list[_Period]:
    return [period for periods in by_step for period in periods]


def _part(length: int, at: int) -> slice:
    return slice(at * length // _PARTS, (at + 1) * length // _PARTS)


def _in_parts(runs: Sequence[Run]) -> list[list[Run]]:
    """The steps in equal parts, in order. The instants of a step count from its own begin, so any run may be cut."""
    found: list[list[Run]] = []
    steps = [(run, step) for run in runs for step in run.steps]
    for at in range(_PARTS):
        mine = steps[_part(len(steps), at)]
        found.append([Run(run.starts_ns, (step,)) for run, step in mine])
    return found


def _places(now: Measured) -> _Places:
    """By the place of a synchronization in a step: its kind, and its usual size."""
    sizes: dict[str, list[int]] = defaultdict(list)
    kinds: dict[str, int] = {}
    for _, step in same_step(now.aligned.syncs):
        for place, sync in zip(positions(step), step, strict=True):
            kinds[place] = sync.kind
            sizes[place].append(max((arrival.bytes for arrival in sync.arrivals.values()), default=0))
    return {place: (kind, round(median(sizes[place]))) for place, kind in kinds.items()}


@dataclass(frozen=True, slots=True)
class _Shares:
    """Of one step, in ns, in the mean of the ranks."""

    exposed: float
    waiting: float
    latency: float
    bandwidth: float
    rest: float
    saved_by_bandwidth: float
    saved_by_latency: float


def _shares(runs: Sequence[Run], costs: _Costs, places: _Places) -> _Shares:
    def replayed(latency: float, bandwidth: float) -> list[StepTime]:
        """With these shares of the fitted parts left out."""
        return replay(_shortened(runs, costs, places, latency, bandwidth))

    as_recorded = replay(runs)
    exposed, length = _exposed_ns(as_recorded), _length_ns(as_recorded)
    without_bandwidth = _exposed_ns(replayed(0, 1))
    without_both = _exposed_ns(replayed(1, 1))
    waiting = _exposed_ns(replay([replace(run, steps=tuple(map(_at_once, run.steps))) for run in runs]))
    return _Shares(
        exposed=exposed,
        waiting=waiting,
        latency=without_bandwidth - without_both,
        bandwidth=exposed - without_bandwidth,
        rest=without_both - waiting,
        saved_by_bandwidth=length - _length_ns(replayed(0, 0.5)),
        saved_by_latency=length - _length_ns(replayed(0.5, 0)),
    )


def _exposed_ns(times: Sequence[StepTime]) -> float:
    return fmean(fmean(time.exposed_ns) for time in times)


def _length_ns(times: Sequence[StepTime]) -> float:
    return fmean(fmean(time.lengths_ns) for time in times)


def _at_once(step: RecordedStep) -> RecordedStep:
    return replace(step, transfers_ns=(0,) * len(step.transfers_ns))


def _shortened(runs: Sequence[Run], costs: _Costs, places: _Places, latency: float, bandwidth: float) -> list[Run]:
    """Without these shares of what the model says of each transfer; a transfer never becomes negative."""
    saved_ns = {}
    for place, (kind, size) in places.items():
        if (cost := costs.get(kind)) is not None and size:
            saved_ns[place] = latency * cost.latency_ns + bandwidth * cost.ns_per_byte * size

    def shortened(step: RecordedStep) -> RecordedStep:
        both = zip(step.places, step.transfers_ns, strict=True)
        left = tuple(max(0, round(took_ns - saved_ns.get(place, 0.0))) for place, took_ns in both)
        return replace(step, transfers_ns=left)

    return [replace(run, steps=tuple(map(shortened, run.steps))) for run in runs]


def _split(whole: _Shares, parts: Sequence[_Shares], costs: tuple[KindCost, ...]) -> TransferSplit:
    def duration(of: Callable[[_Shares], float]) -> Duration:
        return Duration(of(whole), _half_interval([of(part) for part in parts]))

    found = TransferSplit(
        exposed=duration(lambda shares: shares.exposed),
        waiting=duration(lambda shares: shares.waiting),
        latency=duration(lambda shares: shares.latency),
        bandwidth=duration(lambda shares: shares.bandwidth),
        rest=duration(lambda shares: shares.rest),
        saved_by_bandwidth=duration(lambda shares: shares.saved_by_bandwidth),
        saved_by_latency=duration(lambda shares: shares.saved_by_latency),
        costs=costs,
        limit="unknown",
        reason="",
    )
    limit, reason = _limit(found)
    return replace(found, limit=limit, reason=reason)


def _half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent parts."""
    return _STUDENT * stdev(values) / math.sqrt(len(values))


def _limit(found: TransferSplit) -> tuple[Limit, str]:
    exposed_ns = found.exposed.ns
    if exposed_ns <= 0:
        return "unknown", "no step exposes any synchronization time"
    parts: dict[Limit, Duration] = {
        "waiting": found.waiting,
        "latency": found.latency,
        "bandwidth": found.bandwidth,
    }
    largest = max(parts, key=lambda name: parts[name].ns)
    part = parts[largest]
    if part.ns - part.error_ns > _MOST * exposed_ns:
        return largest, ""
    return "unknown", (
        f"{largest} has the largest part, {short_duration(part.ns)} +- {short_duration(part.error_ns)} of "
        f"{short_duration(exposed_ns)}: not for sure more than half"
    )


def _kind_costs(by_step: Sequence[Sequence[_Period]], costs: _Costs, parts: Sequence[_Costs]) -> Iterator[KindCost]:
    periods = _flat(by_step)
    for kind, cost in costs.items():
        slopes = [part[kind].ns_per_byte for part in parts]
        error = _half_interval(slopes)
        fastest = cost.ns_per_byte - error
        yield KindCost(
            kind=kind,
            sizes=len(_typical([period.busy for period in periods if period.kinds == {kind}])),
            latency=Duration(cost.latency_ns, _half_interval([part[kind].latency_ns for part in parts])),
            bytes_per_s=cost.bytes_per_s,
            bytes_per_s_low=1e9 / (cost.ns_per_byte + error),
            bytes_per_s_high=1e9 / fastest if fastest > 0 else None,
        )
