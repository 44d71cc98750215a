"""The arithmetic of the signals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.ipc.wire_types import MAX_VARIANCE_NS2
from timesyncd.jobs.arrivals import (
    READING_GRANULARITY_NS,
    Arrival,
    Comparison,
    Sync,
    compare,
    summarize,
)
from timesyncd.units import percentile

US = 1_000
MS = 1_000_000


def arrival(
    arrival_ns: int,
    end_ns: int | None = None,
    clock: str | None = "a",
    error_ns: int | None = None,
    real_minus_boot_ns: int = 0,
) -> Arrival:
    return Arrival(
        clock, real_minus_boot_ns, arrival_ns, arrival_ns, arrival_ns if end_ns is None else end_ns, error_ns
    )


def sync(step: int, *arrivals: Arrival, number: int = 0) -> Sync:
    by_rank = dict(enumerate(arrivals))
    return Sync(step, number, 0, by_rank, compare(by_rank))


def test_a_variance_fits_a_message() -> None:
    """Ranks that lie about their times are further apart after an alignment than one message may say."""
    far = 2**66
    compared = compare({0: arrival(-far, 0), 1: arrival(far, far + 1)})

    assert compared is not None
    assert compared.arrival_variance_ns2 == MAX_VARIANCE_NS2
    assert compared.end_variance_ns2 == pytest.approx(far**2 / 4)


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
        late_ranks=(1,),
        surely_late_ranks=(1,),
        arrival_variance_ns2=86e12 / 9,
        end_variance_ns2=2e12 / 9,
        margin_ns=2 * MS,
    )


def test_no_rank_waits_after_its_own_end() -> None:
    """A rank that receives a broadcast and leaves does not wait for later ranks."""
    compared = compare({0: arrival(0, MS), 1: arrival(0, 50 * MS), 2: arrival(40 * MS, 41 * MS)})

    assert compared is not None
    assert compared.waits_ns == {0: MS, 1: 40 * MS, 2: 0}


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
def test_one_rank_that_does_not_compare_invalidates_the_sync(odd: Arrival) -> None:
    """The rank that does not compare may be the last, so no rank's wait is known."""
    assert compare({0: arrival(0, error_ns=US), 1: odd}) is None


def test_a_rank_alone_is_never_last() -> None:
    """A rank is last only among several."""
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
    for rank in compared.surely_late_ranks:
        assert 2 * sum(other < truth[rank] for other in truth.values()) >= len(truth)


def test_nothing_is_none() -> None:
    """Without marks there is no signal, rather than a zero."""
    window = summarize([])

    assert (window.skew_p50_ns, window.skew_p99_ns, window.transfer_p50_ns, window.arrival_variance_ns2) == (None,) * 4
    assert (window.ranks, window.conclusive_steps) == ({}, 0)


def test_window_of_a_late_rank() -> None:
    """Of a rank that is 5 ms late in every step the other one bears the wait."""
    window = summarize(
        [sync(n, arrival(at, at + 6 * MS), arrival(at + 5 * MS)) for n in range(100) for at in [n * 100 * MS]]
    )

    assert (window.ranks[0].wait_p50_ns, window.ranks[0].wait_total_ns) == (5 * MS, 500 * MS)
    assert (window.ranks[1].wait_p50_ns, window.ranks[1].lateness_p50_ns) == (0, 5 * MS)
    assert (window.ranks[0].last_share, window.ranks[1].last_share) == (0.0, 1.0)
    assert (window.skew_p50_ns, window.skew_p99_ns, window.arrival_variance_ns2) == (5 * MS, 5 * MS, 6.25e12)


def test_a_step_has_one_vote() -> None:
    """Of a step's syncs the one with the widest skew speaks: after it the ranks run level, and it is one wait."""
    steps = [
        one
        for n in range(12)
        for one in (
            sync(n, arrival(50 * US), arrival(0)),
            sync(n, arrival(0, 6 * MS), arrival(5 * MS, 6 * MS), number=1),
            sync(n, arrival(6 * MS), arrival(6 * MS), number=2),
        )
    ]
    window = summarize(steps)

    assert (window.conclusive_steps, window.skew_p50_ns) == (12, 5 * MS)
    assert (window.ranks[0].wait_p50_ns, window.ranks[0].wait_total_ns) == (5 * MS, 60 * MS)


def test_at_most_half_of_the_ranks_are_late() -> None:
    """With equal arrivals no rank is late; a rank that is surely late must be so after half of the ranks."""
    level = compare({rank: arrival(0) for rank in range(4)})
    half = compare({0: arrival(0), 1: arrival(0), 2: arrival(5 * MS), 3: arrival(6 * MS)})
    wide = compare(
        {0: arrival(0, clock="b", error_ns=3 * MS), 1: arrival(5 * MS, error_ns=3 * MS), 2: arrival(0, error_ns=3 * MS)}
    )

    assert level is not None and half is not None and wide is not None
    assert (level.late_ranks, level.surely_late_ranks) == ((), ())
    assert (half.late_ranks, half.surely_late_ranks) == ((2, 3), (2, 3))
    assert (wide.late_ranks, wide.surely_late_ranks) == ((1,), ())


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(1, 99))
def test_percentile_is_the_nearest_rank(values: list[int], percent: int) -> None:
    """At least so many of a hundred values do not exceed it, and it is the smallest such value."""
    found = percentile(values, percent)
    enough = [v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values)]

    assert found == min(enough)
