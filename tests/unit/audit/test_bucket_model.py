"""The model of reductions: their cost, their exposed time, and the contents of other buckets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

import pytest
from audit_lab import MS
from bucket_lab import LATENCY_MS, one_by_one
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.audit.buckets import (
    MIB,
    BucketProfile,
    ReadyBucket,
    ReductionCost,
    busy_periods,
    exposed_ns,
    fit_cost,
    resized,
)

BUCKETS = st.lists(st.tuples(st.floats(0, 1e7), st.integers(1, 1 << 26)), min_size=1, max_size=12).map(
    lambda found: [ReadyBucket(at, size) for at, (_, size) in zip(sorted(at for at, _ in found), found, strict=True)]
)
COSTS = st.builds(ReductionCost, st.floats(100, 1e7), st.floats(0.01, 100))


@given(buckets=BUCKETS, cost=COSTS, faster=st.floats(1, 10))
def test_more_bandwidth_and_less_latency_never_take_longer(
    buckets: list[ReadyBucket], cost: ReductionCost, faster: float
) -> None:
    """A faster reduction never leaves more exposed."""
    wider = replace(cost, ns_per_byte=cost.ns_per_byte / faster)
    nearer = replace(cost, latency_ns=cost.latency_ns / faster)

    exposed = exposed_ns(buckets, cost)

    assert exposed_ns(buckets, wider) <= exposed * (1 + 1e-9)
    assert exposed_ns(buckets, nearer) <= exposed * (1 + 1e-9)


@given(buckets=BUCKETS, cost=COSTS)
def test_no_work_is_lost(buckets: list[ReadyBucket], cost: ReductionCost) -> None:
    """The exposed time is at least the work of the last bucket, and with all buckets ready at once, all work."""
    works = [cost.work_ns(1, size) for _, size in buckets]
    until_ns = buckets[-1].ready_ns + exposed_ns(buckets, cost)

    assert until_ns >= max(buckets[0].ready_ns + sum(works), buckets[-1].ready_ns + works[-1]) * (1 - 1e-9)
    assert exposed_ns([ReadyBucket(0, size) for _, size in buckets], cost) == pytest.approx(sum(works))


@given(total=st.integers(1, 1 << 30), cost=COSTS)
def test_one_bucket_overlaps_with_nothing(total: int, cost: ReductionCost) -> None:
    """The reduction of a single bucket is exposed completely."""
    assert exposed_ns([ReadyBucket(0, total)], cost) == pytest.approx(cost.latency_ns + total * cost.ns_per_byte)


def profile(sizes_mib: Sequence[float], ready_ms: Sequence[float]) -> BucketProfile:
    return BucketProfile(
        tuple(round(mib * MIB) for mib in sizes_mib),
        tuple(at * MS for at in ready_ms),
        tuple(at * MS + 1 for at in ready_ms),
    )


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=10),
    caps=st.lists(st.integers(1, 30), min_size=1, max_size=3),
)
def test_no_gradient_is_lost_or_ready_too_early(sizes: list[int], caps: list[int]) -> None:
    """Other buckets have the same bytes, are ready in order and within the pass, and all but the last reach their cap."""
    recorded = profile(sizes, [-float(at) for at in reversed(range(len(sizes)))])

    found = resized(recorded, [cap * MIB for cap in caps])

    assert sum(bucket.bytes for bucket in found) == sum(recorded.bytes)
    ready = [bucket.ready_ns for bucket in found]
    assert ready == sorted(ready) and ready[-1] == recorded.ready_ns[-1] and ready[0] >= recorded.ready_ns[0]
    limits = chain(caps, repeat(caps[-1]))
    assert all(bucket.bytes >= limit * MIB for bucket, limit in zip(found[:-1], limits, strict=False))


def test_joined_buckets_are_ready_with_their_last() -> None:
    """Two recorded buckets in one are ready when the second one was."""
    recorded = profile([1, 5, 5, 5, 2], [-20, -16, -7, -2, 0])

    assert resized(recorded, [1 * MIB, 10 * MIB]) == [
        ReadyBucket(-20 * MS, 1 * MIB), ReadyBucket(-7 * MS, 10 * MIB), ReadyBucket(0, 7 * MIB),
    ]  # fmt: skip
    assert resized(recorded, [1 * MIB, 5 * MIB]) == recorded.buckets


def test_a_parameter_is_not_divided() -> None:
    """A bucket that exceeds another full one by 15 MiB ends with a parameter of that size, which is not divided."""
    found = resized(profile([1, 5, 20, 5, 2], [-20, -16, -7, -2, 0]), [MIB])

    assert sorted(bucket.bytes for bucket in found)[-2:] == [MIB, 15 * MIB]
    assert next(bucket for bucket in found if bucket.bytes == 15 * MIB).ready_ns == -7 * MS


@given(seed=st.integers(0, 10_000), ms_per_mib=st.floats(0.01, 3))
def test_the_fit_finds_the_cost_of_a_reduction(seed: int, ms_per_mib: float) -> None:
    """The fit uses only the recorded ends, whether the later reductions queue or not."""
    chance = random.Random(seed)
    sizes = [1.0, *(chance.uniform(2, 20) for _ in range(8))]
    ready = [0.0, *(30 + 20 * at for at in range(8))]
    ends = one_by_one(list(zip(sizes, ready, strict=True)), LATENCY_MS, ms_per_mib)
    recorded = replace(profile(sizes, ready), ends_ns=tuple(at * MS for at in ends))

    found = fit_cost(busy_periods(recorded))

    assert found.ns_per_byte == pytest.approx(ms_per_mib * MS / MIB, rel=1e-3)
    assert found.latency_ns == pytest.approx(LATENCY_MS * MS, rel=1e-3)


def test_reductions_that_share_the_link_are_one_observation() -> None:
    """Of two reductions that share the link, only the time of both together counts."""
    recorded = replace(profile([1, 4, 8], [0, 20, 22]), ends_ns=(3 * MS, 34 * MS, 36 * MS))

    assert [(each.buckets, each.bytes // MIB, each.took_ns / MS) for each in busy_periods(recorded)] == [
        (1, 1, 3),
        (2, 12, 16),
    ]
    assert fit_cost(busy_periods(recorded)).ns_per_byte * MIB == pytest.approx(1.0 * MS)
    assert fit_cost(busy_periods(recorded)).latency_ns == pytest.approx(2.0 * MS)


@pytest.mark.parametrize(
    ("ends_ms", "latency_ms", "ms_per_mib"), [((1, 40), 0, 41 / 21), ((10, 25), 7.5, 0)], ids=["growing", "shrinking"]
)
def test_no_cost_is_negative(ends_ms: tuple[float, float], latency_ms: float, ms_per_mib: float) -> None:
    """If the fit would be negative, the cost is only per byte, or only latency."""
    recorded = replace(profile([1, 20], [0, 20]), ends_ns=(ends_ms[0] * MS, (20 + ends_ms[1]) * MS))
    if ms_per_mib == 0:
        recorded = replace(recorded, ends_ns=(10 * MS, 25 * MS))

    found = fit_cost(busy_periods(recorded))

    assert found.latency_ns == pytest.approx(latency_ms * MS)
    assert found.ns_per_byte * MIB == pytest.approx(ms_per_mib * MS, abs=2)
