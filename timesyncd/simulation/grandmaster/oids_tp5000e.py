"""TP5000E: lights, hardware, alarms and events, packet services, references, servo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from timesyncd.simulation.grandmaster import mib
from timesyncd.simulation.grandmaster.alarms import KINDS, AlarmKind, SimulatedAlarm
from timesyncd.simulation.grandmaster.device import Device, Servo
from timesyncd.simulation.grandmaster.hardware import CHASSIS, CLOCK_MODULE, SimulatedReference
from timesyncd.simulation.grandmaster.mib import Rows, Table, numbered, scalars
from timesyncd.simulation.grandmaster.notifications import SEVERITIES, SYS_MODULE
from timesyncd.simulation.grandmaster.oids_standard import indexed
from timesyncd.simulation.grandmaster.wire import Index, Oid, Value

TP5000E: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7, 1)
ALARMS, EVENTS = (*TP5000E, 2, 1, 1), (*TP5000E, 2, 2, 1)

QUALIFICATIONS = {"disabled": 0, "qualified": 1, "disqualified": 2, "selected": 3}
STATUS_WORDS = {
    Servo.WARMUP: "Warmup", Servo.FREERUN: "Freerun", Servo.FAST_TRACK: "Fast-track", Servo.LOCKED: "Normal",
    Servo.HOLDOVER: "Holdover", Servo.BRIDGING: "Bridging", Servo.FAILED: "Fail", Servo.EXTENDED_HOLDOVER: "Holdover",
}  # fmt: skip
_OFF, _RED, _GREEN, _GREEN_BLINKING, _AMBER = 0, 2, 4, 5, 6
_PTP_GM = 1
_TIME_MODE, _BY_PRIORITY = 1, 2
_HOLDOVER_QUARTZ_S, _HOLDOVER_RUBIDIUM_S = 86_400, 259_200


def tp5000e_tables() -> list[Table]:
    return [_lights(), *_texts(), *_alarms(), _services(), _references(), *_clock()]


def _lights() -> Table:
    """By entPhysicalIndex and the light's number."""
    lamps: dict[int, Callable[[Device], int]] = {
        3: lambda device: _GREEN,
        4: lambda device: _RED if _standing(device) else _OFF,
        5: lambda device: {"locked": _GREEN, "tracking": _GREEN_BLINKING}.get(device.gnss_state, _AMBER),
        11: lambda device: _AMBER if device.servo in (Servo.HOLDOVER, Servo.EXTENDED_HOLDOVER) else _OFF,
        12: lambda device: _GREEN if device.has_time_reference else _AMBER,
        13: lambda device: _lamp_of_sensor(device, "power A"),
        14: lambda device: _lamp_of_sensor(device, "power B"),
    }
    return Table((*TP5000E, 1, 1, 1), lambda device: [((CHASSIS, led), lamp(device)) for led, lamp in lamps.items()], {
        2: mib.integer,
    })  # fmt: skip


def _lamp_of_sensor(device: Device, name: str) -> int:
    return _GREEN if any(sensor.ok for sensor in device.sensors if sensor.name == name) else _RED


def _texts() -> list[Table]:
    """Several lines each, as the grandmaster's own commands print them."""
    parts = {2: _hardware_text, 4: lambda device: f"IOC warmup status : {_warmup(device)}", 5: _status_text}
    return [
        Table((*TP5000E, 1, part, 1), lambda device: [((CLOCK_MODULE,), device)], {2: _as_text(value_of)})
        for part, value_of in parts.items()
    ]


def _as_text(value_of: Callable[[Device], str]) -> Callable[[Any], Value]:
    return lambda device: mib.text(value_of(device))


def _hardware_text(device: Device) -> str:
    values = {sensor.name: sensor for sensor in device.sensors}
    return "\n".join((
        f"-48V-A : {_ok(values['power A'].ok)}",
        f"-48V-B : {_ok(values['power B'].ok)}",
        f"Temperature : {values['temperature board'].value:.1f}C",
        f"GPS Antenna : {device.receiver.antenna}",
        f"GPS Current : {device.receiver.antenna_current_ma:.0f}mA",
    ))  # fmt: skip


def _ok(ok: bool) -> str:
    return "ok" if ok else "fail"


def _warmup(device: Device) -> str:
    return "warming up" if device.servo is Servo.WARMUP else "completed"


def _status_text(device: Device) -> str:
    selected = [reference.name for reference in device.references if reference.qualification == "selected"]
    offset = f"{device.phase_offset_ns:.1f}" if device.has_time_reference else "N/A"
    ports = [f"PTP mode {port.name} : {port.state}" for port in device.ports]
    return "\n".join((
        f"System name : {device.name}",
        f"IOC warmup status : {_warmup(device)}",
        "Reference mode : time",
        f"Current reference input : {', '.join(selected) or 'none'}",
        f"Phase offset : {offset}",
        f"Clock status : {STATUS_WORDS[device.servo]}",
        *ports,
        f"Active alarms : {len(_standing(device))}",
    ))  # fmt: skip


def _standing(device: Device) -> list[SimulatedAlarm]:
    """Those that have a number in this family; what is an event does not stand."""
    return [alarm for alarm in device.alarms if alarm.id is not None and alarm.severity != "event"]


def _alarm_rows(device: Device) -> Rows:
    return numbered(list(enumerate((alarm for alarm in device.alarms if alarm.id is not None), start=1)))


def _event_rows(device: Device) -> Rows:
    return numbered(list(enumerate((alarm for alarm in device.events if alarm.id is not None), start=1)))


def _alarms() -> list[Table]:
    common: dict[int, Callable[[Any], Value]] = {
        1: lambda row: mib.integer(row[0]),
        2: lambda _: mib.integer(SYS_MODULE),
        3: lambda row: mib.integer(row[1].id),
        4: lambda row: mib.integer(row[1].index),
        5: lambda row: mib.text(f"{datetime.fromtimestamp(row[1].raised_s, UTC):%Y-%m-%d,%H:%M:%S}"),
    }
    severity = {6: lambda row: mib.integer(SEVERITIES[row[1].severity])}
    known: Mapping[Index, AlarmKind] = {(kind.id,): kind for kind in KINDS.values() if kind.id is not None}
    return [
        Table(ALARMS, _alarm_rows, common | severity | {7: lambda row: mib.text(row[1].text)}),
        Table(EVENTS, _event_rows, common | {6: lambda row: mib.text(row[1].text)}),
        Table((*TP5000E, 2, 3, 1), lambda _: indexed(known), {
            2: lambda kind: mib.integer(kind.id), 3: lambda kind: mib.integer(SEVERITIES[kind.severity]),
            4: lambda _: mib.integer(0), 5: lambda _: mib.integer(1), 6: lambda kind: mib.text(kind.text),
        }),
        scalars((*TP5000E, 2), {4: lambda device: mib.integer(len(_standing(device)))}),
    ]  # fmt: skip


def _services() -> Table:
    return Table((*TP5000E, 4, 1, 1), lambda device: [((port.number,), port) for port in device.ports], {
        2: lambda _: mib.integer(_PTP_GM),
    })  # fmt: skip


def _references() -> Table:
    """By ifIndex and name: its length, then its characters."""
    return Table((*TP5000E, 6, 1, 1), _reference_rows, {
        1: lambda reference: mib.text(reference.name),
        2: lambda _: mib.integer(2),
        3: lambda reference: mib.integer(QUALIFICATIONS[reference.qualification]),
    })  # fmt: skip


def _reference_rows(device: Device) -> Rows:
    def index(reference: SimulatedReference) -> Oid:
        return (reference.if_index, len(reference.name), *reference.name.encode())

    return indexed({index(reference): reference for reference in device.references})


def _clock() -> list[Table]:
    def phase_offset(device: Device) -> Value | None:
        return mib.text(f"{device.phase_offset_ns:.1f}") if device.has_time_reference else None

    return [
        scalars((*TP5000E, 7), {1: lambda _: mib.integer(_TIME_MODE), 2: lambda _: mib.integer(_BY_PRIORITY)}),
        Table((*TP5000E, 8, 1, 1, 1), lambda device: [((CLOCK_MODULE, 1), device)], {
            2: lambda device: mib.integer(device.servo.number), 3: phase_offset,
        }),
        scalars((*TP5000E, 8, 2), {
            1: lambda device: mib.gauge(int(device.dwell.bridging_s)),
            4: lambda _: mib.gauge(_HOLDOVER_QUARTZ_S), 5: lambda _: mib.gauge(_HOLDOVER_RUBIDIUM_S),
        }),
    ]  # fmt: skip
