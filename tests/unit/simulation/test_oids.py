"""What the simulator serves, object by object, and what its grandmasters report by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from timesyncd.errors import ConfigError
from timesyncd.simulation.grandmaster import mib as grandmaster_mib
from timesyncd.simulation.grandmaster.agent import TABLES, mib_of
from timesyncd.simulation.grandmaster.alarms import DeviceEvent, SimulatedAlarm, alarm
from timesyncd.simulation.grandmaster.device import Device, Servo
from timesyncd.simulation.grandmaster.gnss import SimulatedPosition, SimulatedSatellite
from timesyncd.simulation.grandmaster.lies import LIES
from timesyncd.simulation.grandmaster.mib import AgentMib
from timesyncd.simulation.grandmaster.notifications import notifications_of, syslog_line
from timesyncd.simulation.grandmaster.simulated import load_recording
from timesyncd.simulation.grandmaster.wire import Oid, Value

MIB_2 = "1.3.6.1.2.1"
PTPBASE = f"{MIB_2}.241.1.2"
VENDOR = "1.3.6.1.4.1.9070.1.2.5"
TP5000E, S650 = f"{VENDOR}.7.1", f"{VENDOR}.7.8"
AT_S = 1_772_600_767.0


def oid(dotted: str) -> Oid:
    return tuple(int(arc) for arc in dotted.split("."))


def walked(mib: AgentMib, below: str = "1") -> dict[Oid, Value]:
    found: dict[Oid, Value] = {}
    at, value = mib.after(oid(below))
    while value != grandmaster_mib.END_OF_MIB_VIEW and at[: len(oid(below))] == oid(below):
        assert at not in found
        found[at] = value
        at, value = mib.after(at)
    return found


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("servo", Servo)
def test_a_walk_is_in_order_and_agrees_with_get(kind: str, servo: Servo) -> None:
    """In every state each object that GETNEXT finds comes after the one before, and GET gives the same value."""
    device = Device(kind=kind, clock=lambda: AT_S)
    device.set_state(servo, alarms=[alarm("holdover", 0, AT_S), alarm("fan", 1, AT_S)])
    found = walked(mib_of(device))

    assert list(found) == sorted(found)
    assert found == {at: mib_of(device).get(at) for at in found}


@pytest.mark.parametrize(
    ("kind", "dotted", "value"),
    [
        ("tp4100", f"{MIB_2}.1.5.0", grandmaster_mib.text("gm-a")),
        ("tp4100", f"{MIB_2}.2.2.1.8.102", grandmaster_mib.integer(1)),
        ("tp4500", f"{MIB_2}.31.1.1.1.15.1", grandmaster_mib.gauge(25_000)),
        ("tp4100", f"{MIB_2}.47.1.1.1.1.11.1", grandmaster_mib.text("SIM0001")),
        ("tp4100", f"{MIB_2}.47.1.1.1.1.5.6", grandmaster_mib.integer(7)),
        ("tp4100", f"{MIB_2}.99.1.1.1.1.103", grandmaster_mib.integer(10)),
        ("tp4100", f"{MIB_2}.99.1.1.1.4.101", grandmaster_mib.integer(380)),
        ("tp4100", f"{PTPBASE}.3.1.9.24.1.0", grandmaster_mib.integer(6)),
        ("tp4100", f"{PTPBASE}.4.1.4.24.1.0", grandmaster_mib.integer(5)),
        ("tp4100", f"{PTPBASE}.5.1.5.24.1.0", grandmaster_mib.integer(37)),
        ("tp4100", f"{PTPBASE}.7.1.10.24.1.0.1", grandmaster_mib.gauge(2)),
        ("tp4100", f"{PTPBASE}.9.1.6.24.1.0.8", grandmaster_mib.integer(6)),
        ("tp4100", f"{MIB_2}.197.1.2.1.0", grandmaster_mib.integer(5)),
        ("tp4100", f"{MIB_2}.197.1.2.2.0", grandmaster_mib.gauge(1)),
        ("tp4100", "1.3.6.1.6.3.10.2.1.2.0", grandmaster_mib.integer(4)),
        ("tp4100", f"{VENDOR}.1.1.1.1.1.5.1.1", grandmaster_mib.text("6")),
        ("tp4100", f"{VENDOR}.1.1.1.1.1.6.1.1", grandmaster_mib.text("0x21")),
        ("tp4100", f"{VENDOR}.1.1.2.1.1.6.1.1", grandmaster_mib.integer(24)),
        ("tp4100", f"{VENDOR}.1.1.1.1.1.8.1.1", grandmaster_mib.integer(2)),
        ("tp4100", f"{VENDOR}.2.1.1.1.1.4.101.1", grandmaster_mib.integer(2)),
        ("tp4100", f"{VENDOR}.2.1.1.2.1.3.101.1", grandmaster_mib.integer(44)),
        ("tp4100", f"{VENDOR}.2.1.1.3.1.2.101.1", grandmaster_mib.text("N52:31:00.00")),
        ("tp4100", f"{VENDOR}.2.1.1.3.1.3.101.1", grandmaster_mib.text("E013:24:00.00")),
        ("tp4100", f"{VENDOR}.2.1.1.3.1.4.101.1", grandmaster_mib.text("+0038.0")),
        ("tp4100", f"{VENDOR}.3.1.1.2.0", grandmaster_mib.text("2026-03-04,05:06:07")),
        ("tp4100", f"{TP5000E}.8.1.1.1.2.2.1", grandmaster_mib.NO_SUCH_OBJECT),
        ("s650", f"{PTPBASE}.3.1.9.24.1.0", grandmaster_mib.NO_SUCH_OBJECT),
        ("s650", f"{VENDOR}.1.1.1.1.1.5.1.1", grandmaster_mib.NO_SUCH_OBJECT),
        ("tp5000e", f"{TP5000E}.8.1.1.1.2.2.1", grandmaster_mib.integer(4)),
        ("tp5000e", f"{TP5000E}.8.1.1.1.3.2.1", grandmaster_mib.text("-3.2")),
        ("tp5000e", f"{TP5000E}.6.1.1.3.101.6.71.78.83.83.45.49", grandmaster_mib.integer(3)),
        ("tp5000e", f"{TP5000E}.2.4.0", grandmaster_mib.integer(0)),
        ("tp5000e", f"{TP5000E}.1.1.1.2.1.5", grandmaster_mib.integer(5)),
        ("s650", f"{S650}.2.3.0", grandmaster_mib.text("SyncServer S650")),
        ("s650", f"{S650}.2.6.0", grandmaster_mib.text("Rb")),
        ("s650", f"{S650}.3.1.0", grandmaster_mib.text("Locked")),
        ("s650", f"{S650}.4.1.0", grandmaster_mib.text("52 31 0.000 1 13 24 0.000 1 38.0")),
    ],
)
def test_objects_of_a_steady_grandmaster(kind: str, dotted: str, value: Value) -> None:
    """Each object is where its MIB has it, with the MIB's type; a model serves its own families and no other's."""
    device = Device(kind=kind, clock=lambda: AT_S)
    device.set_state(Servo.LOCKED, satellites=[SimulatedSatellite(7, 44), SimulatedSatellite(9, 41)])

    assert mib_of(device).get(oid(dotted)) == value


def test_the_alarm_table_holds_the_active_alarms() -> None:
    """A row has number, index, date, severity and text; an alarm without a number here has no row, nor has an event."""
    device = Device(kind="tp5000e")
    device.set_state(
        Servo.HOLDOVER,
        alarms=[
            SimulatedAlarm(9, "critical", "Power B lost", 2, AT_S),
            SimulatedAlarm(None, "minor", "Not in this family", 0, AT_S),
            SimulatedAlarm(27, "event", "Clock in normal track", 0, AT_S),
        ],
    )
    mib = mib_of(device)
    row = {at[-2]: value for at, value in walked(mib, f"{TP5000E}.2.1.1").items() if at[-1] == 1}

    assert row == {
        1: grandmaster_mib.integer(1),
        2: grandmaster_mib.integer(1),
        3: grandmaster_mib.integer(9),
        4: grandmaster_mib.integer(2),
        5: grandmaster_mib.text("2026-03-04,05:06:07"),
        6: grandmaster_mib.integer(2),
        7: grandmaster_mib.text("Power B lost"),
    }
    assert mib.get(oid(f"{TP5000E}.2.1.1.3.2")) == grandmaster_mib.integer(27)
    assert mib.get(oid(f"{TP5000E}.2.1.1.3.3")) == grandmaster_mib.NO_SUCH_INSTANCE
    assert mib.get(oid(f"{TP5000E}.2.4.0")) == grandmaster_mib.integer(1)


def test_a_grandmaster_without_a_reference_has_no_phase_offset() -> None:
    """The row of the servo stays, and the column is absent, not 0."""
    device = Device(kind="tp5000e")
    device.set_state(Servo.HOLDOVER)

    assert mib_of(device).get(oid(f"{TP5000E}.8.1.1.1.2.2.1")) == grandmaster_mib.integer(5)
    assert mib_of(device).get(oid(f"{TP5000E}.8.1.1.1.3.2.1")) == grandmaster_mib.NO_SUCH_INSTANCE


@pytest.mark.parametrize(
    ("clock_class", "traceable"),
    [(6, (1, 1)), (7, (1, 1)), (140, (2, 1)), (248, (2, 2))],
)
def test_time_and_frequency_traceable_follow_the_class(clock_class: int, traceable: tuple[int, int]) -> None:
    """In specification both are, out of it the frequency alone, in freerun none (G.8275.1, table 3)."""
    device = Device()
    device.set_state(Servo.HOLDOVER, clock_class=clock_class)
    mib = mib_of(device)

    assert (mib.get(oid(f"{PTPBASE}.5.1.8.24.1.0")), mib.get(oid(f"{PTPBASE}.5.1.9.24.1.0"))) == tuple(
        map(grandmaster_mib.integer, traceable)
    )


def test_a_position_in_the_south_west_has_its_letters() -> None:
    """South and west are letters, not signs; a sixtieth is carried."""
    device = Device()
    device.receiver.position = SimulatedPosition(-33.99999999, -70.5, -12.5)
    mib = mib_of(device)

    assert mib.get(oid(f"{VENDOR}.2.1.1.3.1.2.101.1")) == grandmaster_mib.text("S34:00:00.00")
    assert mib.get(oid(f"{VENDOR}.2.1.1.3.1.3.101.1")) == grandmaster_mib.text("W070:30:00.00")
    assert mib.get(oid(f"{VENDOR}.2.1.1.3.1.4.101.1")) == grandmaster_mib.text("-0012.5")


def test_a_failed_fan_shows_in_sensor_and_state() -> None:
    """ENTITY-SENSOR calls it broken, ENTITY-STATE disabled with a major alarm; its neighbour is neither."""
    device = Device()
    device.failures.add(("fan", 1))
    mib = mib_of(device)

    assert [mib.get(oid(f"{MIB_2}.99.1.1.1.5.{index}")) for index in (103, 104)] == [
        grandmaster_mib.integer(3),
        grandmaster_mib.integer(1),
    ]
    assert mib.get(oid(f"{MIB_2}.131.1.1.1.3.6")) == grandmaster_mib.integer(2)
    assert mib.get(oid(f"{MIB_2}.131.1.1.1.5.6")) == grandmaster_mib.octets(b"\x10")


def test_a_million_rows_cost_what_is_asked() -> None:
    """The last of a million rows is found at once, and the walk goes on behind the table as before."""
    device = Device(clock=lambda: AT_S)
    honest, mib = mib_of(device), LIES["million-rows"]().mib(mib_of(device))
    columns = f"{VENDOR}.2.1.1.2.1"

    assert mib.after(oid(f"{columns}.2.101.999999"))[0] == oid(f"{columns}.2.101.1000000")
    assert mib.after(oid(f"{columns}.2.101.1000000"))[0] == oid(f"{columns}.3.101.1")
    assert mib.after(oid(f"{columns}.6.101.1000000")) == honest.after(oid(f"{columns}.7.999"))
    assert mib.after(oid(f"{VENDOR}.2.1.1.1.1.4.101.1"))[0] == oid(f"{columns}.2.101.1")


def test_an_event_without_a_number_in_the_family_is_not_sent() -> None:
    """The lost reference has a number of the TP5000's only: the S650's lineage does not report it."""
    event = DeviceEvent("event", AT_S, alarm("reference-lost", 0, AT_S))

    assert notifications_of(event, "s650") == []
    assert syslog_line(event, "s650", "gm-a") is None
    assert len(notifications_of(event, "tp5000")) == 1


def test_an_event_of_a_tp5000e_is_a_notification_of_its_own() -> None:
    """Events that do not stand come as .3 and are marked transient."""
    (sent,) = notifications_of(DeviceEvent("event", AT_S, alarm("normal-track", 0, AT_S)), "tp5000")

    assert sent.oid == oid(f"{TP5000E}.11.3")
    assert dict(sent.varbinds)[oid(f"{TP5000E}.11.1.5.0")] == grandmaster_mib.integer(1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "No such file"),
        (lambda folder: (folder / "walk.snmprec").write_text("1.3.6|4\n"), "snmprec line 1"),
        (lambda folder: (folder / "walk.snmprec").write_bytes(b"\xff\xfe"), "utf-8"),
    ],
)
def test_a_folder_that_is_no_recording_is_refused(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    """The error names the folder and what is wrong."""
    make(tmp_path)
    with pytest.raises(ConfigError, match=words) as raised:
        load_recording(tmp_path)

    assert str(tmp_path) in str(raised.value)
