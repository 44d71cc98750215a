"""What the objects of one poll say together, without a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from timesyncd.drivers._assemble import assemble
from timesyncd.drivers._decoders import Raw
from timesyncd.drivers._profiles import SHIPPED, Index, Oid, load, parse_oid
from timesyncd.drivers.timeprovider import TimeProvider, TimeProviderOptions
from timesyncd.errors import ConfigError, Malformed
from timesyncd.sample import Alarm, ClockState, GrandmasterSample, Satellite

pytestmark = pytest.mark.disable_socket

TP5000E = "1.3.6.1.4.1.9070.1.2.5.7.1"
PTPBASE = "1.3.6.1.2.1.241.1.2"
SYMM_GNSS = "1.3.6.1.4.1.9070.1.2.5.2.1.1"
SYMM_PTP = "1.3.6.1.4.1.9070.1.2.5.1.1.1.1.1"

SERVO = f"{TP5000E}.8.1.1.1.2"
CLOCK = (24, 1, 0)


def sample(served: dict[str, dict[Index, Raw]], profiles: tuple[str, ...] = SHIPPED) -> GrandmasterSample:
    rows: dict[Oid, dict[Index, Raw]] = {parse_oid(oid): values for oid, values in served.items()}
    return assemble("gm-a", 1, [load(name) for name in profiles], rows)


def alarm(row: int, **columns: Raw) -> dict[str, dict[Index, Raw]]:
    """One row of the TP5000E's alarm table; defaults are an alarm that stands."""
    values: dict[str, Raw] = {"id": 12, "index": 0, "since": b"2026-01-02,03:04:05", "severity": 4, "text": b"short"}
    numbers = {"id": 3, "index": 4, "since": 5, "severity": 6, "text": 7}
    return {f"{TP5000E}.2.1.1.{numbers[name]}": {(row,): raw} for name, raw in (values | columns).items()}


def sky(healthy: int, unhealthy: int = 0) -> dict[str, dict[Index, Raw]]:
    places = range(1, healthy + unhealthy + 1)
    return {
        f"{SYMM_GNSS}.2.1.2": {(9, place): 10 + place for place in places},
        f"{SYMM_GNSS}.2.1.3": {(9, place): 40 for place in places},
        f"{SYMM_GNSS}.2.1.4": {(9, place): 1 if place <= healthy else 2 for place in places},
    }


def reference(name: str, qualification: int) -> dict[str, dict[Index, Raw]]:
    index = (9, len(name), *name.encode())
    return {f"{TP5000E}.6.1.1.1": {index: name.encode()}, f"{TP5000E}.6.1.1.3": {index: qualification}}


def test_what_is_not_served_is_absent() -> None:
    """A unit that serves nothing has None everywhere: no zero, no fault, no empty list."""
    bare = sample({})

    assert bare == GrandmasterSample("gm-a", 1, profiles=SHIPPED)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (1, ClockState.WARMUP), (2, ClockState.FREERUN), (3, ClockState.ACQUIRING), (4, ClockState.LOCKED),
        (5, ClockState.HOLDOVER), (6, ClockState.HOLDOVER), (7, ClockState.FAULT), (8, ClockState.UNKNOWN),
        (9, ClockState.HOLDOVER_OUT_OF_SPEC), (10, ClockState.FREERUN), (11, ClockState.HOLDOVER),
    ],
)  # fmt: skip
def test_servo_states_of_the_tp5000e(number: int, state: ClockState) -> None:
    """Each number of the TP5000E's servo has its neutral state."""
    assert sample({SERVO: {(2, 1): number}}).clock_state is state


def test_an_unknown_state_is_unknown_and_told() -> None:
    """A number that no map explains is UNKNOWN, with the number beside it."""
    read = sample({SERVO: {(2, 1): 12}, f"{PTPBASE}.3.1.9": {CLOCK: 6}})

    assert (read.clock_state, read.unknown) == (ClockState.UNKNOWN, ("clock_state=unknown(12)",))


def test_the_first_profile_that_knows_a_field_fills_it() -> None:
    """Precedence is the order of the profiles: the same answers read in another order give the other's state."""
    served: dict[str, dict[Index, Raw]] = {SERVO: {(2, 1): 9}, f"{PTPBASE}.4.1.4": {CLOCK: 2}}
    states = [sample(served, profiles).clock_state for profiles in (SHIPPED, ("ptpbase", "tp5000e"))]

    assert states == [ClockState.HOLDOVER_OUT_OF_SPEC, ClockState.HOLDOVER]


def test_what_one_profile_does_not_understand_another_may() -> None:
    """An undecodable class in text gives way to the next profile's, and is told."""
    served: dict[str, dict[Index, Raw]] = {f"{SYMM_PTP}.5": {(1, 1): b"n/a"}, f"{PTPBASE}.3.1.9": {CLOCK: 140}}
    read = sample(served, ("symm-common", "ptpbase"))

    assert (read.clock_class, read.unknown) == (140, ("clock_class=undecodable(b'n/a')",))


def test_a_standby_module_does_not_speak_for_the_unit() -> None:
    """Of two servo rows, the one that is offline gives way to the one that runs."""
    assert sample({SERVO: {(2, 1): 8, (3, 1): 4}}).clock_state is ClockState.LOCKED


def test_empty_inventory_rows_are_passed_over() -> None:
    """A chassis without a model name leaves it to the next entity."""
    read = sample({"1.3.6.1.2.1.47.1.1.1.1.13": {(1,): b"", (2,): b"TimeProvider 4100"}})

    assert read.model == "TimeProvider 4100"


@pytest.mark.parametrize(
    ("clock_class", "state"),
    [
        (6, ClockState.LOCKED), (7, ClockState.HOLDOVER), (135, ClockState.HOLDOVER),
        (140, ClockState.HOLDOVER_OUT_OF_SPEC), (165, ClockState.HOLDOVER_OUT_OF_SPEC), (248, ClockState.FREERUN),
        (200, None),
    ],
)  # fmt: skip
def test_the_class_tells_the_state_where_nothing_else_does(clock_class: int, state: ClockState | None) -> None:
    """Where clockClass is the only fact it gives the state, and an unassigned class gives none."""
    assert sample({f"{PTPBASE}.3.1.9": {CLOCK: clock_class}}).clock_state is state


def test_an_invalid_utc_offset_is_absent() -> None:
    """A UTC offset that the unit itself calls invalid is not one; TruthValue comes as 2, and as 0 from some."""
    offsets = {
        flag: sample({f"{PTPBASE}.5.1.5": {CLOCK: 37}, f"{PTPBASE}.5.1.4": {CLOCK: flag}}).utc_offset_s
        for flag in (1, 2, 0)
    }

    assert offsets == {1: 37, 2: None, 0: None}


def test_an_offset_needs_a_parent() -> None:
    """A grandmaster's own offsetFromMaster of 0 is no measurement; behind a parent it is the phase offset."""
    interval = (-42 * 65536).to_bytes(8, "big", signed=True)
    offsets = [
        sample({f"{PTPBASE}.1.1.4": {CLOCK: steps}, f"{PTPBASE}.1.1.5": {CLOCK: interval}}).phase_offset_ns
        for steps in (0, 1)
    ]

    assert offsets == [None, -42]


def test_satellites_are_joined_by_their_index() -> None:
    """A satellite whose health or C/N0 is missing keeps its other columns."""
    served = sky(2)
    del served[f"{SYMM_GNSS}.2.1.3"][9, 2]
    served[f"{SYMM_GNSS}.2.1.4"][9, 2] = 7
    read = sample(served)

    assert read.satellites == (Satellite(11, 40, True), Satellite(12, None, None))
    assert read.unknown == ("satellites.health=unknown(7)",)


@pytest.mark.parametrize(
    ("served", "state"),
    [
        (sky(4) | reference("GNSS-1", 3), "locked"),
        (sky(4) | reference("GPS", 1), "locked"),
        (sky(3, 5) | reference("GNSS-1", 3), "tracking"),
        (sky(8) | reference("GNSS-1", 2), "tracking"),
        (sky(8) | reference("PTP-1", 3), "tracking"),
        (sky(8), "tracking"),
        ({f"{SYMM_GNSS}.1.1.4": {(9, 1): 2}}, "none"),
        ({}, None),
        (sky(8) | reference("GNSS-1", 3) | alarm(1), "antenna_fault"),
        (sky(8) | alarm(1, id=500, text=b"Antenna current high"), "antenna_fault"),
        (sky(8) | reference("GNSS-1", 3) | alarm(1, id=42, text=b"near client limit"), "locked"),
    ],
)
def test_gnss_state_is_derived(served: dict[str, dict[Index, Raw]], state: str | None) -> None:
    """Locked needs a usable GNSS input and four healthy satellites; an antenna alarm says more than satellites do."""
    assert sample(served).gnss_state == state


def test_the_selected_reference_is_named() -> None:
    """Its name comes from its column, or from the index where the column is not accessible."""
    served = reference("GNSS-1", 3)
    named = sample(served).selected_reference
    del served[f"{TP5000E}.6.1.1.1"]

    assert (named, sample(served).selected_reference) == ("GNSS-1", "GNSS-1")


def test_alarms_keep_the_severity_of_the_unit() -> None:
    """Severity is the row's own, and a number that the MIB lacks is told, with the alarm kept."""
    read = sample(alarm(1, severity=1))

    assert read.alarms == (Alarm(12, 0, "unknown(1)", "short", "2026-01-02,03:04:05"),)
    assert read.unknown == ("alarms.severity=unknown(1)",)


@pytest.mark.parametrize("columns", [{"severity": 5}, {"severity": 0}, {"id": 27}])
def test_events_are_no_alarms(columns: dict[str, Any]) -> None:
    """An event, a cleared alarm and "normal track" stand in the alarm table and are no fault."""
    assert sample(alarm(1, **columns)).alarms == ()


@pytest.mark.parametrize(
    ("count", "alarms", "unknown"),
    [(0, (), ()), (3, None, ("alarms=3 counted, none listed",))],
)
def test_an_empty_alarm_table_needs_its_count(count: int, alarms: object, unknown: object) -> None:
    """No rows and a count of 0 is no alarm; no rows and a count of 3 is not known, and told."""
    read = sample({f"{TP5000E}.2.4": {(0,): count}})

    assert (read.alarms, read.unknown) == (alarms, unknown)


def test_a_wrong_type_gives_no_sample() -> None:
    """One value of the wrong type is an error that names it; nothing of the answer is kept."""
    with pytest.raises(Malformed, match=r"clock_class .*241\.1\.2\.3\.1\.9\.24\.1\.0.*an integer is wanted"):
        sample({SERVO: {(2, 1): 4}, f"{PTPBASE}.3.1.9": {CLOCK: "1.3.6"}})


def options(**more: Any) -> TimeProviderOptions:
    return TimeProviderOptions.model_validate({"host": "192.0.2.1", "community": {"env": "GM_COMMUNITY"}} | more)


def test_unknown_profiles_are_told_at_once() -> None:
    """A profile that does not exist is an error of the configuration, not of the first poll."""
    with pytest.raises(ValidationError, match="profile 'tp9999': unknown; shipped are"):
        options(profiles=["tp9999"])


def test_there_is_no_default_community() -> None:
    """No credential stands in the code."""
    with pytest.raises(ValidationError, match="community"):
        TimeProviderOptions.model_validate({"host": "192.0.2.1"})


def test_an_unreadable_community_is_told_before_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that is not there stops the start, and the community is never printed."""
    monkeypatch.setenv("GM_COMMUNITY", "quiet-word")
    shown = repr(vars(TimeProvider("gm-a", options(), tmp_path)))
    monkeypatch.delenv("GM_COMMUNITY")
    with pytest.raises(ConfigError, match="GM_COMMUNITY"):
        TimeProvider("gm-a", options(), tmp_path)

    assert "quiet-word" not in shown
