"""
Suggests sizes of DDP's gradient buckets that leave less of their reduction exposed. Pure.

The cost of a reduction is fitted to the recorded buckets: a latency and a time per byte. A model of the backward pass,
in which buckets become ready and queue for their reduction, then gives the exposed time of each tried size, and the
suggestion's error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product, repeat, takewhile
from math import sqrt
from statistics import fmean, linear_regression, median, stdev
from typing import NamedTuple

from timesyncd.audit.headline import percent, short_duration
from timesyncd.audit.measured import Measured
from timesyncd.ipc.job_datagram import Trait, kinds_with
from timesyncd.jobs.arrivals import Sync
from timesyncd.jobs.recording import same_step

_BUCKETS = kinds_with(Trait.BUCKET)

MIB = 1 << 20

#: A petabyte a second, which is as good as no transfer.
_LEAST_NS_PER_BYTE = 1e-6


class ReadyBucket(NamedTuple):
    """When the bucket was ready on all ranks, in ns after the last one, and its size."""

    ready_ns: float
    bytes: int


@dataclass(frozen=True, slots=True)
class BucketProfile:
    """
    A typical step's buckets in the order of their reduction. All times are in ns after the last bucket was ready.

    `ready_ns`: ready on all ranks; it does not decrease and ends with 0. `ends_ns`: reduced on all ranks.
    """

    bytes: tuple[int, ...]
    ready_ns: tuple[float, ...]
    ends_ns: tuple[float, ...]

    @property
    def buckets(self) -> list[ReadyBucket]:
        return [ReadyBucket(*each) for each in zip(self.ready_ns, self.bytes, strict=True)]

    @property
    def exposed_ns(self) -> float:
        """How long the step waits for reductions after its last gradient."""
        return max(0.0, *self.ends_ns)


@dataclass(frozen=True, slots=True)
class ReductionCost:
    """
    A reduction takes `latency_ns` + bytes * `ns_per_byte`.

    Reductions that overlap, as gloo's do, share the link: together they take as long as one after the other.
    """

    latency_ns: float
    ns_per_byte: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes of gradients a second; in a ring of n ranks, each rank sends 2 (n - 1) / n times as many."""
        return 1e9 / self.ns_per_byte

    def work_ns(self, buckets: int, size: int) -> float:
        return buckets * self.latency_ns + size * self.ns_per_byte


def exposed_ns(buckets: Sequence[ReadyBucket], cost: ReductionCost) -> float:
    """How long the last reduction continues after the last gradient, if reductions queue at this cost."""
    through_ns = -math.inf
    for ready_ns, size in buckets:
        through_ns = max(ready_ns, through_ns) + cost.work_ns(1, size)
    return through_ns - buckets[-1].ready_ns


class _Piece(NamedTuple):
    """
    Bytes that become ready evenly between `from_ns` and `until_ns`; `whole`: one parameter, which buckets do not
    divide.
    """

    bytes: int
    from_ns: float
    until_ns: float
    whole: bool


def resized(profile: BucketProfile, caps: Sequence[int]) -> list[ReadyBucket]:
    """
    The same gradients in other buckets. As in DDP, a bucket is closed when it reaches its cap in bytes; the last cap
    applies to all further buckets.
    """
    limits = chain(caps, repeat(caps[-1]))
    limit, size = next(limits), 0
    found: list[ReadyBucket] = []
    for piece in _pieces(profile):
        left = piece.bytes
        while left:
            taken = left if piece.whole else min(left, limit - size)
            size, left = size + taken, left - taken
            if size >= limit:
                part = 1 - left / piece.bytes
                found.append(ReadyBucket(piece.from_ns + part * (piece.until_ns - piece.from_ns), size))
                limit, size = next(limits), 0
    if size:
        found.append(ReadyBucket(profile.ready_ns[-1], size))
    return found


def _pieces(profile: BucketProfile) -> Iterator[_Piece]:
    """
    The gradients of the first bucket count as ready with the bucket, since nothing shows when they were.

    Without its last parameter a bucket is smaller than the cap, so smaller than the smallest bucket between the first
    and the last: what exceeds that size is one parameter.
    """
    dividable = min(profile.bytes[1:-1], default=max(profile.bytes))
    before_ns = profile.ready_ns[0]
    for ready_ns, size in profile.buckets:
        evenly = min(size, dividable)
        until_ns = before_ns + (ready_ns - before_ns) * evenly / size
        yield _Piece(evenly, before_ns, until_ns, False)
        if size > evenly:
            yield _Piece(size - evenly, ready_ns, ready_ns, True)
        before_ns = ready_ns


class BusyPeriod(NamedTuple):
    """From an idle link to an idle link: the number of buckets, their bytes, and the duration."""

    buckets: int
    bytes: int
    took_ns: float

    @property
    def mean_bytes(self) -> float:
        return self.bytes / self.buckets


def busy_periods(profile: BucketProfile) -> list[BusyPeriod]:
    """
    The periods in which at least one reduction is in progress.

    How overlapping reductions share the link changes their own ends, but not the length of the period.
    """
    found: list[BusyPeriod] = []
    began_ns = until_ns = -math.inf
    for size, ready_ns, end_ns in zip(profile.bytes, profile.ready_ns, profile.ends_ns, strict=True):
        if ready_ns >= until_ns:
            found.append(BusyPeriod(0, 0, 0.0))
            began_ns = ready_ns
        until_ns = max(until_ns, end_ns)
        found[-1] = BusyPeriod(found[-1].buckets + 1, found[-1].bytes + size, until_ns - began_ns)
    return found


def fit_cost(found: Sequence[BusyPeriod]) -> ReductionCost:
    """Least squares of the relative errors of time per byte. It needs two periods of different mean bucket sizes."""
    latency_ns, ns_per_byte = linear_regression(
        [each.buckets / each.bytes for each in found], [each.took_ns / each.bytes for each in found]
    )
    took_ns = math.fsum(each.took_ns for each in found)
    if latency_ns < 0:
        latency_ns, ns_per_byte = 0.0, took_ns / sum(each.bytes for each in found)
    elif ns_per_byte <= 0:
        latency_ns, ns_per_byte = took_ns / sum(each.buckets for each in found), 0.0
    return ReductionCost(latency_ns, max(_LEAST_NS_PER_BYTE, ns_per_byte))


def misfit_ns(found: Sequence[BusyPeriod], cost: ReductionCost) -> float:
    """The mean absolute difference between the fitted and the recorded durations."""
    return math.fsum(abs(cost.work_ns(each.buckets, each.bytes) - each.took_ns) for each in found) / len(found)


#: The sizes that are tried, in MiB.
CAPS_MIB = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0)

#: The least saving, as a share of the step, for a suggestion, and for other sizes of the first or the last buckets.
MIN_GAIN = 0.03
_WORTH_A_LIST = 0.01

#: The cost can be fitted if the largest size is this many times the smallest.
_APART = 2

#: The largest number of buckets, and the longest list of sizes, that are tried.
_MOST_BUCKETS = 500
_LONGEST_LIST = 64

#: The steps are also fitted in this many parts; Student's 95 % quantile for one degree of freedom less.
_PARTS = 5
_STUDENT = 2.776
MIN_STEPS = 4 * _PARTS

#: Buckets within this time of one another, and by this factor closer than the previous one, became ready at once.
_AT_ONCE_NS = 200_000
_NEARER = 20

ASSUMPTION = (
    "Reductions queue at the fitted cost and do not slow computing; the gradients of a recorded bucket become ready evenly, and no "
    "parameter is larger than the new buckets. Audit again to verify."
)

_Caps = tuple[float, ...]
_Found = tuple[_Caps, float]
"""Sizes, and the exposed time with them, in ns."""


@dataclass(frozen=True, slots=True)
class BucketAdvice:
    """
    `bytes`: the buckets of a step, in order. `exposed_ns`: how long a step waited for them after its last gradient;
    None: unknown.

    `caps_mib`: the suggested sizes, the last one for all further buckets; they would save `saved_ns` +- `error_ns` per
    step. None: no suggestion, for `reason`. `order`: which buckets may have waited for another one.
    """

    bytes: tuple[int, ...]
    reason: str
    exposed_ns: float | None = None
    cost: ReductionCost | None = None
    caps_mib: tuple[float, ...] | None = None
    saved_ns: float | None = None
    error_ns: float | None = None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class _Pass:
    """One step's buckets, on all ranks, on one time axis."""

    bytes: tuple[int, ...]
    ready_ns: tuple[int, ...]
    ends_ns: tuple[int, ...]
    is_one_pass: bool


_NOT_FITTED = (
    "all buckets have about the same size, or their reductions overlap throughout, so the cost by size cannot be fitted: record "
    "once with other sizes (bucket_cap_mb_list)"
)


def advise(now: Measured) -> BucketAdvice | None:
    """None: no bucket is recorded, or the ranks are not comparable."""
    passes = list(_passes(now))
    if not passes or not now.samples:
        return None
    most_common = Counter(each.bytes for each in passes).most_common(1)[0][0]
    passes = [each for each in passes if each.bytes == most_common]
    refusal = _refusal(passes)
    if refusal:
        return BucketAdvice(most_common, refusal)
    profile = _profile(passes)
    found = BucketAdvice(most_common, "", profile.exposed_ns, order=_order(profile))
    parts = [_profile(passes[at * len(passes) // _PARTS : (at + 1) * len(passes) // _PARTS]) for at in range(_PARTS)]
    if not all(map(_can_be_fitted, [profile, *parts])):
        return replace(found, reason=_NOT_FITTED)
    return _with_suggestion(found, profile, parts, fmean(sample.length_ns for sample in now.samples))


def _passes(now: Measured) -> Iterator[_Pass]:
    for _, step in same_step(now.aligned.syncs):
        buckets = [sync for sync in step if sync.kind in _BUCKETS]
        sizes = tuple(max(arrival.bytes for arrival in sync.arrivals.values()) for sync in buckets)
        if buckets and all(sizes):
            ready = tuple(max(arrival.arrival_ns for arrival in sync.arrivals.values()) for sync in buckets)
            ends = tuple(max(arrival.end_ns for arrival in sync.arrivals.values()) for sync in buckets)
            yield _Pass(sizes, ready, ends, _is_one_pass(buckets))


def _is_one_pass(buckets: Sequence[Sync]) -> bool:
    """
    Whether no rank waited for a bucket before the last one was ready: each backward pass of a step waits for its own
    buckets.
    """
    last = buckets[-1].arrivals
    return not any(
        arrival.begin_ns < min(arrival.end_ns, last[rank].arrival_ns)
        for sync in buckets
        for rank, arrival in sync.arrivals.items()
    )


def _refusal(passes: Sequence[_Pass]) -> str:
    if len(passes[0].bytes) == 1:
        return "one bucket holds all gradients, so the marks do not show when each is ready: record once with smaller buckets (bucket_cap_mb_list)"
    if not all(each.is_one_pass for each in passes):
        return "a step has several backward passes, or several modules, whose buckets the marks do not distinguish"
    if len(passes) < MIN_STEPS:
        return f"{len(passes)} steps with the same buckets are too few: {MIN_STEPS} are needed"
    return ""


def _can_be_fitted(profile: BucketProfile) -> bool:
    """Whether the recorded sizes differ enough to fit the cost of a reduction."""
    sizes = [each.mean_bytes for each in busy_periods(profile)]
    return max(sizes) >= _APART * min(sizes)


def _profile(passes: Sequence[_Pass]) -> BucketProfile:
    places = range(len(passes[0].bytes))
    ready = [median(each.ready_ns[i] - each.ready_ns[-1] for each in passes) for i in places]
    ends = [median(each.ends_ns[i] - each.ready_ns[-1] for each in passes) for i in places]
    return BucketProfile(passes[0].bytes, tuple(max(ready[: i + 1]) for i in places), tuple(ends))


def _with_suggestion(
    found: BucketAdvice, profile: BucketProfile, parts: Sequence[BucketProfile], step_ns: float
) -> BucketAdvice:
    recorded = busy_periods(profile)
    cost = fit_cost(recorded)
    now_ns = exposed_ns(profile.buckets, cost)
    caps, then_ns = _best(profile, cost, _WORTH_A_LIST * step_ns)
    saved_ns = now_ns - then_ns
    wrong_ns = max(misfit_ns(recorded, cost), abs(now_ns - profile.exposed_ns))
    error_ns = wrong_ns + _spread_ns(parts, caps)
    reason = _why_not_suggested(saved_ns, error_ns, step_ns)
    return replace(
        found,
        cost=cost,
        reason=reason,
        caps_mib=None if reason else caps,
        saved_ns=saved_ns,
        error_ns=error_ns,
    )


def _why_not_suggested(saved_ns: float, error_ns: float, step_ns: float) -> str:
    if saved_ns < MIN_GAIN * step_ns:
        best = f"save {percent(saved_ns / step_ns)} of a step" if saved_ns > 0 else "save nothing"
        return f"the best sizes that were tried would {best}; less than {percent(MIN_GAIN, 0)} is not worth a change"
    if saved_ns <= error_ns:
        return f"other sizes may save {short_duration(saved_ns)} per step, but the error of this estimate is {short_duration(error_ns)}"
    return ""


def _spread_ns(parts: Sequence[BucketProfile], caps: _Caps) -> float:
    """Half of the 95 % interval of the saving, from parts of the steps that are fitted separately."""
    saved = []
    for profile in parts:
        cost = fit_cost(busy_periods(profile))
        saved.append(exposed_ns(profile.buckets, cost) - exposed_ns(_resized(profile, caps), cost))
    return _STUDENT * stdev(saved) / sqrt(len(saved))


def _best(profile: BucketProfile, cost: ReductionCost, worth_ns: float) -> _Found:
    """The best single size, or a list if that saves at least `worth_ns` more."""
    total_mib = sum(profile.bytes) / MIB
    one = _least(profile, cost, _sizes(total_mib))
    several = _least(profile, cost, [one[0], *_lists(total_mib)])
    return several if several[1] + worth_ns < one[1] else one


def _least(profile: BucketProfile, cost: ReductionCost, tried: Iterable[_Caps]) -> _Found:
    """The sizes with the least exposed time; of equal ones the largest."""
    found = [(caps, exposed_ns(_resized(profile, caps), cost)) for caps in tried]
    return min(found, key=lambda one: (round(one[1]), -max(one[0])))


def _sizes(total_mib: float) -> list[_Caps]:
    return [(cap,) for cap in CAPS_MIB if total_mib / cap < _MOST_BUCKETS or cap == CAPS_MIB[-1]]


def _lists(total_mib: float) -> Iterator[_Caps]:
    """Lists of one size with a smaller first bucket, a smaller last one, or both."""
    for cap in CAPS_MIB:
        smaller = [None, *(each for each in CAPS_MIB if each < cap)]
        for first, last in product(smaller, smaller):
            middle = int((total_mib - (first or 0)) / cap)
            if 0 < middle <= _LONGEST_LIST and (first or last):
                begin = () if first is None else (first,)
                yield begin + ((cap,) if last is None else (cap,) * middle + (last,))


def _resized(profile: BucketProfile, caps: Sequence[float]) -> list[ReadyBucket]:
    return resized(profile, [round(cap * MIB) for cap in caps])


def _order(profile: BucketProfile) -> str | None:
    """DDP reduces in a fixed order: buckets that follow a late one at once may have been ready before it."""
    gaps = [after - before for before, after in pairwise(profile.ready_ns)]
    for late, gap_ns in enumerate(gaps[:-1], 1):
        near_ns = min(_AT_ONCE_NS, gap_ns / _NEARER)
        last = late + sum(1 for _ in takewhile(near_ns.__ge__, gaps[late:]))
        if sum(profile.bytes[late + 1 : last + 1]) >= profile.bytes[late]:
            followers = f"bucket {last} follows" if last == late + 1 else f"buckets {late + 1} to {last} follow"
            within = short_duration(profile.ready_ns[last] - profile.ready_ns[late])
            return (
                f"bucket {late} is ready {short_duration(gap_ns)} after the previous one, and {followers} within {within}: if their "
                f"gradients were ready earlier, they waited for bucket {late}, because DDP reduces its buckets in a fixed order"
            )
    return None
