"""The objects of one poll together: a grandmaster's clock and alarms, without a socket."""

from __future__ import annotations

from typing import Any

import pytest
from recorded_rows import (
    CLOCK,
    NTPV4,
    PTPBASE,
    S650,
    SERVO,
    SYMM_PTP,
    TP5000,
    TP5000E,
    Served,
    alarm,
    sample,
    scalar,
)

from timesyncd.drivers.timeprovider._profiles import DEFAULT
from timesyncd.errors import Malformed
from timesyncd.sample import Alarm, ClockState, GrandmasterSample, Position, PtpPort, Satellite
from timesyncd.snmp import ber
from timesyncd.snmp.messages import PduType, decode_pdu
from timesyncd.snmp.values import Raw

pytestmark = pytest.mark.disable_socket


def test_what_is_not_served_is_absent() -> None:
    """A grandmaster that serves nothing has None everywhere: no zero, no fault, no empty list."""
    bare = sample({})

    assert bare == GrandmasterSample("gm-a", 1, profiles=DEFAULT)


@pytest.mark.parametrize("element", ["470101", "030101", "0600", "02050080000000"])
def test_a_value_that_breaks_snmp_is_undecodable(element: str) -> None:
    """It never passes for text, and costs its own field alone."""
    odd = ber.encode(ber.SEQUENCE, ber.encode_oid((1, 3, 6)) + bytes.fromhex(element))
    reported = ber.encode(PduType.RESPONSE, bytes.fromhex("020107020100020100") + ber.encode(ber.SEQUENCE, odd))
    try:
        raw = decode_pdu(ber.Reader(reported)).varbinds[0].raw
    except Malformed as error:
        raw = str(error).encode()
    found = sample({f"{S650}.2.2": scalar(raw or b""), f"{S650}.2.3": scalar(b"S650")})

    assert (found.serial, found.model, found.unknown) == (None, "S650", (f"serial=undecodable(0x{element})",))


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


def test_an_unknown_state_is_unknown_with_a_note() -> None:
    """A number that no map explains is UNKNOWN, with the number beside it."""
    read = sample({SERVO: {(2, 1): 12}, f"{PTPBASE}.3.1.9": {CLOCK: 6}})

    assert (read.clock_state, read.unknown) == (ClockState.UNKNOWN, ("clock_state=unknown(12)",))


def test_the_first_profile_that_knows_a_field_fills_it() -> None:
    """Precedence is the order of the profiles: the same answers read in another order give the other's state."""
    served: Served = {SERVO: {(2, 1): 9}, f"{PTPBASE}.4.1.4": {CLOCK: 2}}
    states = [sample(served, profiles).clock_state for profiles in (DEFAULT, ("ptpbase", "tp5000e"))]

    assert states == [ClockState.HOLDOVER_OUT_OF_SPEC, ClockState.HOLDOVER]


def test_what_one_profile_does_not_understand_another_may() -> None:
    """An undecodable class in text gives way to the next profile's, and is reported."""
    served: Served = {f"{SYMM_PTP}.5": {(1, 1): b"n/a"}, f"{PTPBASE}.3.1.9": {CLOCK: 140}}
    read = sample(served, ("symm-common", "ptpbase"))

    assert (read.clock_class, read.unknown) == (140, ("clock_class=undecodable(b'n/a')",))


def test_a_standby_module_does_not_speak_for_the_grandmaster() -> None:
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
def test_the_clock_class_implies_the_state_if_nothing_else_reports_it(
    clock_class: int, state: ClockState | None
) -> None:
    """Where clockClass is the only fact it gives the state, and an unassigned class gives none."""
    assert sample({f"{PTPBASE}.3.1.9": {CLOCK: clock_class}}).clock_state is state


def test_an_invalid_utc_offset_is_absent() -> None:
    """A UTC offset that the grandmaster itself calls invalid is not one; TruthValue comes as 2, and as 0 from some."""
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


def test_alarms_keep_the_severity_of_the_grandmaster() -> None:
    """Severity is the row's own, and a number that the MIB lacks is reported, with the alarm kept."""
    read = sample(alarm(1, severity=1))

    assert read.alarms == (Alarm(12, 0, "unknown(1)", "short", "2026-01-02,03:04:05"),)
    assert read.unknown == ("alarms.severity=unknown(1)",)


@pytest.mark.parametrize("columns", [{"severity": 5}, {"severity": 0}, {"id": 27}, {"id": 32}])
def test_events_are_no_alarms(columns: dict[str, Any]) -> None:
    """An event, a cleared alarm and "normal track" are in the alarm table and are no fault."""
    assert sample(alarm(1, **columns)).alarms == ()


@pytest.mark.parametrize(
    ("count", "alarms", "unknown"),
    [(0, (), ()), (3, None, ("alarms=3 counted, none listed",))],
)
def test_an_empty_alarm_table_needs_its_count(count: int, alarms: object, unknown: object) -> None:
    """No rows and a count of 0 is no alarm; no rows and a count of 3 is not known, and reported."""
    read = sample({f"{TP5000E}.2.4": {(0,): count}})

    assert (read.alarms, read.unknown) == (alarms, unknown)


def test_a_wrong_type_hides_no_other_value() -> None:
    """It is reported as it came, and the state that another object shows stays."""
    read = sample({SERVO: {(2, 1): 4}, f"{PTPBASE}.3.1.9": {CLOCK: "1.3.6"}})

    assert (read.clock_state, read.clock_class) == (ClockState.LOCKED, None)
    assert read.unknown == ("clock_class=undecodable('1.3.6')",)


@pytest.mark.parametrize("number", [4, 5])
def test_the_same_integer_is_another_state_in_the_older_model(number: int) -> None:
    """4 and 5 are locked and holdover in a TP5000E, holdover and free run in a TP5000."""
    new = sample({SERVO: {(2, 1): number}}).clock_state
    old = sample({f"{TP5000}.2.1.6": scalar(number)}).clock_state

    assert (new, old) == {
        4: (ClockState.LOCKED, ClockState.HOLDOVER), 5: (ClockState.HOLDOVER, ClockState.FREERUN)
    }[number]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (b"Warm-up", ClockState.WARMUP), (b"Free-run", ClockState.FREERUN), (b"Fast-track", ClockState.ACQUIRING),
        (b"Normal-track", ClockState.LOCKED), (b"Locked", ClockState.LOCKED), (b"Not locked", ClockState.UNKNOWN),
        (b"Bridging", ClockState.HOLDOVER), (b"HOLDOVER", ClockState.HOLDOVER),
        (b"Holdover exceeded", ClockState.HOLDOVER_OUT_OF_SPEC), (b"Holdover recovery", ClockState.ACQUIRING),
        (b"Failure", ClockState.FAULT), (b"", ClockState.UNKNOWN), (b"Clock fault", ClockState.FAULT),
        (b"Reference clock: none", ClockState.UNKNOWN), (b"No lock", ClockState.UNKNOWN),
        (b"Loss of lock", ClockState.UNKNOWN), (b"Lock lost", ClockState.UNKNOWN), (b"Abnormal", ClockState.UNKNOWN),
    ],
)  # fmt: skip
def test_an_s650_reports_its_state_as_text(text: bytes, state: ClockState) -> None:
    """Free text is matched by the profile's patterns, and what none of them finds is UNKNOWN."""
    assert sample({f"{S650}.3.1": scalar(text)}).clock_state is state


def test_an_instance_of_99_is_an_instance() -> None:
    """An agent's clock may have any instance number; its domain is in the index as well."""
    clock = (44, 1, 99)
    read = sample({f"{PTPBASE}.3.1.9": {clock: 6}, f"{PTPBASE}.3.1.11": {clock: 0x4E5D - 0x10000}})

    assert (read.clock_class, read.offset_scaled_log_variance, read.domain) == (6, 0x4E5D, 44)


@pytest.mark.parametrize(("steps", "reported"), [(0, (6, 0x21, None)), (1, (None, None, "PTP 00a069.fffe.112233"))])
def test_a_clock_without_a_parent_is_its_own(steps: int, reported: object) -> None:
    """The parent data set describes the grandmaster itself only if it follows no other clock; otherwise it names that clock."""
    parent: dict[int, Raw] = {8: bytes.fromhex("00a069fffe112233"), 11: 6, 12: 0x21}
    served: Served = {f"{PTPBASE}.2.1.{column}": {CLOCK: raw} for column, raw in parent.items()}
    read = sample(served | {f"{PTPBASE}.1.1.4": {CLOCK: steps}})

    assert (read.clock_class, read.clock_accuracy, read.selected_reference) == reported


@pytest.mark.parametrize(
    ("leap59", "leap61", "leap"), [(2, 2, "none"), (0, 0, "none"), (2, 1, "insert"), (1, 2, "delete"), (1, 1, "both")]
)
def test_leap_seconds_of_ptp(leap59: int, leap61: int, leap: str) -> None:
    """leap61 inserts, leap59 deletes, and both at once is a contradiction, which a finding names."""
    read = sample({f"{PTPBASE}.5.1.6": {CLOCK: leap59}, f"{PTPBASE}.5.1.7": {CLOCK: leap61}})

    assert (read.leap, read.unknown) == (leap, ())


def test_traceability_and_ntp() -> None:
    """The values of NTP and of PTP are kept side by side."""
    read = sample({
        f"{PTPBASE}.5.1.8": {CLOCK: 1}, f"{PTPBASE}.5.1.9": {CLOCK: 0}, f"{PTPBASE}.5.1.11": {CLOCK: 0x20},
        f"{NTPV4}.1": scalar(5), f"{NTPV4}.2": scalar(1), f"{NTPV4}.11": scalar(-1),
    })  # fmt: skip

    assert (read.time_traceable, read.frequency_traceable, read.time_source) == (True, False, 0x20)
    assert (read.ntp_mode, read.ntp_stratum, read.ntp_leap) == ("synchronized to a reference clock", 1, "delete")


def test_an_alarm_without_text_has_its_family_s_name() -> None:
    """The id means what the family's table states."""
    read = sample(alarm(1, id=99, text=b""))

    assert [alarm.text for alarm in read.alarms or ()] == ["fan"]


def test_the_older_model_is_read_whole() -> None:
    """A TP5000's own tables fill the same neutral fields."""
    row = (1,)
    read = sample({
        f"{TP5000}.1.3": scalar(b"TimeProvider 5000"), f"{TP5000}.1.5.1.8": {(1,): b"1.2"}, f"{TP5000}.2.1.5": scalar(0),
        f"{TP5000}.2.1.16": scalar(b"-7.6"), f"{TP5000}.2.2.1.1.3": {row: 12}, f"{TP5000}.2.2.1.1.6": {row: 3},
        f"{TP5000}.2.2.1.1.7": {row: b"short"}, f"{TP5000}.2.4.5.1.2": {row: 5}, f"{TP5000}.2.4.5.1.3": {row: 44},
        f"{TP5000}.2.4.5.1.4": {row: 1}, f"{TP5000}.2.5.1.1.7": {row: b"7"}, f"{TP5000}.2.5.1.1.10": {row: 3},
        f"{TP5000}.2.5.1.1.13": {row: b"Master"},
    })  # fmt: skip

    assert (read.model, read.firmware, read.selected_reference, read.phase_offset_ns) == (
        "TimeProvider 5000",
        "1.2",
        "GPS",
        -8,
    )
    assert (read.clock_class, read.clock_state, read.antenna) == (7, ClockState.HOLDOVER, "short")
    assert (read.satellites, read.alarms) == ((Satellite(5, 44, True),), (Alarm(12, 0, "major", "short"),))
    assert read.ports == (PtpPort("port 1", state="master", clients=3),)


def test_an_s650_is_read_whole() -> None:
    """Its inventory, position, NTP and receiver are scalars."""
    read = sample({
        f"{S650}.2.1": scalar(b"5.0.4"), f"{S650}.2.2": scalar(b"SN1"), f"{S650}.2.3": scalar(b"S650"),
        f"{S650}.2.6": scalar(b"Rb"), f"{S650}.3.2": scalar(b"GNSS"), f"{S650}.4.1": scalar(b"52 31 12.0 1 13 24 0.0 1 38"),
        f"{S650}.4.2": scalar(b"Antenna open"), f"{S650}.1.1": scalar(3), f"{S650}.1.2": scalar(16),
        f"{S650}.1.10": scalar(b"server"), f"{S650}.1.11": scalar(b"4"),
    })  # fmt: skip

    assert (read.firmware, read.serial, read.model, read.oscillator) == ("5.0.4", "SN1", "S650", "Rb")
    assert (read.selected_reference, read.gnss_state, read.position) == (
        "GNSS",
        "antenna_fault",
        Position(52.52, 13.4, 38.0),
    )
    assert (read.ntp_leap, read.ntp_stratum, read.ntp_mode) == ("not synchronized", 16, "server")


def test_an_alarm_without_an_id_is_reported_as_unknown() -> None:
    """Its text is kept for the engineer, and no number is made up for it."""
    served = alarm(1)
    served[f"{TP5000E}.2.1.1.7"] = {(1,): b"short", (2,): b"rubidium fault"}
    served[f"{TP5000E}.2.1.1.6"] = {(1,): 4, (2,): 4}
    read = sample(served)

    assert [each.text for each in read.alarms or ()] == ["short"]
    assert read.unknown == ("alarms.id=missing (rubidium fault)",)
