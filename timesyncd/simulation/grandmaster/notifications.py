"""
What a grandmaster's own reports look like on the wire: the notifications of its family, and its syslog lines. Pure.

The TimeProvider 5000E has one notification for alarms and one for events; the SyncServer S650's lineage, which the
TimeProvider 4100 and 4500 are taken to belong to, has one for each alarm number.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from timesyncd.simulation.grandmaster import mib
from timesyncd.simulation.grandmaster.alarms import DeviceEvent, SimulatedAlarm
from timesyncd.simulation.grandmaster.wire import Object, Oid

SNMP_TRAPS: Oid = (1, 3, 6, 1, 6, 3, 1, 1, 5)
COLD_START, LINK_DOWN, LINK_UP = (*SNMP_TRAPS, 1), (*SNMP_TRAPS, 3), (*SNMP_TRAPS, 4)
VENDOR: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7)
TP5000E_ALARM, TP5000E_EVENT, TP5000E_OBJECTS = (*VENDOR, 1, 11, 2), (*VENDOR, 1, 11, 3), (*VENDOR, 1, 11, 1)
S650_NOTIFICATIONS, S650_OBJECTS = (*VENDOR, 4, 1, 2), (*VENDOR, 4, 1, 1)
IF_INDEX, IF_ADMIN_STATUS, IF_OPER_STATUS = ((1, 3, 6, 1, 2, 1, 2, 2, 1, column) for column in (1, 7, 8))

SEVERITIES = {"critical": 2, "major": 3, "minor": 4, "event": 5}
CLEAR = 0
_S650_ACTIONS = {"clear": 0, "raise": 1, "event": 2}
SYS_MODULE = 1

_SYSLOG_FACILITY, _SYSLOG_NOTICE = 20, 5


class SentNotification(NamedTuple):
    """`oid` is its snmpTrapOID; a vendor's own one has a sequence number, which is put in at `sequence_at`."""

    oid: Oid
    varbinds: list[Object]
    sequence_at: Oid | None = None


def notifications_of(event: DeviceEvent, family: str) -> list[SentNotification]:
    """What is sent of an event, in order; nothing for an alarm that has no number in the family (tp5000, s650)."""
    if event.alarm is None:
        return [SentNotification(COLD_START, [])]
    number = number_of(event.alarm, family)
    link = [_link(event)] if event.alarm.name == "port-down" else []
    if number is None:
        return link
    return [*link, (_tp5000e if family == "tp5000" else _s650)(event, event.alarm, number)]


def number_of(alarm: SimulatedAlarm, family: str) -> int | None:
    return alarm.id if family == "tp5000" else alarm.s650_id


def _link(event: DeviceEvent) -> SentNotification:
    index, down = event.alarm.index if event.alarm else 0, event.action == "raise"
    states = ((IF_INDEX, index), (IF_ADMIN_STATUS, 1), (IF_OPER_STATUS, 2 if down else 1))
    return SentNotification(
        LINK_DOWN if down else LINK_UP, [((*column, index), mib.integer(value)) for column, value in states]
    )


def _tp5000e(event: DeviceEvent, alarm: SimulatedAlarm, number: int) -> SentNotification:
    severity = CLEAR if event.action == "clear" else SEVERITIES[alarm.severity]
    values = {
        1: mib.integer(SYS_MODULE),
        2: mib.integer(number),
        3: mib.integer(alarm.index),
        4: mib.integer(severity),
        5: mib.integer(1 if event.action == "event" else 0),
        6: mib.text(f"{_date(event):%Y-%m-%d,%H:%M:%S}"),
        7: mib.text(alarm.text),
    }
    kind = TP5000E_EVENT if event.action == "event" else TP5000E_ALARM
    return SentNotification(
        kind, [((*TP5000E_OBJECTS, column, 0), value) for column, value in values.items()], (*TP5000E_OBJECTS, 9, 0)
    )


def _s650(event: DeviceEvent, alarm: SimulatedAlarm, number: int) -> SentNotification:
    values = {
        1: mib.integer(number),
        10: mib.integer(_S650_ACTIONS[event.action]),
        2: mib.integer(alarm.index),
        3: mib.integer(SEVERITIES[alarm.severity]),
        5: mib.text(f"{_date(event):%Y-%m-%d %H:%M:%S}"),
        6: mib.text(alarm.text),
    }
    varbinds = [((*S650_OBJECTS, column, 0), value) for column, value in values.items()]
    return SentNotification((*S650_NOTIFICATIONS, number), varbinds, (*S650_OBJECTS, 8, 0))


def syslog_line(event: DeviceEvent, family: str, host: str) -> bytes | None:
    """As `alarmd` writes it; None for what has no number in the family."""
    if event.alarm is None or (number := number_of(event.alarm, family)) is None:
        return None
    severity, word = SEVERITIES[event.alarm.severity], event.alarm.severity.capitalize()
    if event.action == "clear":
        severity, word = _SYSLOG_NOTICE, "Clear"
    priority = 8 * _SYSLOG_FACILITY + severity
    text = f"{number:03},{event.alarm.index:03},{word}, {event.alarm.text}"
    return f"<{priority}>{_date(event):%b %d %H:%M:%S} {host} alarmd: {text}".encode()


def _date(event: DeviceEvent) -> datetime:
    return datetime.fromtimestamp(event.at_s, UTC)
