"""Which rank is late, and where: cases that the simulated jobs do not contain."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from timesyncd.ipc.job_datagram import Kind
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs.arrivals import Arrival, Sync, compare
from timesyncd.jobs.stragglers import MIN_LATENESS_NS, Straggler, attribute, module_sizes, position_text

MS = 1_000_000
STEP_NS = 20 * MS


def sync(step: int, number: int, *late_ns: int, kind: int = Kind.ALL_REDUCE, at_ns: int = 0, clock: str = "a") -> Sync:
    begun_ns = step * STEP_NS + at_ns
    end_ns = begun_ns + max(late_ns) + MS
    arrivals = {
        rank: Arrival(clock, 0, begun_ns + late, begun_ns + late, end_ns, None) for rank, late in enumerate(late_ns)
    }
    return Sync(step, number, kind, arrivals, compare(arrivals))


def test_without_marks_there_is_no_straggler() -> None:
    """Without synchronizations there is no method and no straggler."""
    observed = attribute([], {})

    assert (observed.method, observed.clock_bound_ns, observed.trusted, observed.stragglers, observed.syncs) == (
        None,
        None,
        False,
        (),
        [],
    )


def test_a_rank_late_at_one_place_alone_is_found() -> None:
    """It is not last where the step's skew is widest, which the other rank is; each is named where it is late, the dearer first."""
    syncs = [
        each
        for step in range(40)
        for each in (sync(step, 0, 5 * MS, 0), sync(step, 1, 0, 2 * MS, kind=Kind.BARRIER, at_ns=10 * MS))
    ]

    assert attribute(syncs, {}).stragglers == (
        Straggler(0, 1.0, 5 * MS, 40 * 5 * MS, "all_reduce 0", "straggler"),
        Straggler(1, 1.0, 2 * MS, 40 * 2 * MS, "barrier 0", "straggler"),
    )


def test_the_place_is_where_it_grows_though_it_is_proven_further_on() -> None:
    """It comes to the first one 5 ms late, but in a third of the steps something else holds the other rank up more."""
    chance = random.Random(1)
    syncs = []
    for step in range(60):
        first = (0, 5 * MS) if chance.random() < 0.66 else (9 * MS, 5 * MS)
        syncs += [sync(step, 0, *first), sync(step, 1, 0, 6 * MS, at_ns=8 * MS)]
    proven_there = attribute([each for each in syncs if each.sync == 0], {}).stragglers

    (one,) = attribute(syncs, {}).stragglers

    assert proven_there == ()
    assert (one.rank, one.where, one.lateness_p50_ns) == (1, "all_reduce 0", 5 * MS)


def test_a_place_is_its_kind_and_its_order_among_that_kind() -> None:
    """A barrier that only every second step has moves the numbers behind it, and not the places."""
    syncs = []
    for step in range(40):
        extra = step % 2
        syncs += [sync(step, 0, 0, 0, kind=Kind.BARRIER)] * extra
        syncs += [sync(step, extra + n, 0, 3 * MS * n, at_ns=MS + 8 * MS * n) for n in (0, 1)]

    assert [(s.rank, s.where) for s in attribute(syncs, {}).stragglers] == [(1, "all_reduce 1")]


@pytest.mark.parametrize(("by_ns", "names"), [(MIN_LATENESS_NS, 0), (100_000, 0), (100_001, 1)])
def test_less_than_a_small_part_of_the_step_is_not_worth_a_name(by_ns: int, names: int) -> None:
    """Half a per cent of the step, and fifty microseconds at least."""
    assert len(attribute([sync(step, 0, 0, by_ns) for step in range(30)], {}).stragglers) == names


def test_the_spread_of_all_ranks_is_no_lateness() -> None:
    """Each rank has its own constant place in an even row: the last of them does not stand out."""
    even = [sync(step, 0, *(MS * rank for rank in range(8))) for step in range(40)]
    one_more = [sync(step, 0, *(MS * rank for rank in range(7)), 18 * MS) for step in range(40)]

    assert attribute(even, {}).stragglers == ()
    assert [s.rank for s in attribute(one_more, {}).stragglers] == [7]


def test_one_clock_is_the_method_of_one_clock() -> None:
    """And is trusted as soon as the ranks are further apart than a reading is worth."""
    apart = attribute([sync(step, 0, 0, 5_000) for step in range(3)], {})
    level = attribute([sync(step, 0, 0, 500) for step in range(3)], {})

    assert (apart.method, apart.clock_bound_ns, apart.trusted) == (Method.ONE_CLOCK, 1_000, True)
    assert (level.method, level.trusted) == (Method.ONE_CLOCK, False)


def test_steps_that_lack_a_rank_are_left_out() -> None:
    """What is judged has all ranks."""
    half = sync(40, 0, 0)
    observed = attribute([*(sync(step, 0, 0, 5 * MS) for step in range(30)), half], {})

    assert half not in observed.syncs
    assert [s.last_share for s in observed.stragglers] == [1.0]


def test_a_part_of_the_world_names_no_rank() -> None:
    """Where one rank's marks are lost throughout, it may be the late one."""
    syncs = [sync(step, 0, 0, 5 * MS) for step in range(30)]

    assert [s.rank for s in attribute(syncs, {}, 2).stragglers] == [1]
    assert attribute(syncs, {}, 3) == attribute([], {}, 3)


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.BUCKET, Kind.HOOK])
def test_a_rank_that_did_not_wait_was_not_held_up(kind: Kind) -> None:
    """Marks that are a step apart, or a hook that does not wait: on one clock that is certain, so nothing is compared."""
    syncs = [apart(step, kind, STEP_NS) for step in range(60)]
    observed = attribute(syncs, {})

    assert (observed.stragglers, observed.method, observed.unwaited, observed.skew_p50_ns) == ((), None, 60, None)


def test_what_did_wait_is_still_compared() -> None:
    """A hook that averages in every other step; of a broadcast some may leave before others come."""
    half = [apart(step, Kind.HOOK, STEP_NS) if step % 2 else sync(step, 0, 0, 5 * MS) for step in range(60)]
    broadcast = attribute([apart(step, Kind.BROADCAST, 5 * MS) for step in range(60)], {})

    assert [(s.rank, s.exposed_ns) for s in attribute(half, {}).stragglers] == [(1, 30 * 5 * MS)]
    assert [(s.rank, s.exposed_ns) for s in broadcast.stragglers] == [(1, 0)]
    assert broadcast.unwaited == 0


def test_marks_of_two_nodes_a_step_apart_accuse_no_clock() -> None:
    """Neither the rank nor a clock: by the ends both ranks are level."""
    syncs = []
    for step in range(60):
        arrivals = {
            rank: replace(each, clock=f"n{rank}", error_ns=5_000)
            for rank, each in apart(step, Kind.BUCKET, STEP_NS).arrivals.items()
        }
        syncs.append(Sync(step, 0, Kind.BUCKET, arrivals, compare(arrivals)))
    observed = attribute(syncs, {0: "a", 1: "b"})

    assert (observed.stragglers, observed.suspicion, observed.unwaited) == ((), None, 60)


def apart(step: int, kind: int, by_ns: int) -> Sync:
    """Each rank is in it for a millisecond, the second one so much later."""
    times = {0: step * STEP_NS, 1: step * STEP_NS + by_ns}
    arrivals = {rank: Arrival("a", 0, at_ns, at_ns, at_ns + MS, None) for rank, at_ns in times.items()}
    return Sync(step, 0, kind, arrivals, compare(arrivals))


def correlated_job(seed: int, correlation: float, slow_ns: Callable[[int], int] = lambda _: 0) -> list[Sync]:
    """Equal ranks, whose lateness is a first-order autoregressive process; the first is slow as well, by step."""
    chance = random.Random(seed)
    late = [chance.gauss(0, 1) for _ in range(4)]
    syncs = []
    for step in range(100):
        times = [round(5 * MS + MS * each) for each in late]
        syncs.append(sync(step, 0, times[0] + slow_ns(step), *times[1:]))
        late = [correlation * each + math.sqrt(1 - correlation**2) * chance.gauss(0, 1) for each in late]
    return syncs


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_lateness_that_lasts_for_some_steps_names_no_rank(correlation: float) -> None:
    """Consecutive steps carry less information than as many independent ones."""
    assert sum(bool(attribute(correlated_job(seed, correlation), {}).stragglers) for seed in range(60)) == 0


def test_a_neighbour_s_bursts_name_hardly_anybody() -> None:
    """Equal ranks, beside each of which something runs for some twenty steps at a time, in three tenths of the time."""
    assert sum(bool(attribute(bursts(seed), {}).stragglers) for seed in range(100)) <= 4


def bursts(seed: int) -> list[Sync]:
    chance = random.Random(seed)
    busy = [chance.random() < 0.3 for _ in range(2)]
    syncs = []
    for step in range(100):
        syncs.append(sync(step, 0, *(5 * MS + 3 * MS * each + round(chance.gauss(0, 300_000)) for each in busy)))
        busy = [chance.random() < 0.3 if chance.random() < 0.05 else each for each in busy]
    return syncs


@pytest.mark.parametrize("steps", [40, 60])
def test_some_tens_of_steps_name_the_rank_that_is_late_in_all_of_them(steps: int) -> None:
    """One of two, by 5 ms, at one of three buckets."""
    chance = random.Random(steps)
    syncs = [
        sync(
            step,
            n,
            *(round(abs(chance.gauss(0, MS))) + 5 * MS * (n == 1) * rank for rank in range(2)),
            at_ns=6 * MS * n,
        )
        for step in range(steps - 1)
        for n in range(3)
    ]

    assert [(s.rank, s.where, s.verdict) for s in attribute(syncs, {}).stragglers] == [(1, "all_reduce 1", "straggler")]


def test_a_straggler_that_is_level_for_some_steps_in_a_row_is_named() -> None:
    """The other ranks' steps are independent: a run of its own is no correlation of the job."""
    slow = correlated_job(1, 0.0, lambda step: 0 if 40 <= step < 45 else 9 * MS)

    assert [s.rank for s in attribute(slow, {}).stragglers] == [0]


def test_a_kind_of_a_newer_client_has_a_place_too() -> None:
    """Known kinds have a label."""
    assert (position_text((Kind.BUCKET, 2)), position_text((99, 0))) == ("bucket 2", "kind 99 0")


@pytest.mark.parametrize(("positions", "steps"), [(1, 39), (15, 39), (240, 39)])
def test_the_positions_of_a_deep_model_do_not_hide_a_rank_that_is_late_in_every_step(
    positions: int, steps: int
) -> None:
    """FSDP2 gathers and scatters each layer: a rank that is 40 ms late before each of 39 steps is named, whatever their number."""
    chance = random.Random(positions)
    syncs = []
    for step in range(steps):
        for number in range(positions):
            late_ns = [chance.randrange(MS // 10) + 40 * MS * (number == 0) * rank for rank in range(2)]
            each = sync(step, number, *late_ns, kind=Kind.ALL_GATHER, at_ns=50 * MS * (number > 0) + MS // 5 * number)
            syncs.append(each)
    (one,) = attribute(syncs, {}).stragglers

    assert (one.rank, one.where, one.verdict) == (1, "all_gather 0", "straggler")


def test_equal_ranks_of_a_deep_model_are_not_late() -> None:
    """Of 300 jobs with four synchronizations a step, whose ranks come in any order, none has a straggler."""
    for seed in range(300):
        chance = random.Random(seed)
        syncs = [
            sync(step, number, *(chance.randrange(MS) for _ in range(2)), at_ns=5 * MS * number)
            for step in range(40)
            for number in range(4)
        ]

        assert attribute(syncs, {}).stragglers == ()


def alternating(step: int, *late_ns: int) -> Sync:
    """Steps of a discriminator of 0.4 MB and of a generator of 1 MB in turn."""
    one = sync(step, 0, *late_ns, kind=Kind.BUCKET)
    size = 1_000_000 if step % 2 else 400_000
    return replace(one, arrivals={rank: replace(each, bytes=size) for rank, each in one.arrivals.items()})


def test_modules_whose_steps_alternate_are_two_places() -> None:
    """A rank is 40 ms late in the generator's steps alone: it is late there, by 40 ms, and not by the mean of both modules."""
    syncs = [alternating(step, 0, 40 * MS if step % 2 else 0) for step in range(80)]
    (one,) = attribute(syncs, {}).stragglers

    assert module_sizes(syncs) == [400_000, 1_000_000]
    assert (one.rank, one.lateness_p50_ns, one.last_share) == (1, 40 * MS, 1.0)
    assert one.where == "bucket 0 of the module with 1 MB of gradients"


def test_a_module_that_is_updated_more_often_has_the_same_places_in_each_step() -> None:
    """A critic's buckets come first in each step, and in each fourth one the generator's follow, where rank 1 is late."""

    def bucket(step: int, number: int, late_ns: int, size: int) -> Sync:
        one = sync(step, number, 0, late_ns, at_ns=60 * MS * number, kind=Kind.BUCKET)
        return replace(one, arrivals={rank: replace(each, bytes=size) for rank, each in one.arrivals.items()})

    syncs = []
    for step in range(160):
        syncs.append(bucket(step, 0, 0, 400_000))
        syncs += [bucket(step, 1, 40 * MS, 1_000_000)] if step % 4 == 3 else []
    (one,) = attribute(syncs, {}).stragglers

    assert module_sizes(syncs) == []
    assert (one.rank, one.lateness_p50_ns, one.where) == (1, 40 * MS, "bucket 1")


def test_equal_ranks_of_two_modules_are_not_late() -> None:
    """Ranks that are late by chance, in alternate steps: of 200 jobs none has a straggler."""
    for seed in range(200):
        chance = random.Random(seed)
        syncs = [alternating(step, *(chance.randrange(3 * MS) for _ in range(2))) for step in range(60)]

        assert attribute(syncs, {}).stragglers == ()


def test_buckets_that_are_made_again_are_no_other_module() -> None:
    """DDP makes its buckets again after the first step; sizes that differ in single steps are no place of their own."""
    syncs = [sync(step, 0, 0, 2 * MS, kind=Kind.BUCKET) for step in range(40)]
    other = {rank: replace(each, bytes=7) for rank, each in syncs[0].arrivals.items()}
    (one,) = attribute([replace(syncs[0], arrivals=other), *syncs[1:]], {}).stragglers

    assert one.where == "bucket 0"


def test_a_rank_that_is_late_in_every_other_step_is_late_by_what_it_is_there() -> None:
    """The median of all steps lies anywhere between the two kinds of steps."""
    chance = random.Random(1)
    syncs = [
        sync(step, 0, chance.randrange(MS), (0 if step % 2 else 60 * MS) + chance.randrange(MS, 2 * MS), 0)
        for step in range(121)
    ]
    (one,) = attribute(syncs, {}).stragglers

    assert one.rank == 1
    assert one.late_share == pytest.approx(0.5, abs=0.01)
    assert one.lateness_p50_ns == pytest.approx(61 * MS, abs=2 * MS)


def test_a_lateness_that_only_varies_is_that_of_all_steps() -> None:
    """Between its small and its large values are others."""
    chance = random.Random(1)
    syncs = [sync(step, 0, 0, chance.randrange(MS, 60 * MS), 0) for step in range(200)]
    (one,) = attribute(syncs, {}).stragglers

    assert one.late_share == 1.0
    assert one.lateness_p50_ns == pytest.approx(30 * MS, abs=6 * MS)
