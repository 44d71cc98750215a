"""The arithmetic of the signals."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.overhead import (
    FALSE_ALARM,
    READING_GRANULARITY_NS,
    Arrival,
    Comparison,
    Sync,
    compare,
    percentile,
    slow_rank,
    summarize,
)

US = 1_000
MS = 1_000_000


def arrival(
    arrival_ns: int,
    end_ns: int | None = None,
    clock: str | None = "a",
    error_ns: int | None = None,
    real_minus_boot_ns: int = 0,
) -> Arrival:
    return Arrival(clock, real_minus_boot_ns, arrival_ns, arrival_ns if end_ns is None else end_ns, error_ns)


def sync(step: int, *arrivals: Arrival, number: int = 0) -> Sync:
    by_rank = dict(enumerate(arrivals))
    return Sync(step, number, 0, by_rank, compare(by_rank))


def test_waits_skew_and_transfer() -> None:
    """A rank waits until the last arrival; the transfer is from there to the last end; lateness is against the median."""
    compared = compare({0: arrival(0, 9 * MS), 1: arrival(7 * MS, 10 * MS), 2: arrival(MS, 9 * MS)})

    assert compared == Comparison(
        waits_ns={0: 7 * MS, 1: 0, 2: 6 * MS},
        lateness_ns={0: -MS, 1: 6 * MS, 2: 0},
        skew_ns=7 * MS,
        transfer_ns=3 * MS,
        error_ns=READING_GRANULARITY_NS,
        last_rank=1,
    )


@pytest.mark.parametrize(("lead_ns", "last_rank"), [(500 * US + READING_GRANULARITY_NS, None), (502 * US, 1)])
def test_last_rank_needs_a_lead_above_both_errors(lead_ns: int, last_rank: int | None) -> None:
    """A rank is called last only if its lead exceeds the sum of both half-widths and the reading's granularity."""
    compared = compare({0: arrival(0, clock="a", error_ns=200 * US), 1: arrival(lead_ns, clock="b", error_ns=300 * US)})

    assert compared is not None
    assert compared.last_rank == last_rank
    assert compared.error_ns == 500 * US + READING_GRANULARITY_NS


def test_a_third_rank_with_a_wide_error_makes_it_inconclusive() -> None:
    """The lead must hold against every other rank, not against the second-last alone."""
    compared = compare(
        {
            0: arrival(100 * US, clock="a", error_ns=US),
            1: arrival(200 * US, clock="b", error_ns=US),
            2: arrival(0, clock="c", error_ns=900 * US),
        }
    )

    assert compared is not None
    assert compared.last_rank is None


def test_ranks_of_one_clock_need_no_bound() -> None:
    """Between ranks that read one clock the error is the reading's granularity, with or without PTP."""
    compared = compare({0: arrival(0), 1: arrival(5 * US)})

    assert compared is not None
    assert (compared.error_ns, compared.last_rank) == (READING_GRANULARITY_NS, 1)


@pytest.mark.parametrize(
    "odd",
    [
        arrival(0, clock="b", error_ns=None),
        arrival(0, clock=None, error_ns=US),
        arrival(10, end_ns=9, clock="b", error_ns=US),
        arrival(0, clock="a", error_ns=US, real_minus_boot_ns=2_001),
    ],
    ids=["unknown error", "stepped clock", "ends before it began", "stepped between two ranks"],
)
def test_one_rank_that_does_not_compare_spoils_the_sync(odd: Arrival) -> None:
    """The rank that cannot be placed may be the last, so nobody's wait is known."""
    assert compare({0: arrival(0, error_ns=US), 1: odd}) is None


def test_a_rank_alone_is_never_last() -> None:
    """Last is said of one among several."""
    compared = compare({0: arrival(0)})

    assert compared is not None
    assert (compared.last_rank, compared.skew_ns) == (None, 0)


@st.composite
def true_arrivals(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, Arrival]]:
    """True arrival times, and what ranks read on clocks within their half-widths, with a reading within half the granularity."""
    clocks = draw(st.lists(st.integers(0, 50 * US), min_size=1, max_size=4))
    errors = [draw(st.integers(-half_width, half_width)) for half_width in clocks]
    truth, read = {}, {}
    for rank in range(draw(st.integers(2, 6))):
        clock = draw(st.integers(0, len(clocks) - 1))
        truth[rank] = draw(st.integers(0, 200 * US))
        reading = draw(st.integers(-READING_GRANULARITY_NS // 2, READING_GRANULARITY_NS // 2))
        read[rank] = arrival(truth[rank] + errors[clock] + reading, 10 * MS, f"clock-{clock}", clocks[clock])
    return truth, read


@given(true_arrivals())
def test_the_skew_is_true_within_its_error_and_the_last_is_the_last(
    case: tuple[dict[int, int], dict[int, Arrival]],
) -> None:
    """Whatever the clocks do within their bounds, the error bar holds the true skew and no wrong rank is named."""
    truth, read = case

    compared = compare(read)

    assert compared is not None
    assert abs(compared.skew_ns - (max(truth.values()) - min(truth.values()))) <= compared.error_ns
    for rank, wait_ns in compared.waits_ns.items():
        assert abs(wait_ns - (max(truth.values()) - truth[rank])) <= compared.error_ns
    if compared.last_rank is not None:
        assert truth[compared.last_rank] == max(truth.values())


def test_sync_overhead_is_time_inside_over_time_elapsed() -> None:
    """Each rank counts from its first arrival to its last, on its own clock; the last sync has no end within."""
    steps = [sync(n, arrival(n * 100, n * 100 + 30), arrival(n * 100 + 20, n * 100 + 30)) for n in range(3)]

    assert summarize(steps).sync_overhead == pytest.approx((30 + 30 + 10 + 10) / 400)


def test_sync_overhead_needs_no_comparable_clocks() -> None:
    """Durations are of one clock each, so the ratio holds where no arrival can be compared."""
    steps = [sync(n, arrival(n * 100, n * 100 + 30), arrival(n * 100, n * 100 + 10, clock="b")) for n in range(2)]
    window = summarize(steps)

    assert (window.sync_overhead, window.skew_p50_ns, window.ranks) == (0.2, None, {})


def test_overlapping_syncs_count_once() -> None:
    """The buckets of a step overlap; a moment inside two of them is one moment."""
    syncs = [sync(0, arrival(0, 60)), sync(0, arrival(10, 20), number=1), sync(0, arrival(50, 80), number=2)]

    assert summarize([*syncs, sync(1, arrival(100, 130))]).sync_overhead == 0.8


@pytest.mark.parametrize(
    "between",
    [
        Sync(1, 0, 0, {}, None),
        sync(1, arrival(150, 160, clock=None)),
    ],
    ids=["mark missing", "clock stepped"],
)
def test_sync_overhead_skips_what_was_not_measured(between: Sync) -> None:
    """Elapsed time across a missing mark or a clock step is not counted, since the sync time in it is unknown."""
    before = [sync(0, arrival(0, 50)), sync(0, arrival(100, 110), number=1)]
    after = [sync(2, arrival(1_000, 1_020)), sync(2, arrival(1_100, 1_110), number=1)]

    assert summarize([*before, between, *after]).sync_overhead == 70 / 200


def test_a_step_between_two_marks_breaks_the_run() -> None:
    """A clock that was set ahead by an hour does not dilute the overhead."""
    steps = [sync(0, arrival(0, 50)), sync(1, arrival(100, 110)), sync(2, arrival(3_600_000, real_minus_boot_ns=9_999))]

    assert summarize(steps).sync_overhead == 0.5


def test_nothing_is_none() -> None:
    """Without marks there is no signal, rather than a zero."""
    window = summarize([])

    assert (window.sync_overhead, window.skew_p50_ns, window.transfer_p50_ns, window.slow_rank) == (None,) * 4
    assert (window.ranks, window.conclusive_steps) == ({}, 0)


def test_window_of_a_slow_rank() -> None:
    """A rank that is 5 ms late in every step is named; the other one bears the wait."""
    window = summarize([sync(n, arrival(n * 100 * MS), arrival(n * 100 * MS + 5 * MS)) for n in range(100)])

    assert window.slow_rank == 1
    assert (window.ranks[0].wait_p50_ns, window.ranks[0].wait_total_ns) == (5 * MS, 500 * MS)
    assert (window.ranks[1].wait_p50_ns, window.ranks[1].lateness_p50_ns) == (0, 5 * MS)
    assert (window.ranks[0].last_share, window.ranks[1].last_share) == (0.0, 1.0)


def test_a_step_has_one_vote() -> None:
    """Of a step's syncs the one with the widest skew speaks: after it the ranks run level, and it is one wait."""
    steps = [
        one
        for n in range(12)
        for one in (
            sync(n, arrival(50 * US), arrival(0)),
            sync(n, arrival(0), arrival(5 * MS), number=1),
            sync(n, arrival(6 * MS), arrival(6 * MS), number=2),
        )
    ]
    window = summarize(steps)

    assert (window.conclusive_steps, window.slow_rank, window.skew_p50_ns) == (12, 1, 5 * MS)
    assert (window.ranks[0].wait_p50_ns, window.ranks[0].wait_total_ns) == (5 * MS, 60 * MS)


def test_few_steps_name_nobody() -> None:
    """A pause of a few steps is not a slow rank, however improbable it is by chance."""
    assert slow_rank([3] * 9, world_size=64) is None
    assert slow_rank([3] * 10, world_size=64) == 3


def test_half_of_the_steps_is_not_most() -> None:
    """A rank is slow only if it was last in more than half of the conclusive steps, also when chance excludes less."""
    assert slow_rank([5] * 50 + list(range(50)), world_size=64) == 5
    assert slow_rank([5] * 50 + [6] * 50, world_size=64) is None


@given(st.integers(10, 300), st.sampled_from([2, 3, 8, 64]))
def test_false_alarms_are_rarer_than_stated(steps: int, world_size: int) -> None:
    """For the fewest times last that name a rank, the exact chance that any of equal ranks comes to it is below the stated one."""

    def named(times: int) -> bool:
        rest = [1 + n % max(1, world_size - 1) for n in range(steps - times)]
        return slow_rank([0] * times + rest, world_size) == 0

    times = next((k for k in range(steps // 2 + 1, steps + 1) if named(k)), None)
    p = Fraction(1, world_size)
    tails = [
        sum(math.comb(steps, i) * p**i * (1 - p) ** (steps - i) for i in range(k, steps + 1))
        for k in (() if times is None else (times, times - 1))
    ]

    assert times is None or world_size * tails[0] < FALSE_ALARM
    assert times is None or times == steps // 2 + 1 or world_size * tails[1] >= FALSE_ALARM


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(1, 99))
def test_percentile_is_the_nearest_rank(values: list[int], percent: int) -> None:
    """At least so many of a hundred values do not exceed it, and it is the smallest such value."""
    found = percentile(values, percent)
    enough = [v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values)]

    assert found == min(enough)
