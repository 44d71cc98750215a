"""What the model makes of a recorded trace: which rows are fresh, what ages, and what is known of UTC."""

from __future__ import annotations

from typing import Any

import pytest
from clock_lab import Lab, deadbeat
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import ClockStatus
from timesyncd.clocks import NS_PER_S
from timesyncd.model.replay import Replay, ReplayedRow, TraceEvent, TraceRow
from timesyncd.sample import PortState

ACCURACY_100_NS = 0x21


def row(lab: Lab, **changes: Any) -> TraceRow:
    """What a client reads right after the next Sync."""
    sample = lab.sync()
    assert sample.frequency_ppb is not None
    next_sync = TraceRow(
        sample.read_ns,
        sample.offset_ns,
        sample.path_delay_ns,
        -sample.frequency_ppb,
        PortState.SLAVE,
        True,
        6,
        ACCURACY_100_NS,
    )
    return next_sync._replace(**changes)


def noisy() -> Lab:
    """No two offsets are equal, since a repeated offset is not fresh."""
    return Lab(servo=lambda offset_ns: -offset_ns // 3)


def next_row(lab: Lab, **changes: Any) -> TraceRow:
    lab.forward_ns = 10_000 + 10 * (lab.seconds % 7)
    return row(lab, **changes)


def replayed(replay: Replay, lab: Lab, seconds: int = 70, **changes: Any) -> ReplayedRow:
    for _ in range(seconds):
        last = replay.accept(next_row(lab, **changes))
    return last


def frozen(last: TraceRow, lab: Lab, **changes: Any) -> TraceRow:
    """A second later, and nothing new."""
    lab.silence()
    return last._replace(t_ns=lab.boottime_ns, **changes)


def test_a_bound_is_given_for_each_row_once_the_filter_is_full() -> None:
    """
    Twice the filter's length in seconds, since a trace has no counters; and all four bounds hold then.
    """
    lab, replay = noisy(), Replay()
    rows = [replay.accept(next_row(lab)) for _ in range(60)]
    first = next(index for index, each in enumerate(rows) if each.gm_hard_ns is not None)

    assert first == 21
    assert rows[first - 1] == ReplayedRow(rows[first - 1].t_ns, ClockStatus.UNKNOWN, None, None, None, None)
    assert {each.status for each in rows[first:]} == {ClockStatus.SYNCHRONIZED}
    assert {None in each for each in rows[first:]} == {False}


@pytest.mark.parametrize("with_frequency", [True, False])
def test_the_truth_is_inside_while_a_path_changes(with_frequency: bool) -> None:
    """
    `freq_ppb` is positive when the clock is slowed, and may be absent.
    """
    lab, replay = Lab(rate_ppb=35_000, servo=deadbeat), Replay()
    bounds = []
    for second in range(140):
        if second == 80:
            lab.forward_ns += 150_000
        if second > 80:
            lab.forward_ns += 1
        one = replay.accept(next_row(lab) if second < 80 else row(lab) if with_frequency else row(lab, freq_ppb=None))
        bounds.append((abs(lab.true_ns), one.gm_hard_ns))

    assert max(true_ns for true_ns, _ in bounds) > 100_000
    assert all(true_ns <= bound_ns for true_ns, bound_ns in bounds if bound_ns is not None)
    assert None not in [bound_ns for _, bound_ns in bounds[80:]]


def test_a_repeated_offset_is_not_fresh() -> None:
    """
    Port, grandmaster and class may all look well: it ages to HOLDOVER, and after 1000 s nothing is known.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    last = next_row(lab)
    rows = [replay.accept(last), *(replay.accept(frozen(last, lab)) for _ in range(1_100))]
    bounds = [each.gm_hard_ns for each in rows]
    held = [bound_ns for bound_ns in bounds if bound_ns is not None]

    assert [rows[second].status for second in (0, 4, 5, 999, 1_000)] == [
        ClockStatus.SYNCHRONIZED,
        ClockStatus.SYNCHRONIZED,
        ClockStatus.HOLDOVER,
        ClockStatus.HOLDOVER,
        ClockStatus.UNKNOWN,
    ]
    assert held == sorted(held)
    assert bounds[1_000:] == [None] * 101


def test_a_row_that_is_a_sync_is_fresh_with_the_same_offset() -> None:
    """
    A line of a log is one Sync, also where the clock is off by the same number of nanoseconds.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    last = next_row(lab)
    replay.accept(last)
    rows = [replay.accept(frozen(last, lab, is_sync=True)) for _ in range(20)]

    assert {row.status for row in rows} == {ClockStatus.SYNCHRONIZED}


@pytest.mark.parametrize("event", list(TraceEvent))
@pytest.mark.parametrize("with_sync", [True, False])
def test_an_event_makes_all_earlier_samples_invalid(event: TraceEvent, with_sync: bool) -> None:
    """
    It is DISRUPTED until as many seconds have passed as at first; a Sync in the same row came after the event.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    lab.true_ns += 5_000_000
    row = next_row(lab)
    after = [replay.accept(row._replace(event=event) if with_sync else TraceRow(row.t_ns, None, event=event))]
    after += [replay.accept(next_row(lab)) for _ in range(25)]
    first = next(index for index, each in enumerate(after) if each.gm_hard_ns is not None)

    assert {each.status for each in after[:first]} == {ClockStatus.DISRUPTED}
    assert first == (21 if with_sync else 22)
    assert after[-1].status is ClockStatus.SYNCHRONIZED


def test_another_parent_makes_all_earlier_samples_invalid() -> None:
    """
    The clock may already follow the new master when its first Sync is logged.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    after = [replay.accept(next_row(lab, parent=1)) for _ in range(30)]

    assert [each.status for each in after[:20]] == [ClockStatus.DISRUPTED] * 20
    assert after[-1].status is ClockStatus.SYNCHRONIZED


def test_a_sync_that_is_dated_is_no_older_than_that() -> None:
    """
    After a minute without rows it is of the second before it was logged.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    lab.silence(60)
    row = next_row(lab, is_sync=True)

    assert replay.accept(row._replace(after_ns=row.t_ns - NS_PER_S)).status is ClockStatus.SYNCHRONIZED


def test_a_frozen_offset_is_not_fresh_for_an_empty_row_in_between() -> None:
    """
    It is compared with the last reported offset, however old.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    last = next_row(lab)
    replay.accept(last)
    rows = []
    for _ in range(10):
        replay.accept(TraceRow(lab.boottime_ns + NS_PER_S // 2, None))
        rows.append(replay.accept(frozen(last, lab)))

    assert rows[-1].status is ClockStatus.HOLDOVER


@given(st.lists(st.integers(0, 3), min_size=80, max_size=80), st.booleans())
def test_rows_without_anything_change_nothing_of_what_follows(empties: list[int], with_state: bool) -> None:
    """
    Empty rows only let time pass: each row with values gets the same bounds as without them.
    """
    lab, plain, mixed = noisy(), Replay(), Replay()
    for count in empties:
        full = next_row(lab)
        for index in range(count):
            state = PortState.SLAVE if with_state else None
            mixed.accept(TraceRow(full.t_ns - NS_PER_S + (index + 1) * NS_PER_S // 5, None, port_state=state))

        assert mixed.accept(full) == plain.accept(full)


def test_the_age_of_a_sync_counts_from_the_last_row_with_another() -> None:
    """
    After a minute without one it may be as old: a row without an offset did not look.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    for _ in range(60):
        lab.silence()
        replay.accept(TraceRow(lab.boottime_ns, None))
    after, next_one = replay.accept(next_row(lab)), replay.accept(next_row(lab))

    assert (after.status, next_one.status) == (ClockStatus.HOLDOVER, ClockStatus.SYNCHRONIZED)


@pytest.mark.parametrize("changes", [{"offset_ns": None}, {"path_delay_ns": None}])
def test_half_a_sample_is_none(changes: dict[str, Any]) -> None:
    """
    Nothing follows from an offset without a delay, nor the other way round.
    """
    lab, replay = noisy(), Replay()

    assert replayed(replay, lab, **changes).gm_hard_ns is None


@pytest.mark.parametrize("state", [PortState.LISTENING, PortState.MASTER, PortState.FAULTY])
def test_a_port_that_does_not_follow_gives_nothing_fresh(state: PortState) -> None:
    """
    And what its filter held is forgotten: after its return as many seconds are wanted as at first, while the bound
    ages.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    away = replayed(replay, lab, 10, port_state=state)
    returned = [replay.accept(next_row(lab)).status for _ in range(25)]

    assert away.status is ClockStatus.HOLDOVER
    assert returned == [ClockStatus.HOLDOVER] * 20 + [ClockStatus.SYNCHRONIZED] * 5


def test_a_kick_goes_on_while_no_sync_comes() -> None:
    """
    The frequency of a frozen row is read all the same.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    lab.frequency_ppb += 30_000
    freq_ppb = -lab.frequency_ppb
    for _ in range(60):
        lab.silence()
        one = replay.accept(TraceRow(lab.boottime_ns, None, freq_ppb=freq_ppb, port_state=PortState.LISTENING))

        assert one.gm_hard_ns is not None
        assert abs(lab.true_ns) <= one.gm_hard_ns


def test_a_clock_that_is_slowed_comes_back() -> None:
    """
    It was 200 us ahead and is slowed by 20 ppm for ten seconds: a frequency of the wrong sign would have it 400 us
    ahead.
    """
    lab, replay = Lab(servo=lambda offset_ns: 0), Replay()
    lab.true_ns = 200_000
    replayed(replay, lab)
    lab.frequency_ppb -= 20_000
    for _ in range(11):
        one = replay.accept(TraceRow(lab.boottime_ns, None, freq_ppb=-lab.frequency_ppb))
        lab.silence()

    assert one.gm_hard_ns is not None
    assert one.gm_hard_ns < 100_000


@pytest.mark.parametrize(
    ("clock_class", "accuracy", "beyond_ns"),
    [(6, ACCURACY_100_NS, 100), (7, ACCURACY_100_NS, 1_600), (248, ACCURACY_100_NS, None), (6, 0xFE, None)]
    + [(None, ACCURACY_100_NS, None), (6, None, None), (13, ACCURACY_100_NS, None)],
)
def test_utc_is_the_grandmaster_and_its_own_error(
    clock_class: int | None, accuracy: int | None, beyond_ns: int | None
) -> None:
    """
    Its accuracy at class 6, the default holdover budget on top at 7, else unbounded; to the statistical bound alike.
    """
    last = replayed(Replay(), noisy(), clock_class=clock_class, clock_accuracy=accuracy)

    assert last.gm_hard_ns is not None and last.gm_stat_ns is not None
    if beyond_ns is None:
        assert (last.utc_hard_ns, last.utc_stat_ns) == (None, None)
    else:
        assert (last.utc_hard_ns, last.utc_stat_ns) == (last.gm_hard_ns + beyond_ns, last.gm_stat_ns + beyond_ns)


def test_a_class_that_gets_worse_counts_without_a_sync() -> None:
    """
    Announce goes on when Sync does not. One that gets better waits for a sample that it is true of.
    """
    lab, replay = noisy(), Replay()
    replayed(replay, lab)
    last = next_row(lab)
    replay.accept(last)
    lost, held, again = (replay.accept(frozen(last, lab, clock_class=clock_class)) for clock_class in (248, 7, 6))
    assert held.gm_hard_ns is not None and again.gm_hard_ns is not None

    assert (lost.utc_hard_ns, lost.utc_stat_ns) == (None, None)
    assert held.utc_hard_ns == held.gm_hard_ns + 1_600
    assert again.utc_hard_ns == again.gm_hard_ns + 100


@pytest.mark.parametrize("every_s", [2, 10])
def test_rows_far_apart_hold_the_truth_through_a_kick(every_s: int) -> None:
    """
    A Sync may be of any moment since the last row: what the clock runs by counts from the reading on.
    """
    lab, replay = noisy(), Replay()
    for _ in range(60):
        for _ in range(every_s):
            full = next_row(lab)
        replay.accept(full)
    lab.frequency_ppb += 40_000
    for _ in range(20):
        lab.silence(every_s)
        one = replay.accept(TraceRow(lab.boottime_ns, None, freq_ppb=-lab.frequency_ppb))

        assert one.gm_hard_ns is not None
        assert abs(lab.true_ns) <= one.gm_hard_ns


@given(
    st.lists(
        st.tuples(
            st.integers(1, 20 * NS_PER_S),
            st.none() | st.integers(-(10**12), 10**12),
            st.none() | st.integers(-(10**9), 10**9),
            st.none() | st.integers(-(10**9), 10**9),
            st.none() | st.sampled_from(list(PortState)),
        ),
        max_size=100,
    )
)
def test_any_trace_is_replayed(cells: list[tuple[int, int | None, int | None, int | None, PortState | None]]) -> None:
    """
    Whatever was recorded: a row for each, no bound below 0, no statistical one above the hard one.
    """
    replay, t_ns = Replay(), 0
    for elapsed_ns, offset_ns, path_delay_ns, freq_ppb, port_state in cells:
        t_ns += elapsed_ns
        one = replay.accept(TraceRow(t_ns, offset_ns, path_delay_ns, freq_ppb, port_state))

        assert one.t_ns == t_ns
        assert (one.gm_hard_ns is None) == (one.status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED))
        assert one.gm_hard_ns is None or 0 <= (one.gm_stat_ns or 0) <= one.gm_hard_ns
