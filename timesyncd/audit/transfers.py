"""
What the exposed synchronization time of a step consists of: waiting for ranks, latency, packing (serialization),
bandwidth, and a rest. Pure.

A transfer of b bytes takes alpha + beta * b (R. Hockney, "The communication challenge for MPP", Parallel Computing 20,
1994, eq. 1). Alpha and beta are fitted by the kind of synchronization. Of beta, the CPU time that the ranks measured for
packing an octet is serialization, the rest is bandwidth. Then the steps are replayed without bandwidth, without packing,
without latency, and without any transfer. The differences add up to the exposed time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Literal

from timesyncd.audit.buckets import BusyPeriod, ReductionCost, fit_cost
from timesyncd.audit.headline import percent, short_duration
from timesyncd.audit.links import links_of, packing_ns_per_byte
from timesyncd.audit.measured import Measured
from timesyncd.audit.remedies import StepTime, replay
from timesyncd.audit.timeline import RecordedStep, Run
from timesyncd.ipc.job_datagram import Kind
from timesyncd.jobs.arrivals import Sync
from timesyncd.jobs.recording import positions, same_step

#: The largest and the smallest mean size of a fit differ by this factor at least.
APART = 2

#: The steps are also fitted and replayed in so many parts; Student's 95 % quantile for one degree of freedom less.
PARTS = 5
_STUDENT = 2.776
MIN_STEPS = 4 * PARTS

#: A part of the exposed time above this share of it, by more than its error, is what limits the job.
_MOST = 0.5

Limit = Literal["waiting", "latency", "serialization", "bandwidth", "loss", "unknown"]


@dataclass(frozen=True, slots=True)
class Duration:
    """A time in ns, and half of its 95 % interval."""

    ns: float
    error_ns: float


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the exposed time as a share of it, and half of its 95 % interval."""

    part: Limit
    value: float
    error: float


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
    A step's exposed time in the mean of the ranks: `waiting`, `latency`, `serialization`, `bandwidth` and `rest` add up
    to it. The rest is what the fitted costs do not explain, and the transfers of kinds without a cost.

    `serialization` None: the ranks did not record their packing, which is then a part of `bandwidth`. It is at least so
    much: what a hook's future does later, in another thread, is not counted. `shares`: of the exposed time, "unknown" is
    the rest; empty: no time is exposed.

    `limit`: the part with more than half of it; "loss": that is the rest, and TCP sent so much again that it can explain
    the rest; "unknown": none for sure, for `reason`. `saved_by_bandwidth`: what a step would save if each link were twice
    as fast; `saved_by_latency`: if each latency were half as long; `saved_by_serialization`: without any packing.
    """

    exposed: Duration
    waiting: Duration
    latency: Duration
    serialization: Duration | None
    bandwidth: Duration
    rest: Duration
    saved_by_bandwidth: Duration
    saved_by_latency: Duration
    saved_by_serialization: Duration | None
    shares: tuple[Share, ...]
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


@dataclass(frozen=True, slots=True)
class _Packing:
    """
    The CPU time for an octet of each kind that the ranks pack; `error`: of it, as a share, by how far the ranks differ.
    """

    ns_per_byte: Mapping[int, float]
    error: float


@dataclass(frozen=True, slots=True)
class _Model:
    """What a transfer consists of: fitted costs and measured packing by kind, and the kinds and sizes by place."""

    costs: _Costs
    packing: _Packing
    places: _Places

    def saved_ns(self, without: _Without) -> dict[str, float]:
        """By place: what its transfer would be shorter by."""
        saved = {}
        for place, (kind, size) in self.places.items():
            if (cost := self.costs.get(kind)) is not None and size:
                packing = min(self.packing.ns_per_byte.get(kind, 0.0), cost.ns_per_byte)
                by_size = without.packing * packing + without.bandwidth * (cost.ns_per_byte - packing)
                saved[place] = without.latency * cost.latency_ns + by_size * size
        return saved


@dataclass(frozen=True, slots=True)
class _Without:
    """The shares of the parts of a transfer that are left out in a replay."""

    latency: float = 0
    packing: float = 0
    bandwidth: float = 0


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
    parts = [fitted(_flat(by_step[_part(len(by_step), at)])) for at in range(PARTS)]
    common = {kind: cost for kind, cost in costs.items() if all(kind in part for part in parts)}
    if not common:
        return (
            "no kind of synchronization was recorded in sizes that differ by a factor of two, so latency and bandwidth "
            "cannot be separated: record once with other sizes (bucket_cap_mb_list)"
        )
    places, packing = _places(now), _packing(now)
    whole = _shares(runs, _Model(common, packing, places))
    each = [_shares(some, _Model(part, packing, places)) for some, part in zip(_in_parts(runs), parts, strict=True)]
    split = _split(whole, each, tuple(_kind_costs(by_step, common, parts)), packing)
    if not now.recording.networks:
        known = tuple(share for share in split.shares if share.part != "serialization")
        split = replace(split, serialization=None, saved_by_serialization=None, shares=known)
    limit, reason = _limit(split, _most_by_loss_ns(now))
    return replace(split, limit=limit, reason=reason)


def _packing(now: Measured) -> _Packing:
    found = packing_ns_per_byte(now.recording.networks)
    if not found or not (mean := fmean(found)):
        return _Packing({}, 0.0)
    return _Packing({Kind.HOOK: mean}, (max(found) - min(found)) / (2 * mean))


def _most_by_loss_ns(now: Measured) -> float:
    """What retransmissions can have delayed a step; 0: so few that they show nothing."""
    links = links_of(now.recording.networks)
    if not any(link.is_lossy for link in links):
        return 0.0
    return sum(link.retransmit_limit_ns for link in links) / max(1, now.recorded_steps)


def fitted(periods: Sequence[_Period]) -> dict[int, ReductionCost]:
    """By kind, its cost from the periods of this kind alone; without the kinds whose sizes are too alike."""
    found = {}
    for kind in sorted({kind for period in periods for kind in period.kinds}):
        typical = _typical([period.busy for period in periods if period.kinds == {kind}])
        sizes = [each.mean_bytes for each in typical]
        if sizes and max(sizes) >= APART * min(sizes):
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
    return slice(at * length // PARTS, (at + 1) * length // PARTS)


def _in_parts(runs: Sequence[Run]) -> list[list[Run]]:
    """The steps in equal parts, in order. The instants of a step count from its own begin, so any run may be cut."""
    found: list[list[Run]] = []
    steps = [(run, step) for run in runs for step in run.steps]
    for at in range(PARTS):
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
    serialization: float
    bandwidth: float
    rest: float
    saved_by_bandwidth: float
    saved_by_latency: float
    saved_by_serialization: float


def _shares(runs: Sequence[Run], model: _Model) -> _Shares:
    def replayed(without: _Without) -> list[StepTime]:
        return replay(_shortened(runs, model.saved_ns(without)))

    as_recorded = replay(runs)
    exposed, length = _exposed_ns(as_recorded), _length_ns(as_recorded)
    without_bandwidth = _exposed_ns(replayed(_Without(bandwidth=1)))
    without_bytes = _exposed_ns(replayed(_Without(bandwidth=1, packing=1)))
    without_all = _exposed_ns(replayed(_Without(bandwidth=1, packing=1, latency=1)))
    waiting = _exposed_ns(replay([replace(run, steps=tuple(map(_at_once, run.steps))) for run in runs]))
    return _Shares(
        exposed=exposed,
        waiting=waiting,
        latency=without_bytes - without_all,
        serialization=without_bandwidth - without_bytes,
        bandwidth=exposed - without_bandwidth,
        rest=without_all - waiting,
        saved_by_bandwidth=length - _length_ns(replayed(_Without(bandwidth=0.5))),
        saved_by_latency=length - _length_ns(replayed(_Without(latency=0.5))),
        saved_by_serialization=length - _length_ns(replayed(_Without(packing=1))),
    )


def _exposed_ns(times: Sequence[StepTime]) -> float:
    return fmean(fmean(time.exposed_ns) for time in times)


def _length_ns(times: Sequence[StepTime]) -> float:
    return fmean(fmean(time.lengths_ns) for time in times)


def _at_once(step: RecordedStep) -> RecordedStep:
    return replace(step, transfers_ns=(0,) * len(step.transfers_ns))


def _shortened(runs: Sequence[Run], saved_ns: Mapping[str, float]) -> list[Run]:
    """Each transfer shorter by what is saved at its place; it never becomes negative."""

    def shortened(step: RecordedStep) -> RecordedStep:
        both = zip(step.places, step.transfers_ns, strict=True)
        left = tuple(max(0, round(took_ns - saved_ns.get(place, 0.0))) for place, took_ns in both)
        return replace(step, transfers_ns=left)

    return [replace(run, steps=tuple(map(shortened, run.steps))) for run in runs]


def _split(whole: _Shares, parts: Sequence[_Shares], costs: tuple[KindCost, ...], packing: _Packing) -> TransferSplit:
    def duration(of: Callable[[_Shares], float], error: float = 0.0) -> Duration:
        return Duration(of(whole), half_interval([of(part) for part in parts]) + error * abs(of(whole)))

    return TransferSplit(
        exposed=duration(lambda shares: shares.exposed),
        waiting=duration(lambda shares: shares.waiting),
        latency=duration(lambda shares: shares.latency),
        serialization=duration(lambda shares: shares.serialization, packing.error),
        bandwidth=duration(lambda shares: shares.bandwidth),
        rest=duration(lambda shares: shares.rest),
        saved_by_bandwidth=duration(lambda shares: shares.saved_by_bandwidth),
        saved_by_latency=duration(lambda shares: shares.saved_by_latency),
        saved_by_serialization=duration(lambda shares: shares.saved_by_serialization, packing.error),
        shares=tuple(_part_shares(whole, parts, packing)),
        costs=costs,
        limit="unknown",
        reason="",
    )


_PART_OF: Mapping[Limit, Callable[[_Shares], float]] = {
    "waiting": lambda shares: shares.waiting,
    "latency": lambda shares: shares.latency,
    "serialization": lambda shares: shares.serialization,
    "bandwidth": lambda shares: shares.bandwidth,
    "unknown": lambda shares: shares.rest,
}


def _part_shares(whole: _Shares, parts: Sequence[_Shares], packing: _Packing) -> Iterator[Share]:
    """
    Each is a ratio of sums over the steps, and its error that of such a ratio (W. Cochran, Sampling Techniques, 1977,
    chapter 6): a slow spell makes all of a step longer, and then the share varies less than the time. Nothing exposed: none.
    """
    if whole.exposed <= 0:
        return
    mean = fmean(part.exposed for part in parts)
    for name, of in _PART_OF.items():
        value = of(whole) / whole.exposed
        error = half_interval([of(part) - value * part.exposed for part in parts]) / mean
        yield Share(name, value, error + (packing.error * abs(value) if name == "serialization" else 0.0))


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent parts."""
    return _STUDENT * stdev(values) / math.sqrt(len(values))


def _limit(found: TransferSplit, most_by_loss_ns: float) -> tuple[Limit, str]:
    """`most_by_loss_ns`: what segments that were sent again can explain of a step, at most."""
    if not found.shares:
        return "unknown", "no step exposes any synchronization time"
    by_loss = 0 < found.rest.ns <= most_by_loss_ns
    named = [replace(share, part="loss") if share.part == "unknown" else share for share in found.shares]
    largest = max((share for share in named if share.part != "loss" or by_loss), key=lambda share: share.value)
    if largest.value - largest.error > _MOST:
        return largest.part, ""
    return "unknown", (
        f"{_NAMES.get(largest.part, largest.part)} has the largest part, {percent(largest.value, 0)} \N{PLUS-MINUS SIGN} "
        f"{percent(largest.error, 0)} of {short_duration(found.exposed.ns)}: not for sure more than half"
    )


#: For people, where the name of a part is none.
_NAMES: Mapping[Limit, str] = {"loss": "what retransmissions may explain", "serialization": "packing"}


def _kind_costs(by_step: Sequence[Sequence[_Period]], costs: _Costs, parts: Sequence[_Costs]) -> Iterator[KindCost]:
    periods = _flat(by_step)
    for kind, cost in costs.items():
        slopes = [part[kind].ns_per_byte for part in parts]
        error = half_interval(slopes)
        fastest = cost.ns_per_byte - error
        yield KindCost(
            kind=kind,
            sizes=len(_typical([period.busy for period in periods if period.kinds == {kind}])),
            latency=Duration(cost.latency_ns, half_interval([part[kind].latency_ns for part in parts])),
            bytes_per_s=cost.bytes_per_s,
            bytes_per_s_low=1e9 / (cost.ns_per_byte + error),
            bytes_per_s_high=1e9 / fastest if fastest > 0 else None,
        )
