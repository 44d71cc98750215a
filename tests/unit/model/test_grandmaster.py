"""A grandmaster's own error against UTC, and what happened to it, out of its samples."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import GRANDMASTER_EXPIRES_AFTER_NS, Bound, Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.model.grandmaster import BRIDGING_NS, GrandmasterAssessment, GrandmasterMemory, HoldoverCurve, StoredLock
from timesyncd.model.grandmaster_events import JUMP_NS, UPTIME_WRAPS_S, GrandmasterEventKind
from timesyncd.sample import ACCURACY_NS, ClockState, GrandmasterSample, InputReference, Satellite, TimeError

CURVE = HoldoverCurve(((0, 100), (3_600, 460), (14_400, 1_540)))
"""0.1 ppb for the first hour, and as much after it: round numbers, of no oscillator that there is."""

START_NS = 1_000_000 * NS_PER_S
REAL_MINUS_BOOT_NS = 1_699_000_000 * NS_PER_S

LOCKED = GrandmasterSample(
    source="gm-a",
    boottime_ns=START_NS,
    uptime_s=500_000,
    engine_boots=3,
    clock_state=ClockState.LOCKED,
    phase_offset_ns=5,
    selected_reference="GNSS-1",
    clock_identity="00a069.fffe.704760",
    clock_class=6,
    clock_accuracy=0x21,
    utc_offset_s=37,
    leap="none",
    steps_removed=0,
    satellites=(Satellite(7, 44, True), Satellite(9, 41, True)),
)
HELD: dict[str, Any] = {
    "clock_state": ClockState.HOLDOVER,
    "clock_class": 7,
    "satellites": (),
    "selected_reference": None,
    "phase_offset_ns": None,
}


@dataclass
class Polled:
    """A polled grandmaster: fields that a test does not change are as in LOCKED, and its uptime runs."""

    curve: HoldoverCurve | None = CURVE
    last_locked_realtime_ns: int | None = None
    last_locked_accuracy: int | None = 0x21
    memory: GrandmasterMemory = field(init=False)

    def __post_init__(self) -> None:
        locked_ns = self.last_locked_realtime_ns
        stored = None if locked_ns is None else StoredLock(locked_ns, self.last_locked_accuracy)
        self.memory = GrandmasterMemory(self.curve, stored)

    def at(self, seconds: float, **fields: Any) -> GrandmasterAssessment:
        """The verdict of a poll so long after the first possible one; it takes a tenth of a second to read."""
        elapsed_ns = round(seconds * NS_PER_S)
        boottime_ns = START_NS + elapsed_ns
        sample = replace(LOCKED, **{"boottime_ns": boottime_ns, "uptime_s": 500_000 + elapsed_ns // NS_PER_S, **fields})
        return self.memory.accept(sample, real_ns(seconds + 0.1))

    def kinds(self, seconds: float, **fields: Any) -> list[GrandmasterEventKind]:
        return [event.kind for event in self.at(seconds, **fields).events]


def real_ns(seconds: float) -> int:
    return REAL_MINUS_BOOT_NS + START_NS + round(seconds * NS_PER_S)


# The curve.


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, 100), (1, 101), (10, 101), (3_600, 460), (3_601, 461), (14_400, 1_540), (14_401, None)],
)
def test_a_curve_is_straight_between_its_points_and_ends(seconds: int, expected: int | None) -> None:
    """Every value is rounded up, and beyond the last point there is none."""
    assert CURVE.at(seconds * NS_PER_S) == expected


@pytest.mark.parametrize(
    "points", [(), ((0, 5),), ((1, 0), (2, 0)), ((0, 5), (0, 6)), ((0, 5), (9, 4)), ((0, -1), (9, 4))]
)
def test_what_is_no_curve(points: tuple[tuple[int, int], ...]) -> None:
    """It begins at 0 seconds, has two points or more, its seconds rise and its error never falls."""
    with pytest.raises(ValueError, match="needs two points|must"):
        HoldoverCurve(points)


# The bound on its own error.


def test_a_locked_grandmaster_is_as_good_as_its_accuracy() -> None:
    """It grows by the curve's steepest slope: the reference may be lost right after the poll."""
    verdict = Polled().at(0)

    assert (verdict.utc, verdict.holdover_left_ns) == (Bound(100, 1), None)
    assert verdict.clock_state_since_realtime_ns is None


def test_a_locked_grandmaster_without_a_curve_does_not_grow() -> None:
    """What it would do without its reference is not known, and not guessed."""
    assert Polled(curve=None).at(0).utc == Bound(100, 0)


def test_a_holdover_is_dated_to_the_last_locked_poll() -> None:
    """It began at some moment between two polls: the earlier one counts for the budget."""
    grandmaster = Polled()
    grandmaster.at(0)
    verdict = grandmaster.at(3_600, **HELD)

    assert verdict.utc == Bound(460, 1)
    assert verdict.holdover_left_ns == (14_400 - 3_600) * NS_PER_S
    assert verdict.clock_state_since_realtime_ns == real_ns(0.1)


def test_a_grandmaster_with_an_accuracy_worse_than_the_curve_begins_with_that() -> None:
    """The curve is added to the grandmaster's error at the loss of its reference."""
    grandmaster = Polled()
    grandmaster.at(0, clock_accuracy=0x22)

    assert grandmaster.at(3_600, **HELD).utc.bound_ns == 250 + 360


@pytest.mark.parametrize(("accuracy", "expected"), [(0xFE, 101), (None, 101), (0x23, 1_000)])
def test_an_accuracy_reported_in_holdover_counts_where_it_is_worse(accuracy: int | None, expected: int) -> None:
    """A grandmaster in holdover may report an unknown accuracy; its curve replaces it."""
    grandmaster = Polled()
    grandmaster.at(0)

    assert grandmaster.at(10, **{**HELD, "clock_accuracy": accuracy}).utc.bound_ns == expected


def test_a_used_up_budget_bounds_nothing() -> None:
    """Beyond the curve's last point, and not before."""
    grandmaster = Polled()
    grandmaster.at(0)

    assert grandmaster.at(14_400, **HELD).utc.bound_ns == 1_540

    spent = grandmaster.at(14_401, **HELD)

    assert (spent.utc.reason, spent.holdover_left_ns) == (Reason.HOLDOVER_BUDGET_EXCEEDED, 0)


def test_without_a_curve_a_holdover_bounds_nothing() -> None:
    """No oscillator is assumed; the detail is the reported oscillator, and the state is dated all the same."""
    grandmaster = Polled(curve=None)
    grandmaster.at(0)
    verdict = grandmaster.at(10, **HELD, oscillator="OCXO")

    assert (verdict.utc.reason, verdict.detail) == (Reason.NO_HOLDOVER_BUDGET, "OCXO")
    assert verdict.clock_state_since_realtime_ns == real_ns(0.1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"clock_state": ClockState.WARMUP, "clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        ({"clock_state": ClockState.FREERUN, "clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        ({"clock_state": ClockState.ACQUIRING, "clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        ({"clock_state": ClockState.FAULT, "clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        ({"clock_state": ClockState.HOLDOVER_OUT_OF_SPEC, "clock_class": 140}, Reason.HOLDOVER_BUDGET_EXCEEDED),
        ({"clock_state": ClockState.UNKNOWN}, Reason.GRANDMASTER_STATE_UNKNOWN),
        ({"clock_state": ClockState.LOCKED, "clock_class": 7}, Reason.GRANDMASTER_CONTRADICTS_ITSELF),
        ({"clock_state": ClockState.LOCKED, "clock_class": 248}, Reason.GRANDMASTER_CONTRADICTS_ITSELF),
        ({"clock_state": ClockState.LOCKED, "satellites": ()}, Reason.GRANDMASTER_CONTRADICTS_ITSELF),
        ({"satellites": (Satellite(7, 12, False),)}, Reason.GRANDMASTER_CONTRADICTS_ITSELF),
        ({"satellites": None, "gnss_state": "none"}, Reason.GRANDMASTER_CONTRADICTS_ITSELF),
        ({**HELD, "clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        ({"clock_accuracy": 0xFE}, Reason.GRANDMASTER_ACCURACY_UNKNOWN),
        ({"clock_accuracy": None}, Reason.GRANDMASTER_ERROR_NOT_REPORTED),
        ({"clock_state": None}, Reason.GRANDMASTER_ERROR_NOT_REPORTED),
    ],
)
def test_what_bounds_nothing(fields: dict[str, Any], reason: Reason) -> None:
    """Each with its own reason, and with none of the last poll's bound."""
    grandmaster = Polled()
    grandmaster.at(0)

    assert grandmaster.at(10, **fields).utc == Bound(None, 0, reason)


@pytest.mark.parametrize(
    "fields",
    [
        {"clock_class": 13},
        {"clock_class": None},
        {"satellites": None, "gnss_state": None},
        {"satellites": (), "selected_reference": "PPS-1"},
        {"satellites": (), "selected_reference": None, "references": (InputReference("10MHz-1", "selected"),)},
        {"satellites": (), "steps_removed": 1},
        {"satellites": (Satellite(7, None, None),)},
    ],
)
def test_what_is_no_contradiction(fields: dict[str, Any]) -> None:
    """An unreported field contradicts nothing, and a grandmaster may follow a reference other than satellites."""
    assert Polled().at(0, **fields).utc.bound_ns == 100


def test_a_bridging_grandmaster_follows_its_curve() -> None:
    """Shortly after the loss it announces the class of before; when it goes on with that it contradicts itself."""
    grandmaster = Polled()
    grandmaster.at(0)
    bridging = {**HELD, "clock_class": 6}
    limit_s = BRIDGING_NS // NS_PER_S

    assert grandmaster.at(limit_s, **bridging).utc.bound_ns == CURVE.at(BRIDGING_NS)
    assert grandmaster.at(limit_s + 1, **bridging).utc.reason is Reason.GRANDMASTER_CONTRADICTS_ITSELF


@pytest.mark.parametrize("dark", [None, ClockState.UNKNOWN])
def test_an_unreported_state_ends_no_holdover(dark: ClockState | None) -> None:
    """It counts like a poll that did not come: the age goes back to the last LOCKED one."""
    grandmaster = Polled()
    grandmaster.at(0)
    grandmaster.at(10, clock_state=dark)

    assert grandmaster.at(3_600, **HELD).utc.bound_ns == 460


def test_a_bad_state_persists_while_no_state_is_reported() -> None:
    """Only a grandmaster that never reported a bad state counts as one that does not report its error."""
    grandmaster = Polled()
    grandmaster.at(0)
    grandmaster.at(10, **HELD)

    assert grandmaster.at(20, clock_state=None).utc.reason is Reason.GRANDMASTER_STATE_UNKNOWN


@pytest.mark.parametrize("state", [ClockState.ACQUIRING, ClockState.FREERUN, ClockState.WARMUP, ClockState.FAULT])
def test_a_holdover_out_of_anything_but_lock_has_no_known_age(state: ClockState) -> None:
    """What it was off when that holdover began is not known either."""
    grandmaster = Polled()
    grandmaster.at(0)
    grandmaster.at(10, clock_state=state, clock_class=248)

    assert grandmaster.at(20, **HELD).utc.reason is Reason.HOLDOVER_AGE_UNKNOWN


def test_a_lock_that_is_not_believed_begins_no_holdover() -> None:
    """
    The holdover of a grandmaster that lost its satellites and still reports LOCKED is dated to the last sample with
    satellites.
    """
    grandmaster = Polled()
    grandmaster.at(0)
    grandmaster.at(1_800, satellites=())

    assert grandmaster.at(3_600, **HELD).utc.bound_ns == 460


# The daemon starts while the grandmaster is already in holdover.


def test_after_a_restart_the_stored_lock_dates_the_holdover() -> None:
    """The beginning lies behind the last stored sample that was LOCKED; what was read later does not count."""
    verdict = Polled(last_locked_realtime_ns=real_ns(-3_600)).at(0, **HELD)

    assert verdict.utc.bound_ns == 461
    assert verdict.clock_state_since_realtime_ns == real_ns(-3_600)


def test_after_a_restart_an_accuracy_that_was_worse_than_the_curve_still_counts() -> None:
    """In holdover the accuracy may no longer be reported, and the curve contains only the error added since."""
    grandmaster = Polled(last_locked_realtime_ns=real_ns(-3_600), last_locked_accuracy=0x23)

    assert grandmaster.at(0, **HELD, clock_accuracy=0xFE).utc.bound_ns == 461 + 900


def test_without_a_stored_lock_the_age_of_the_holdover_is_unknown() -> None:
    """The daemon did not see it begin."""
    verdict = Polled().at(0, **HELD)

    assert (verdict.utc.reason, verdict.clock_state_since_realtime_ns) == (Reason.HOLDOVER_AGE_UNKNOWN, None)


def test_a_stored_lock_in_the_future_dates_nothing() -> None:
    """The clock went back while the daemon was away."""
    assert Polled(last_locked_realtime_ns=real_ns(5)).at(0, **HELD).utc.reason is Reason.HOLDOVER_AGE_UNKNOWN


def test_a_stored_lock_from_before_the_grandmaster_s_restart_dates_nothing() -> None:
    """Its uptime is shorter than the lock is old."""
    verdict = Polled(last_locked_realtime_ns=real_ns(-3_600)).at(0, **HELD, uptime_s=1_800)

    assert verdict.utc.reason is Reason.GRANDMASTER_RESTARTED


# What happened.


def test_an_unchanged_grandmaster_has_no_events() -> None:
    """Small moves of the phase and a running uptime are no events."""
    grandmaster = Polled()

    assert [grandmaster.kinds(10 * n, phase_offset_ns=(-1) ** n * 40) for n in range(20)] == [[]] * 20
    assert grandmaster.at(200).invalid_before_realtime_ns is None


@pytest.mark.parametrize(
    ("fields", "kind", "reason"),
    [
        ({"engine_boots": 4}, GrandmasterEventKind.RESTARTED, Reason.GRANDMASTER_RESTARTED),
        ({"uptime_s": 5}, GrandmasterEventKind.RESTARTED, Reason.GRANDMASTER_RESTARTED),
        ({"uptime_s": 5, "engine_boots": None}, GrandmasterEventKind.RESTARTED, Reason.GRANDMASTER_RESTARTED),
        (
            {"clock_identity": "00a069.fffe.000001"},
            GrandmasterEventKind.IDENTITY_CHANGED,
            Reason.GRANDMASTER_IDENTITY_CHANGED,
        ),
        ({"utc_offset_s": 36}, GrandmasterEventKind.UTC_OFFSET_CHANGED, Reason.GRANDMASTER_UTC_OFFSET_CHANGED),
        ({"phase_offset_ns": 5_000}, GrandmasterEventKind.PHASE_JUMPED, Reason.GRANDMASTER_JUMPED),
        ({"phase_offset_ns": -5_000}, GrandmasterEventKind.PHASE_JUMPED, Reason.GRANDMASTER_JUMPED),
    ],
)
def test_an_invalidating_event_is_reported_once_and_dated_at_its_poll(
    fields: dict[str, Any], kind: GrandmasterEventKind, reason: Reason
) -> None:
    """The event lies between two polls: samples of followers from before the later poll are invalid."""
    grandmaster = Polled()
    grandmaster.at(0)
    verdict, later = (
        grandmaster.at(10, **fields),
        grandmaster.at(20, **{**fields, "uptime_s": fields.get("uptime_s", 500_010) + 10}),
    )

    assert [(event.kind, event.realtime_ns) for event in verdict.events] == [(kind, real_ns(10.1))]
    assert (verdict.invalid_before_realtime_ns, verdict.invalidation_reason) == (real_ns(10.1), reason)
    assert (later.events, later.invalid_before_realtime_ns) == ((), real_ns(10.1))


def test_an_uptime_that_rises_may_hide_a_restart() -> None:
    """After a long gap it is larger than before, but lags behind the time that has passed."""
    grandmaster = Polled()
    grandmaster.at(0, uptime_s=30, engine_boots=None)

    assert grandmaster.kinds(600, uptime_s=300, engine_boots=None) == [GrandmasterEventKind.RESTARTED]


def test_an_uptime_that_is_read_at_its_own_pace_is_no_restart() -> None:
    """The same number again is no new reading."""
    grandmaster = Polled()

    assert [grandmaster.kinds(10 * n, uptime_s=500_000 + n // 60 * 600) for n in range(200)] == [[]] * 200


@pytest.mark.parametrize(("boots", "expected"), [(3, []), (None, [GrandmasterEventKind.RESTARTED])])
def test_the_wrap_of_the_uptime_is_no_restart_with_unchanged_boots(
    boots: int | None, expected: list[GrandmasterEventKind]
) -> None:
    """After 497 days sysUpTime wraps; without engine boots that cannot be distinguished from a restart."""
    grandmaster = Polled()
    grandmaster.at(0, uptime_s=UPTIME_WRAPS_S - 5, engine_boots=boots)

    assert grandmaster.kinds(10, uptime_s=5, engine_boots=boots) == expected


def test_unchanged_boots_do_not_hide_a_restart_at_any_other_time() -> None:
    """Some agents never count their boots."""
    grandmaster = Polled()
    grandmaster.at(0)

    assert grandmaster.kinds(10, uptime_s=5) == [GrandmasterEventKind.RESTARTED]


def test_a_phase_that_moves_as_slowly_as_it_may_has_not_jumped() -> None:
    """The threshold is 1 us, twice the accuracy, and 100 ppb of the time between the polls."""
    explained_ns = JUMP_NS + 2 * 100 + 1_000
    grandmaster, other = Polled(), Polled()
    grandmaster.at(0, phase_offset_ns=0)
    other.at(0, phase_offset_ns=0)

    assert grandmaster.kinds(10, phase_offset_ns=explained_ns) == []
    assert other.kinds(10, phase_offset_ns=explained_ns + 1) == [GrandmasterEventKind.PHASE_JUMPED]


def test_a_phase_against_another_reference_is_no_jump() -> None:
    """The two references differ; the grandmaster itself did not move."""
    grandmaster = Polled()
    grandmaster.at(0)

    assert grandmaster.kinds(10, phase_offset_ns=9_000, selected_reference="PPS-1") == []


def time_errors(at_s: int, **channels: int) -> tuple[TimeError, ...]:
    return tuple(TimeError(name, "te", value, real_ns(at_s)) for name, value in channels.items())


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        ({"gnss": 9_000}, [GrandmasterEventKind.PHASE_JUMPED]),
        ({"gnss": 9_000, "ptp": 9_100}, [GrandmasterEventKind.PHASE_JUMPED]),
        ({"gnss": 9_000, "ptp": 100}, []),
        ({"gnss": 300, "ptp": 100}, []),
    ],
)
def test_a_jump_of_every_measured_channel_is_the_grandmaster_s(channels: dict[str, int], expected: list[str]) -> None:
    """A channel that jumps alone among several is that input's own."""
    grandmaster = Polled()
    grandmaster.at(0, time_errors=time_errors(0, gnss=10, ptp=20))

    assert grandmaster.kinds(10, time_errors=time_errors(10, **channels)) == expected


def test_a_channel_without_a_new_measurement_is_no_evidence() -> None:
    """A repeated measurement is evidence neither for a phase jump nor against one."""
    grandmaster = Polled()
    grandmaster.at(0, time_errors=time_errors(0, gnss=10, ptp=20))
    mixed = (*time_errors(0, ptp=20), *time_errors(10, gnss=9_000))

    assert grandmaster.kinds(10, time_errors=mixed) == [GrandmasterEventKind.PHASE_JUMPED]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((ClockState.HOLDOVER, ClockState.LOCKED), GrandmasterEventKind.LEFT_HOLDOVER),
        ((ClockState.HOLDOVER, ClockState.ACQUIRING), GrandmasterEventKind.LEFT_HOLDOVER),
        ((ClockState.HOLDOVER_OUT_OF_SPEC, ClockState.LOCKED), GrandmasterEventKind.LEFT_HOLDOVER),
        ((ClockState.HOLDOVER, None, ClockState.UNKNOWN, ClockState.LOCKED), GrandmasterEventKind.LEFT_HOLDOVER),
        ((ClockState.ACQUIRING, ClockState.LOCKED), GrandmasterEventKind.RELOCKED),
        ((ClockState.HOLDOVER, ClockState.HOLDOVER_OUT_OF_SPEC), None),
        ((ClockState.LOCKED, ClockState.HOLDOVER), None),
        ((ClockState.LOCKED, None, ClockState.LOCKED), None),
        ((ClockState.UNKNOWN, ClockState.LOCKED), None),
    ],
)
def test_relocking_to_a_reference_invalidates(
    states: tuple[ClockState | None, ...], expected: GrandmasterEventKind | None
) -> None:
    """
    When it leaves holdover, and when it has locked again: each time its phase may step. Losing lock moves nothing.
    """
    grandmaster = Polled()
    last = [grandmaster.at(10 * n, clock_state=state) for n, state in enumerate(states)][-1]

    assert [event.kind for event in last.events] == ([expected] if expected else [])
    assert last.invalidation_reason is (expected and Reason.GRANDMASTER_LEFT_HOLDOVER)


def test_of_several_events_the_most_severe_is_the_reason() -> None:
    """All events are reported; a restart explains the others."""
    grandmaster = Polled()
    grandmaster.at(0)
    grandmaster.at(10, **HELD)
    verdict = grandmaster.at(20, engine_boots=4, uptime_s=3, utc_offset_s=0, clock_state=ClockState.WARMUP)

    assert [event.kind for event in verdict.events] == [
        GrandmasterEventKind.RESTARTED,
        GrandmasterEventKind.UTC_OFFSET_CHANGED,
        GrandmasterEventKind.LEFT_HOLDOVER,
    ]
    assert verdict.invalidation_reason is Reason.GRANDMASTER_RESTARTED


def test_a_leap_second_is_announced_once_and_invalidates_when_it_happens() -> None:
    """Before it nothing moves; then the UTC offset is another one."""
    grandmaster = Polled()
    grandmaster.at(0)
    announced, again = grandmaster.at(10, leap="insert"), grandmaster.at(20, leap="insert")
    happened = grandmaster.at(30, leap="none", utc_offset_s=38)

    assert [event.kind for event in announced.events] == [GrandmasterEventKind.LEAP_ANNOUNCED]
    assert (announced.invalid_before_realtime_ns, announced.utc.bound_ns, again.events) == (None, 100, ())
    assert happened.invalidation_reason is Reason.GRANDMASTER_UTC_OFFSET_CHANGED


def test_a_state_is_dated_at_the_poll_that_reported_it_first() -> None:
    """None before a change was seen; a poll without the clock state does not change it."""
    grandmaster = Polled()
    since = [
        grandmaster.at(10 * n, clock_state=state).clock_state_since_realtime_ns
        for n, state in enumerate([ClockState.ACQUIRING, ClockState.LOCKED, None, ClockState.LOCKED])
    ]

    assert since == [None, *[real_ns(10.1)] * 3]


# What is assumed, broken.


def test_a_jump_in_holdover_ends_its_budget() -> None:
    """The curve bounds a drift, not a jump: until the grandmaster locks again its error is unbounded."""
    grandmaster = Polled()
    grandmaster.at(0)
    grandmaster.at(10, **{**HELD, "phase_offset_ns": 5})
    jumped = grandmaster.at(20, **{**HELD, "phase_offset_ns": 9_000})
    later = grandmaster.at(30, **{**HELD, "phase_offset_ns": 9_000})
    locked = grandmaster.at(40, phase_offset_ns=9_000)

    assert [verdict.utc.reason for verdict in (jumped, later)] == [Reason.GRANDMASTER_JUMPED] * 2
    assert locked.utc.bound_ns == 100


def test_a_grandmaster_that_restarts_in_holdover_has_no_budget_left() -> None:
    """Whether it kept its time over the restart is not known."""
    grandmaster = Polled()
    grandmaster.at(0)
    grandmaster.at(10, **HELD)

    assert grandmaster.at(20, **HELD, engine_boots=4).utc.reason is Reason.GRANDMASTER_RESTARTED
    assert grandmaster.at(30, **HELD, engine_boots=4).utc.reason is Reason.GRANDMASTER_RESTARTED


def test_a_drift_beyond_the_curve_shows_when_the_grandmaster_locks_again() -> None:
    """Before that its polls do not show the drift: 1 ppb where 0.1 ppb is configured."""
    grandmaster = Polled()
    grandmaster.at(0)
    held, back = grandmaster.at(3_600, **HELD), grandmaster.at(3_610, phase_offset_ns=3_600)

    assert held.utc.bound_ns == 460
    assert (held.events, back.invalidation_reason) == ((), Reason.GRANDMASTER_LEFT_HOLDOVER)


def test_a_holdover_between_two_polls_leaves_no_trace() -> None:
    """The growth covers its drift; a step at its end is seen by the nodes alone."""
    grandmaster = Polled()
    before, after = grandmaster.at(0), grandmaster.at(600)

    assert before.utc.at(600 * NS_PER_S) == 700
    assert after.events == ()


def test_a_clock_that_went_back_while_the_daemon_was_away_makes_a_holdover_younger() -> None:
    """By as much, as long as the stored lock does not lie in the future: no field of the grandmaster reveals it."""
    went_back_s = 1_800
    verdict = Polled(last_locked_realtime_ns=real_ns(went_back_s - 3_600)).at(0, **HELD)

    assert verdict.utc.bound_ns == CURVE.at((3_600 - went_back_s) * NS_PER_S + NS_PER_S // 10)


# The truth: simulated oscillators.

curves = st.builds(
    lambda first, rises: HoldoverCurve(tuple(_summed(first, rises))),
    st.integers(0, 1_000),
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 50_000)), min_size=1, max_size=4),
)


def _summed(first_ns: int, rises: list[tuple[int, int]]) -> list[tuple[int, int]]:
    points = [(0, first_ns)]
    for seconds, more_ns in rises:
        points.append((points[-1][0] + seconds, points[-1][1] + more_ns))
    return points


@dataclass(frozen=True)
class Oscillator:
    """
    Locked until `lost_ns` after the first poll, then on its own. Its error begins with any share of its accuracy and
    moves by any share of what its curve rises by.
    """

    curve: HoldoverCurve
    accuracy: int
    lost_ns: int
    began: Fraction
    moved: Fraction

    def error_ns(self, elapsed_ns: int) -> Fraction | None:
        """None: beyond its curve."""
        began_ns = self.began * ACCURACY_NS[self.accuracy]
        age_ns = elapsed_ns - self.lost_ns
        if age_ns <= 0:
            return began_ns
        risen_ns = self._risen_ns(age_ns)
        return None if risen_ns is None else began_ns + self.moved * risen_ns

    def _risen_ns(self, age_ns: int) -> Fraction | None:
        """Exactly, where the curve itself rounds up."""
        points = self.curve.points
        for (start_s, low_ns), (end_s, high_ns) in itertools.pairwise(points):
            if age_ns <= end_s * NS_PER_S:
                share = Fraction(age_ns - start_s * NS_PER_S, (end_s - start_s) * NS_PER_S)
                return low_ns + share * (high_ns - low_ns) - points[0][1]
        return None

    def fields(self, elapsed_ns: int, reports_accuracy: bool) -> dict[str, Any]:
        accuracy = self.accuracy if reports_accuracy or elapsed_ns < self.lost_ns else 0xFE
        return {"clock_accuracy": accuracy, **(HELD if elapsed_ns >= self.lost_ns else {})}


shares = st.fractions(-1, 1, max_denominator=1_000)
oscillators = st.builds(
    Oscillator, curves, st.sampled_from([0x20, 0x21, 0x22, 0x23]), st.integers(1, 10**13), shares, shares
)


@given(
    oscillators,
    st.lists(st.integers(1, 10**13), min_size=1, max_size=6),
    st.lists(st.fractions(0, 1, max_denominator=10**6), min_size=1, max_size=4),
    st.booleans(),
)
def test_the_true_error_of_a_grandmaster_within_its_curve_is_within_its_bound(
    oscillator: Oscillator, gaps_ns: list[int], ages: list[Fraction], reports_accuracy: bool
) -> None:
    """At each poll and at each age for which the verdict holds, whenever between two polls the reference was lost."""
    polled = Polled(oscillator.curve)
    elapsed_ns = 0
    for gap_ns in (0, *gaps_ns):
        elapsed_ns += gap_ns
        verdict = polled.at(
            elapsed_ns / NS_PER_S, boottime_ns=START_NS + elapsed_ns, **oscillator.fields(elapsed_ns, reports_accuracy)
        )
        left_ns = verdict.holdover_left_ns
        holds_ns = min(GRANDMASTER_EXPIRES_AFTER_NS, oscillator.curve.end_ns if left_ns is None else left_ns)
        for age_ns in (0, holds_ns, *(int(age * holds_ns) for age in ages)):
            bound_ns, error_ns = verdict.utc.at(age_ns), oscillator.error_ns(elapsed_ns + age_ns)

            assert bound_ns is None or (error_ns is not None and abs(error_ns) <= bound_ns)
