"""The objects of one poll together: a grandmaster's receiver and inputs."""

from __future__ import annotations

import pytest
from recorded_rows import (
    CLOCK,
    HARDWARE,
    PTPBASE,
    S650,
    SYMM_GNSS,
    TP5000E,
    Served,
    alarm,
    reference,
    sample,
    scalar,
    sky,
)

from timesyncd.sample import InputReference, Position, Satellite

pytestmark = pytest.mark.disable_socket


def test_satellites_are_joined_by_their_index() -> None:
    """A satellite whose health or C/N0 is missing keeps its other columns."""
    served = sky(2)
    del served[f"{SYMM_GNSS}.2.1.3"][9, 2]
    served[f"{SYMM_GNSS}.2.1.4"][9, 2] = 7
    read = sample(served)

    assert read.satellites == (Satellite(11, 40, True), Satellite(12, None, None))
    assert read.unknown == ("satellites.health=unknown(7)",)


def test_a_satellite_s_direction_is_read_and_an_impossible_one_is_unknown() -> None:
    """Degrees clockwise from north and above the horizon; a column that an agent does not serve leaves it unknown."""
    directions: Served = {
        f"{SYMM_GNSS}.2.1.5": {(9, 1): 217, (9, 2): 400},
        f"{SYMM_GNSS}.2.1.6": {(9, 1): 34, (9, 2): 91},
    }
    read = sample(sky(2) | directions)

    assert read.satellites == (Satellite(11, 40, True, 217, 34), Satellite(12, 40, True))


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
def test_gnss_state_is_derived(served: Served, state: str | None) -> None:
    """Locked needs a usable GNSS input and four healthy satellites; an antenna alarm states more than satellites do."""
    assert sample(served).gnss_state == state


@pytest.mark.parametrize(
    ("text", "alarm_id", "antenna"),
    [(b"OK", None, "ok"), (b"open", None, "open"), (b"Short circuit", None, "short"), (b"alarm", None, "fault"),
     (b"ok", 12, "short"), (b"open", 11, "fault")],
)  # fmt: skip
def test_the_antenna_by_text_and_alarm(text: bytes, alarm_id: int | None, antenna: str) -> None:
    """An active alarm about the antenna takes precedence over the status text."""
    status: Served = {f"{TP5000E}.1.2.1.2": {(2,): HARDWARE % text}}
    read = sample(status | (alarm(1, id=alarm_id) if alarm_id else {}))

    assert (read.antenna, read.gnss_state) == (antenna, None if antenna == "ok" else "antenna_fault")


@pytest.mark.parametrize(
    ("lines", "antenna"),
    [
        (b"Antenna Voltage : 5.0V\nAntenna Current : 24mA\nGPS Antenna : ok", "ok"),
        (b"Antenna Current : 24mA", None),
        (b"GNSS 1 Antenna : ok\nGNSS 2 Antenna : Open", "open"),
        (b"GNSS 1 Antenna : alarm\nGNSS 2 Antenna : Short", "short"),
        (b"GNSS 1 Antenna : n/a\nGNSS 2 Antenna : Good", "ok"),
        (b"GNSS 1 Antenna : not installed", None),
        (b"GNSS 1 Antenna : undercurrent", "fault"),
    ],
)
def test_the_worst_of_several_antennas(lines: bytes, antenna: str | None) -> None:
    """A voltage or a current is no rating, and neither is an input without an antenna."""
    assert sample({f"{TP5000E}.1.2.1.2": {(2,): lines}}).antenna == antenna


@pytest.mark.parametrize(
    ("text", "state"),
    [(b"Locked", "locked"), (b"Position hold", "locked"), (b"Loss of lock", "tracking"), (b"Lock lost", "tracking"),
     (b"Unlocked", "tracking"), (b"Clock not set", None)],
)  # fmt: skip
def test_an_s650_reports_its_receiver_as_text(text: bytes, state: str | None) -> None:
    """A lock that is lost is none, and a clock is not a lock."""
    assert sample({f"{S650}.4.2": scalar(text)}).gnss_state == state


def test_a_position_in_text() -> None:
    """Degrees, minutes and seconds become degrees north and east."""
    place = (9, 1)
    read = sample({
        f"{SYMM_GNSS}.3.1.2": {place: b"S33:51:36.00"}, f"{SYMM_GNSS}.3.1.3": {place: b"E151:12:36.00"},
        f"{SYMM_GNSS}.3.1.4": {place: b"+0058.1"},
    })  # fmt: skip

    assert read.position == Position(-33.86, 151.21, 58.1)


def test_satellites_in_one_line_of_text() -> None:
    """An S650 lists them; a line that was cut states how many are missing."""
    lists = [
        sample({f"{S650}.4.3": scalar(text)}) for text in (b"2,X5,Y1,CGPS,X31,Y2,CGPS", b"3,X5,Y1,CGPS,X3", b"0", b"?")
    ]

    assert [read.satellites for read in lists] == [
        (Satellite(5, None, None), Satellite(31, None, None)), (Satellite(5, None, None), Satellite(3, None, None)), (), None,
    ]  # fmt: skip
    assert [read.unknown for read in lists] == [
        (), ("satellites=3 counted, 2 listed",), (), ("satellite_list=undecodable('?')",)
    ]  # fmt: skip


#: S650 MIB, gnssSatlist, examples 1 to 3.
BEIDOU_AND_GLONASS = (
    b"11,X2,Y1,CBeiDou,X3,Y2,CBeiDou,X5,Y3,CBeiDou,X9,Y4,CBeiDou,X3,Y5,CGLONASS,X4,Y6,CGLONASS,X13,Y7,CGLONASS,"
    b"X14,Y8,CGLONASS,X15,Y9,CGLONASS,X18,Y10,CGLONASS,X19,Y11,CGLONASS."
)
FOUR_SYSTEMS = (
    b"17,X1,Y1,CGPS,X10,Y2,CGPS,X11,Y3,CGPS,X14,Y4,CGPS,X16,Y5,CGPS,X20,Y6,CGPS,X22,Y7,CGPS,X25,Y8,CGPS,X26,Y9,CGPS,"
    b"X27,Y10,CGPS,X31,Y11,CGPS,X32,Y12,CGPS,X40,Y13,CSBAS,X3,Y14,CBeiDou,X5,Y15,CBeiDou,X7,Y16,CBeiDou,X9,Y17,CBeiDou"
)


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [
        (BEIDOU_AND_GLONASS, [2, 3, 5, 9, 3, 4, 13, 14, 15, 18, 19]),
        (FOUR_SYSTEMS, [1, 10, 11, 14, 16, 20, 22, 25, 26, 27, 31, 32, 40, 3, 5, 7, 9]),
        (b"0", []),
    ],
)
def test_the_satellites_of_the_mib_s_own_examples(listed: bytes, numbers: list[int]) -> None:
    """Satellites of two constellations may have one number; none is lost."""
    read = sample({f"{S650}.4.3": scalar(listed)})

    assert [satellite.number for satellite in read.satellites or ()] == numbers
    assert read.unknown == ()


@pytest.mark.parametrize(
    ("clock_class", "source", "state"), [(6, 0x20, "locked"), (6, 0x40, "tracking"), (7, 0x20, "tracking")]
)
def test_gnss_is_locked_without_a_table_of_references(clock_class: int, source: int, state: str) -> None:
    """A locked clock whose source of time is GNSS uses it, where no table of inputs reports it."""
    served: Served = {
        f"{PTPBASE}.3.1.9": {CLOCK: clock_class},
        f"{PTPBASE}.5.1.11": {CLOCK: source},
    }

    assert sample(sky(4) | served).gnss_state == state


def test_the_selected_reference_is_named() -> None:
    """Its name comes from its column, or from the index where the column is not accessible."""
    served = reference("GNSS-1", 3)
    named = sample(served).selected_reference
    del served[f"{TP5000E}.6.1.1.1"]

    assert (named, sample(served).selected_reference) == ("GNSS-1", "GNSS-1")


def test_references_have_their_qualification() -> None:
    """Each input is listed with what the grandmaster thinks of it, also with a number that no map explains."""
    served = {
        key: value for name, number in (("GNSS-1", 3), ("PTP-1", 7)) for key, value in reference(name, number).items()
    }
    first = reference("GNSS-1", 3)
    merged = {oid: first[oid] | served[oid] for oid in served}

    assert sample(merged).references == (InputReference("PTP-1", "unknown(7)"), InputReference("GNSS-1", "selected"))


def test_a_satellite_without_a_number_is_not_counted() -> None:
    """The others are reported, and a note states that one is missing."""
    served = sky(3)
    del served[f"{SYMM_GNSS}.2.1.2"][9, 2]
    read = sample(served)

    assert [each.number for each in read.satellites or ()] == [11, 13]
    assert read.unknown == ("satellites.number=missing",)
