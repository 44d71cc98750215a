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
    """A unit that is polled; what is not told otherwise is as in LOCKED, and its uptime runs."""

    curve: HoldoverCurve | None = CURVE
    last_locked_realtime_ns: int | None = None
    last_locked_accuracy: int | None = 0x21
    memory: GrandmasterMemory = field(init=False)

    def __post_init__(self) -> None:
        locked_ns = self.last_locked_realtime_ns
        stored = None if locked_ns is None else StoredLock(locked_ns, self.last_locked_accuracy)
        self.memory = GrandmasterMemory(self.curve, stored)

    def at(self, seconds: float, **said: Any) -> GrandmasterAssessment:
        """The verdict of a poll so long after the first possible one; it takes a tenth of a second to read."""
        elapsed_ns = round(seconds * NS_PER_S)
        boottime_ns = START_NS + elapsed_ns
        sample = replace(LOCKED, **{"boottime_ns": boottime_ns, "uptime_s": 500_000 + elapsed_ns // NS_PER_S, **said})
        return self.memory.accept(sample, real_ns(seconds + 0.1))

    def kinds(self, seconds: float, **said: Any) -> list[GrandmasterEventKind]:
        return [event.kind for event in self.at(seconds, **said).events]


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
    unit = Polled()
    unit.at(0)
    verdict = unit.at(3_600, **HELD)

    assert verdict.utc == Bound(460, 1)
    assert verdict.holdover_left_ns == (14_400 - 3_600) * NS_PER_S
    assert verdict.clock_state_since_realtime_ns == real_ns(0.1)


def test_a_grandmaster_with_an_accuracy_worse_than_the_curve_begins_with_that() -> None:
    """The curve says how much is added to what the unit was off when it lost its reference."""
    unit = Polled()
    unit.at(0, clock_accuracy=0x22)

    assert unit.at(3_600, **HELD).utc.bound_ns == 250 + 360


@pytest.mark.parametrize(("accuracy", "expected"), [(0xFE, 101), (None, 101), (0x23, 1_000)])
def test_an_accuracy_reported_in_holdover_counts_where_it_is_worse(accuracy: int | None, expected: int) -> None:
    """Unknown is what a unit in holdover may well say; its curve stands in for it."""
    unit = Polled()
    unit.at(0)

    assert unit.at(10, **{**HELD, "clock_accuracy": accuracy}).utc.bound_ns == expected


def test_a_used_up_budget_bounds_nothing() -> None:
    """Beyond the curve's last point, and not before."""
    unit = Polled()
    unit.at(0)

    assert unit.at(14_400, **HELD).utc.bound_ns == 1_540

    spent = unit.at(14_401, **HELD)

    assert (spent.utc.reason, spent.holdover_left_ns) == (Reason.HOLDOVER_BUDGET_EXCEEDED, 0)


def test_without_a_curve_a_holdover_bounds_nothing() -> None:
    """No oscillator is presumed, and the unit's own word for it is told; since when it is so is told all the same."""
    unit = Polled(curve=None)
    unit.at(0)
    verdict = unit.at(10, **HELD, oscillator="OCXO")

    assert (verdict.utc.reason, verdict.detail) == (Reason.NO_HOLDOVER_BUDGET, "OCXO")
    assert verdict.clock_state_since_realtime_ns == real_ns(0.1)


@pytest.mark.parametrize(
    ("said", "reason"),
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
def test_what_bounds_nothing(said: dict[str, Any], reason: Reason) -> None:
    """Each with its own reason, and with none of the last poll's bound."""
    unit = Polled()
    unit.at(0)

    assert unit.at(10, **said).utc == Bound(None, 0, reason)


@pytest.mark.parametrize(
    "said",
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
def test_what_is_no_contradiction(said: dict[str, Any]) -> None:
    """What is not told contradicts nothing, and a unit may follow something else than satellites."""
    assert Polled().at(0, **said).utc.bound_ns == 100


def test_a_bridging_grandmaster_follows_its_curve() -> None:
    """Shortly after the loss it announces the class of before; when it goes on with that it contradicts itself."""
    unit = Polled()
    unit.at(0)
    bridging = {**HELD, "clock_class": 6}
    limit_s = BRIDGING_NS // NS_PER_S

    assert unit.at(limit_s, **bridging).utc.bound_ns == CURVE.at(BRIDGING_NS)
    assert unit.at(limit_s + 1, **bridging).utc.reason is Reason.GRANDMASTER_CONTRADICTS_ITSELF


@pytest.mark.parametrize("dark", [None, ClockState.UNKNOWN])
def test_an_unreported_state_ends_no_holdover(dark: ClockState | None) -> None:
    """It counts like a poll that did not come: the age goes back to the last LOCKED one."""
    unit = Polled()
    unit.at(0)
    unit.at(10, clock_state=dark)

    assert unit.at(3_600, **HELD).utc.bound_ns == 460


def test_a_bad_state_persists_while_no_state_is_reported() -> None:
    """Only a unit that was never seen otherwise than well counts as one that tells nothing."""
    unit = Polled()
    unit.at(0)
    unit.at(10, **HELD)

    assert unit.at(20, clock_state=None).utc.reason is Reason.GRANDMASTER_STATE_UNKNOWN


@pytest.mark.parametrize("state", [ClockState.ACQUIRING, ClockState.FREERUN, ClockState.WARMUP, ClockState.FAULT])
def test_a_holdover_out_of_anything_but_lock_has_no_known_age(state: ClockState) -> None:
    """What it was off when that holdover began is not known either."""
    unit = Polled()
    unit.at(0)
    unit.at(10, clock_state=state, clock_class=248)

    assert unit.at(20, **HELD).utc.reason is Reason.HOLDOVER_AGE_UNKNOWN


def test_a_lock_that_is_not_believed_begins_no_holdover() -> None:
    """A unit that lost its satellites and still says LOCKED is dated back to when it had some."""
    unit = Polled()
    unit.at(0)
    unit.at(1_800, satellites=())

    assert unit.at(3_600, **HELD).utc.bound_ns == 460


# A start while the unit is in holdover already.


def test_after_a_restart_the_stored_lock_dates_the_holdover() -> None:
    """The beginning lies behind the last stored sample that was LOCKED; what was read later does not count."""
    verdict = Polled(last_locked_realtime_ns=real_ns(-3_600)).at(0, **HELD)

    assert verdict.utc.bound_ns == 461
    assert verdict.clock_state_since_realtime_ns == real_ns(-3_600)


def test_after_a_restart_an_accuracy_that_was_worse_than_the_curve_still_counts() -> None:
    """In holdover it need not tell it any more; the curve says only what was added since."""
    unit = Polled(last_locked_realtime_ns=real_ns(-3_600), last_locked_accuracy=0x23)

    assert unit.at(0, **HELD, clock_accuracy=0xFE).utc.bound_ns == 461 + 900


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
    unit = Polled()

    assert [unit.kinds(10 * n, phase_offset_ns=(-1) ** n * 40) for n in range(20)] == [[]] * 20
    assert unit.at(200).invalid_before_realtime_ns is None


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
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
    said: dict[str, Any], kind: GrandmasterEventKind, reason: Reason
) -> None:
    """It happened at some moment between two polls: what followers measured before the later one is void."""
    unit = Polled()
    unit.at(0)
    verdict, later = unit.at(10, **said), unit.at(20, **{**said, "uptime_s": said.get("uptime_s", 500_010) + 10})

    assert [(event.kind, event.realtime_ns) for event in verdict.events] == [(kind, real_ns(10.1))]
    assert (verdict.invalid_before_realtime_ns, verdict.invalidation_reason) == (real_ns(10.1), reason)
    assert (later.events, later.invalid_before_realtime_ns) == ((), real_ns(10.1))


def test_an_uptime_that_rises_may_hide_a_restart() -> None:
    """After a long gap it is larger than before, but lags behind the time that has passed."""
    unit = Polled()
    unit.at(0, uptime_s=30, engine_boots=None)

    assert unit.kinds(600, uptime_s=300, engine_boots=None) == [GrandmasterEventKind.RESTARTED]


def test_an_uptime_that_is_read_at_its_own_pace_is_no_restart() -> None:
    """The same number again is no new reading."""
    unit = Polled()

    assert [unit.kinds(10 * n, uptime_s=500_000 + n // 60 * 600) for n in range(200)] == [[]] * 200


@pytest.mark.parametrize(("boots", "expected"), [(3, []), (None, [GrandmasterEventKind.RESTARTED])])
def test_the_wrap_of_the_uptime_is_no_restart_with_unchanged_boots(
    boots: int | None, expected: list[GrandmasterEventKind]
) -> None:
    """After 497 days sysUpTime begins anew; where the boots are not served that cannot be told from a restart."""
    unit = Polled()
    unit.at(0, uptime_s=UPTIME_WRAPS_S - 5, engine_boots=boots)

    assert unit.kinds(10, uptime_s=5, engine_boots=boots) == expected


def test_unchanged_boots_do_not_hide_a_restart_at_any_other_time() -> None:
    """Some agents never count their boots."""
    unit = Polled()
    unit.at(0)

    assert unit.kinds(10, uptime_s=5) == [GrandmasterEventKind.RESTARTED]


def test_a_phase_that_moves_as_slowly_as_it_may_has_not_jumped() -> None:
    """The threshold is 1 us, twice the accuracy, and 100 ppb of the time between the polls."""
    explained_ns = JUMP_NS + 2 * 100 + 1_000
    unit, other = Polled(), Polled()
    unit.at(0, phase_offset_ns=0)
    other.at(0, phase_offset_ns=0)

    assert unit.kinds(10, phase_offset_ns=explained_ns) == []
    assert other.kinds(10, phase_offset_ns=explained_ns + 1) == [GrandmasterEventKind.PHASE_JUMPED]


def test_a_phase_against_another_reference_is_no_jump() -> None:
    """The two references differ; the unit itself did not move."""
    unit = Polled()
    unit.at(0)

    assert unit.kinds(10, phase_offset_ns=9_000, selected_reference="PPS-1") == []


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
    unit = Polled()
    unit.at(0, time_errors=time_errors(0, gnss=10, ptp=20))

    assert unit.kinds(10, time_errors=time_errors(10, **channels)) == expected


def test_a_channel_without_a_new_measurement_is_no_evidence() -> None:
    """The same measurement again neither jumps nor stands against a jump."""
    unit = Polled()
    unit.at(0, time_errors=time_errors(0, gnss=10, ptp=20))
    mixed = (*time_errors(0, ptp=20), *time_errors(10, gnss=9_000))

    assert unit.kinds(10, time_errors=mixed) == [GrandmasterEventKind.PHASE_JUMPED]


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
    """When it leaves holdover, and when it has locked again: each time its phase may step. Losing lock moves nothing."""
    unit = Polled()
    last = [unit.at(10 * n, clock_state=state) for n, state in enumerate(states)][-1]

    assert [event.kind for event in last.events] == ([expected] if expected else [])
    assert last.invalidation_reason is (expected and Reason.GRANDMASTER_LEFT_HOLDOVER)


def test_of_several_events_the_most_severe_is_the_reason() -> None:
    """All are told; a restart explains the others."""
    unit = Polled()
    unit.at(0)
    unit.at(10, **HELD)
    verdict = unit.at(20, engine_boots=4, uptime_s=3, utc_offset_s=0, clock_state=ClockState.WARMUP)

    assert [event.kind for event in verdict.events] == [
        GrandmasterEventKind.RESTARTED,
        GrandmasterEventKind.UTC_OFFSET_CHANGED,
        GrandmasterEventKind.LEFT_HOLDOVER,
    ]
    assert verdict.invalidation_reason is Reason.GRANDMASTER_RESTARTED


def test_a_leap_second_is_announced_once_and_invalidates_when_it_happens() -> None:
    """Before it nothing moves; then the UTC offset is another one."""
    unit = Polled()
    unit.at(0)
    announced, again = unit.at(10, leap="insert"), unit.at(20, leap="insert")
    happened = unit.at(30, leap="none", utc_offset_s=38)

    assert [event.kind for event in announced.events] == [GrandmasterEventKind.LEAP_ANNOUNCED]
    assert (announced.invalid_before_realtime_ns, announced.utc.bound_ns, again.events) == (None, 100, ())
    assert happened.invalidation_reason is Reason.GRANDMASTER_UTC_OFFSET_CHANGED


def test_a_state_is_dated_at_the_poll_that_reported_it_first() -> None:
    """Not told before a change was seen, and not changed by a poll that says nothing of it."""
    unit = Polled()
    since = [
        unit.at(10 * n, clock_state=state).clock_state_since_realtime_ns
        for n, state in enumerate([ClockState.ACQUIRING, ClockState.LOCKED, None, ClockState.LOCKED])
    ]

    assert since == [None, *[real_ns(10.1)] * 3]


# What is assumed, broken.


def test_a_jump_in_holdover_ends_its_budget() -> None:
    """The curve says how it drifts, not how it jumps: until it is locked again nothing bounds its error."""
    unit = Polled()
    unit.at(0)
    unit.at(10, **{**HELD, "phase_offset_ns": 5})
    jumped = unit.at(20, **{**HELD, "phase_offset_ns": 9_000})
    later = unit.at(30, **{**HELD, "phase_offset_ns": 9_000})
    locked = unit.at(40, phase_offset_ns=9_000)

    assert [verdict.utc.reason for verdict in (jumped, later)] == [Reason.GRANDMASTER_JUMPED] * 2
    assert locked.utc.bound_ns == 100


def test_a_grandmaster_that_restarts_in_holdover_has_no_budget_left() -> None:
    """Whether it kept its time over the restart is not known."""
    unit = Polled()
    unit.at(0)
    unit.at(10, **HELD)

    assert unit.at(20, **HELD, engine_boots=4).utc.reason is Reason.GRANDMASTER_RESTARTED
    assert unit.at(30, **HELD, engine_boots=4).utc.reason is Reason.GRANDMASTER_RESTARTED


def test_a_drift_beyond_the_curve_shows_when_the_grandmaster_locks_again() -> None:
    """Before that nobody who polls it alone can see it: 1 ppb where 0.1 ppb is configured."""
    unit = Polled()
    unit.at(0)
    held, back = unit.at(3_600, **HELD), unit.at(3_610, phase_offset_ns=3_600)

    assert held.utc.bound_ns == 460
    assert (held.events, back.invalidation_reason) == ((), Reason.GRANDMASTER_LEFT_HOLDOVER)


def test_a_holdover_between_two_polls_leaves_no_trace() -> None:
    """The growth covers its drift; a step at its end is seen by the nodes alone."""
    unit = Polled()
    before, after = unit.at(0), unit.at(600)

    assert before.utc.at(600 * NS_PER_S) == 700
    assert after.events == ()


def test_a_clock_that_went_back_while_the_daemon_was_away_makes_a_holdover_younger() -> None:
    """By as much, as long as the stored lock does not lie in the future: nothing on the unit tells."""
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
    Locked until `lost_ns` after the first poll, then on its own. Its error begins with any share of its accuracy and moves by
    any share of what its curve rises by.
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

    def said(self, elapsed_ns: int, tells_accuracy: bool) -> dict[str, Any]:
        accuracy = self.accuracy if tells_accuracy or elapsed_ns < self.lost_ns else 0xFE
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
    unit: Oscillator, gaps_ns: list[int], ages: list[Fraction], tells_accuracy: bool
) -> None:
    """At each poll and at each age for which the verdict holds, whenever between two polls the reference was lost."""
    polled = Polled(unit.curve)
    elapsed_ns = 0
    for gap_ns in (0, *gaps_ns):
        elapsed_ns += gap_ns
        verdict = polled.at(
            elapsed_ns / NS_PER_S, boottime_ns=START_NS + elapsed_ns, **unit.said(elapsed_ns, tells_accuracy)
        )
        left_ns = verdict.holdover_left_ns
        holds_ns = min(GRANDMASTER_EXPIRES_AFTER_NS, unit.curve.end_ns if left_ns is None else left_ns)
        for age_ns in (0, holds_ns, *(int(age * holds_ns) for age in ages)):
            bound_ns, error_ns = verdict.utc.at(age_ns), unit.error_ns(elapsed_ns + age_ns)

            assert bound_ns is None or (error_ns is not None and abs(error_ns) <= bound_ns)
