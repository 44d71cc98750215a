"""What a rank measures of itself: exact sums over a step, a window and an epoch, in a fixed amount of memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.client.local import WINDOW, LocalSignals, LocalSums
from timesyncd.ipc.job_datagram import Kind, step_key


def sync(
    key: int, arrival_ns: int, end_ns: int, begin_ns: int | None = None, kind: int = Kind.BUCKET
) -> tuple[int, ...]:
    return key, 0, kind, arrival_ns, arrival_ns if begin_ns is None else begin_ns, end_ns, 8


def signals_of(*marks: tuple[int, ...]) -> LocalSignals:
    own = LocalSums()
    own.add_all(marks)
    return own.signals()


def test_a_step_that_is_not_over_has_no_signals() -> None:
    """An unknown value is None, never 0."""
    assert signals_of() == signals_of(sync(1, 100, 200)) == LocalSignals(steps=0)


def test_a_steps_overhead_is_its_wait_over_its_length() -> None:
    """It lasts from its first arrival to that of the next one; what was hidden behind compute, before begin, cost nothing."""
    local = signals_of(sync(1, 1_000, 1_100), sync(2, 2_000, 2_500, begin_ns=2_400), sync(3, 3_000, 3_900))

    assert (local.steps, local.wait_step_ns, local.sync_overhead_step) == (2, 100, 0.1)
    assert (local.wait_window_ns, local.sync_overhead_window) == (200, 0.1)


def test_overlapping_buckets_wait_the_same_wait() -> None:
    """Time is counted once, in whatever order the buckets come, and a bucket that was over before backward was costs nothing."""
    buckets = [(300, 900), (300, 700), (300, 300), (200, 450), (950, 960)]

    for order in (buckets, buckets[::-1]):
        local = signals_of(*(sync(1, 100, end_ns, begin_ns) for begin_ns, end_ns in order), sync(2, 1_100, 1_200))
        assert local.wait_step_ns == 700 + 10


def test_a_late_mark_of_the_step_before_ends_no_step() -> None:
    """Its wait counts in the step in which it was waited."""
    local = signals_of(sync(1, 100, 150), sync(2, 200, 220), sync(1, 230, 240), sync(3, 300, 310))

    assert (local.steps, local.wait_step_ns, local.wait_window_ns) == (2, 30, 80)


def test_a_wait_is_never_longer_than_its_step() -> None:
    """One that goes on in the next step makes no ratio above 1."""
    assert signals_of(sync(1, 100, 450), sync(2, 200, 450), sync(3, 500, 510)).sync_overhead_window == (100 + 250) / 400


def test_a_clock_that_was_set_leaves_a_step_out() -> None:
    """Back, or by a day: neither a length below 0 nor one of a day is a step's."""
    day_ns = 86_400 * 10**9
    local = signals_of(
        sync(1, day_ns, day_ns + 10), sync(2, 100, 110), sync(3, 200, 210), sync(4, day_ns * 2, day_ns * 2)
    )

    assert (local.steps, local.sync_overhead_window) == (1, 0.1)


def test_an_epoch_has_sums_of_its_own() -> None:
    """Those of the newest step's epoch; the window goes on over the epochs' border."""
    keys = [step_key(0, 8), step_key(0, 9), step_key(1, 0), step_key(1, 1), step_key(1, 2)]
    local = signals_of(*(sync(key, 100 * at, 100 * at + 10 * at) for at, key in enumerate(keys, 1)))

    assert (local.wait_epoch_ns, local.sync_overhead_epoch) == (30 + 40, 0.35)
    assert (local.wait_window_ns, local.sync_overhead_window) == (10 + 20 + 30 + 40, 0.25)


def test_the_window_holds_its_newest_steps() -> None:
    """A thousand of them, in rings that never grow."""
    own = LocalSums()
    own.add_all(sync(key, 1_000 * key, 1_000 * key + (900 if key < 500 else 100)) for key in range(WINDOW + 500 + 1))
    local = own.signals()

    assert (local.steps, local.wait_window_ns, local.sync_overhead_window) == (WINDOW, 100 * WINDOW, 0.1)


def test_updates_replies_and_ages_have_their_own_figures() -> None:
    """The update's latency counts from the rank's last gradient if that was marked; a parameter server's replies count as waiting."""
    local = signals_of(
        (1, 0, Kind.STEP, 100, 300, 340, 0),
        (2, 0, Kind.STEP, 400, 400, 900, 0),
        *((2, 0, kind, 500, 500, 500 + took, 8) for kind, took in ((Kind.PUSH, 7), (Kind.PULL, 9), (Kind.PULL, 80))),
        *((2, 0, Kind.STALENESS, 600, 600, 600, updates) for updates in (0, 4, 1)),
        (3, 0, Kind.SEND, 5_000, 5_000, 5_000, 8),
        (3, 0, Kind.STEP, 1_000, 1_000, 1_200, 0),
    )

    assert (local.update_latency_p50_ns, local.response_p50_ns, local.response_p99_ns) == (40, 9, 80)
    assert (local.staleness_p50, local.staleness_max) == (1, 4)
    assert (local.steps, local.wait_step_ns, local.sync_overhead_step) == (2, 80, 80 / 600)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1, max_size=12))
def test_waits_in_the_order_of_their_begins_are_added_up_exactly(spans: list[tuple[int, int]]) -> None:
    """The union of the intervals, which a set of nanoseconds counts one by one."""
    waits = sorted((1_000 + begin, 1_000 + begin + length) for begin, length in spans)
    waited = {ns for begin, end in waits for ns in range(begin, end)}
    local = signals_of(*(sync(1, 1_000, end, begin) for begin, end in waits), sync(2, 2_000, 2_000))

    assert local.wait_step_ns == len(waited)


whole = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(whole, whole, st.integers(0, 20), whole, whole, whole, whole), max_size=30))
def test_any_marks_add_up_to_something(marks: list[tuple[int, ...]]) -> None:
    """Whatever a caller marks, nothing is raised, and ratios stay ratios."""
    local = signals_of(*marks)

    assert all(ratio is None or 0 <= ratio <= 1 for ratio in (local.sync_overhead_step, local.sync_overhead_window))
    assert local.sync_overhead_epoch is None or 0 <= local.sync_overhead_epoch <= 1


@pytest.mark.parametrize("kind", [Kind.SEND, Kind.RECEIVE, Kind.STALENESS, 99])
def test_marks_without_a_wait_make_no_step(kind: int) -> None:
    """Messages, ages and kinds of a later version do not change a step's length."""
    assert signals_of((1, 0, kind, 1, 1, 2, 1), (2, 0, kind, 5, 5, 6, 1)).steps == 0
