"""Who is late, and where: what the simulated jobs do not show."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from timesyncd.attribution import LEAST_LATENESS_NS, Straggler, attribute, position_text
from timesyncd.joblink import Kind, Method
from timesyncd.overhead import Arrival, Sync, compare

MS = 1_000_000
STEP_NS = 20 * MS


def sync(step: int, number: int, *late_ns: int, kind: int = Kind.ALL_REDUCE, at_ns: int = 0, clock: str = "a") -> Sync:
    begun_ns = step * STEP_NS + at_ns
    end_ns = begun_ns + max(late_ns) + MS
    arrivals = {
        rank: Arrival(clock, 0, begun_ns + late, begun_ns + late, end_ns, None) for rank, late in enumerate(late_ns)
    }
    return Sync(step, number, kind, arrivals, compare(arrivals))


def test_nothing_says_nothing() -> None:
    """Without synchronizations there is no method and no straggler."""
    seen = attribute([], {})

    assert (seen.method, seen.clock_bound_ns, seen.trusted, seen.stragglers, seen.syncs) == (None, None, False, (), [])


def test_a_rank_late_at_one_place_alone_is_found() -> None:
    """It is not last where the step's skew is widest, which the other rank is; each is named where it is late, the dearer first."""
    syncs = [
        each
        for step in range(30)
        for each in (sync(step, 0, 5 * MS, 0), sync(step, 1, 0, 2 * MS, kind=Kind.BARRIER, at_ns=10 * MS))
    ]

    assert attribute(syncs, {}).stragglers == (
        Straggler(0, 1.0, 5 * MS, 30 * 5 * MS, "all_reduce 0", "straggler"),
        Straggler(1, 1.0, 2 * MS, 30 * 2 * MS, "barrier 0", "straggler"),
    )


def test_a_place_is_its_kind_and_its_order_among_that_kind() -> None:
    """A barrier that only every second step has moves the numbers behind it, and not the places."""
    syncs = []
    for step in range(40):
        extra = step % 2
        syncs += [sync(step, 0, 0, 0, kind=Kind.BARRIER)] * extra
        syncs += [sync(step, extra + n, 0, 3 * MS * n, at_ns=MS + 8 * MS * n) for n in (0, 1)]

    assert [(s.rank, s.where) for s in attribute(syncs, {}).stragglers] == [(1, "all_reduce 1")]


@pytest.mark.parametrize(("by_ns", "names"), [(LEAST_LATENESS_NS, 0), (100_000, 0), (100_001, 1)])
def test_less_than_a_small_part_of_the_step_is_not_worth_a_name(by_ns: int, names: int) -> None:
    """Half a per cent of the step, and fifty microseconds at least."""
    assert len(attribute([sync(step, 0, 0, by_ns) for step in range(30)], {}).stragglers) == names


def test_what_all_ranks_spread_by_is_nobody_s_lateness() -> None:
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
    seen = attribute([*(sync(step, 0, 0, 5 * MS) for step in range(30)), half], {})

    assert half not in seen.syncs
    assert [s.last_share for s in seen.stragglers] == [1.0]


def test_of_a_part_of_the_world_nobody_is_judged() -> None:
    """Where one rank's marks are lost throughout, it may be the late one."""
    syncs = [sync(step, 0, 0, 5 * MS) for step in range(30)]

    assert [s.rank for s in attribute(syncs, {}, 2).stragglers] == [1]
    assert attribute(syncs, {}, 3) == attribute([], {}, 3)


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
def test_lateness_that_lasts_for_some_steps_names_nobody(correlation: float) -> None:
    """Steps that follow each other tell less than as many independent ones."""
    assert sum(bool(attribute(correlated_job(seed, correlation), {}).stragglers) for seed in range(60)) == 0


def test_a_straggler_that_is_level_for_some_steps_in_a_row_is_named() -> None:
    """The other ranks' steps are independent: a run of its own is no correlation of the job."""
    slow = correlated_job(1, 0.0, lambda step: 0 if 40 <= step < 45 else 9 * MS)

    assert [s.rank for s in attribute(slow, {}).stragglers] == [0]


def test_a_kind_of_a_newer_client_has_a_place_too() -> None:
    """Known ones are told by their label."""
    assert (position_text((Kind.BUCKET, 2)), position_text((99, 0))) == ("bucket 2", "kind 99 0")
