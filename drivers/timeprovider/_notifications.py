"""Decodes a grandmaster's own reports (traps and informs by the profiles, lines of syslog) into alarm events. No I/O."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from timesyncd.drivers.timeprovider._decoders import printable
from timesyncd.drivers.timeprovider._profiles import AlarmIds, NotificationType, Profile, VariableRole
from timesyncd.errors import Malformed
from timesyncd.sample import AlarmEvent, Trap
from timesyncd.snmp.values import Oid, Opaque, Raw, format_oid

#: How many notifications are remembered to detect duplicates, and how many missing numbers to detect late ones.
REMEMBERED = 256
#: How far sysUpTime may go back between two traps that overtook each other; a larger step back means a restart.
OVERTAKEN_TICKS = 1000

#: SMI's numbers have at most 32 bits, so differences of them fit into 64 bits.
_LARGEST_NUMBER = 2**32

_NO_IDS = AlarmIds(confidence="unproven", source="none", names={})
_ACTION_OF_SEVERITY = {"clear": "clear", "cleared": "clear", "event": "event"}
_SEVERITIES = ("critical", "major", "minor", "warning", "event", "clear", "cleared")

_LINE = re.compile(r"(.*?)\balarmd(?:\[\d{1,9}\])?: *(.*)", re.ASCII | re.DOTALL)
#: RFC 5424 section 6: PRI and version, time, host, program, process, message id, structured data, message.
_LINE_5424 = re.compile(r"(<\d{1,3}>1 \S+ \S+) alarmd \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?\ufeff?(.*)", re.DOTALL)
_DATE = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d)?", re.ASCII)
_ALARM = re.compile(r"(\d{1,9}),(\d{1,9}),\s*(\w{1,20})\s*,\s*(.*)", re.ASCII | re.DOTALL)


class NotificationDecoder:
    """Decodes one grandmaster's notifications, in the order of their arrival."""

    def __init__(self, source: str, profiles: Sequence[Profile]) -> None:
        """`profiles` are in order of precedence."""
        self._source = source
        self._profiles = profiles
        self._served: Sequence[Profile] = ()
        self._sequences = SequenceTracker()

    def set_served(self, served: Sequence[Profile]) -> None:
        """Set the profiles that the grandmaster serves; they define the alarm ids in its lines of syslog."""
        self._served = served

    def event(self, trap: Trap) -> AlarmEvent | None:
        """The alarm event; None for a duplicate."""
        event = alarm_event(self._source, trap, self._profiles)
        if self._sequences.is_duplicate(trap, event.sequence):
            return None
        return replace(event, lost=self._sequences.lost_before(trap.oid, event.sequence))

    def event_of_line(self, line: str, boottime_ns: int) -> AlarmEvent | None:
        """The alarm event; None if the line is not about alarms."""
        numbered = (profile.alarms for profile in (*self._served, *self._profiles) if profile.alarms is not None)
        return alarm_event_of_line(self._source, line, boottime_ns, next(numbered, _NO_IDS))


class SequenceTracker:
    """
    Detects duplicate and missing notifications by their sequence numbers. Each notification OID has its own numbers; a restart of the
    grandmaster resets them, which is not a loss.
    """

    def __init__(self) -> None:
        self._received: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self._missing: OrderedDict[tuple[object, ...], None] = OrderedDict()
        self._last: OrderedDict[Oid, int] = OrderedDict()
        self._uptime_ticks = 0

    def is_duplicate(self, trap: Trap, sequence: int | None) -> bool:
        """Whether the same notification was received before, with the same number or, without numbers, the same sysUpTime."""
        self._detect_restart(trap.uptime_ticks)
        if sequence is None and trap.uptime_ticks is None:
            return False
        moment = ("ticks", trap.uptime_ticks) if sequence is None else ("number", sequence)
        key = (trap.oid, moment, trap.variables)
        is_known = key in self._received
        _remember(self._received, key)
        return is_known

    def _detect_restart(self, uptime_ticks: int | None) -> None:
        if uptime_ticks is None:
            return
        if uptime_ticks < self._uptime_ticks - OVERTAKEN_TICKS:
            for memory in (self._received, self._missing, self._last):
                memory.clear()
            self._uptime_ticks = 0
        self._uptime_ticks = max(self._uptime_ticks, uptime_ticks)

    def lost_before(self, oid: Oid, sequence: int | None) -> int:
        """The number of sequence numbers that are missing between the last notification and this one."""
        if sequence is None:
            return 0
        if (oid, sequence) in self._missing:  # it was overtaken, and has been counted as lost
            del self._missing[oid, sequence]
            return 0
        last = self._last.get(oid, sequence)
        self._last[oid] = sequence
        self._last.move_to_end(oid)
        if len(self._last) > REMEMBERED:  # an OID may end in an alarm id, which the sender chooses
            self._last.popitem(last=False)
        for number in range(max(last + 1, sequence - REMEMBERED), sequence):
            _remember(self._missing, (oid, number))
        return max(0, sequence - last - 1)


def _remember(memory: OrderedDict[tuple[object, ...], None], key: tuple[object, ...]) -> None:
    memory[key] = None
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)


def alarm_event(source: str, trap: Trap, profiles: Sequence[Profile]) -> AlarmEvent:
    """The event by the first profile that defines the notification; if none does or a variable does not fit, its raw text."""
    for profile in profiles:
        for notification in profile.notification:
            for oid in _oid_variants(trap.oid):
                if (oid[:-1] if notification.id_in_oid else oid) == notification.oid:
                    try:
                        return _decoded(source, trap, oid, notification, profile.alarms or _NO_IDS)
                    except Malformed:
                        return _raw(source, trap)
    return _raw(source, trap)


def _oid_variants(oid: Oid) -> tuple[Oid, ...]:
    """The OID itself, and without the 0 that a conversion from SNMPv1 puts before the last arc."""
    return (oid, oid[:-2] + oid[-1:]) if len(oid) > 2 and oid[-2] == 0 else (oid,)


def _decoded(source: str, trap: Trap, oid: Oid, notification: NotificationType, ids: AlarmIds) -> AlarmEvent:
    """Raises Malformed if a variable has the wrong type."""
    values = _variables(trap, notification)
    alarm_id = oid[-1] if notification.id_in_oid else _number(values, "id")
    severity = _severity(notification, _number(values, "severity"))
    is_event = notification.kind == "event" or alarm_id in ids.events
    return AlarmEvent(
        source=source,
        boottime_ns=trap.boottime_ns,
        action="event" if is_event else _action(notification, _number(values, "action"), severity),
        id=alarm_id,
        index=_number(values, "index") or 0,
        severity=severity,
        text=_text(values, "text") or _meaning(notification, ids, alarm_id, values),
        sequence=_number(values, "sequence"),
        at=_text(values, "at"),
    )


def _variables(trap: Trap, notification: NotificationType) -> dict[VariableRole, Raw]:
    """The variables by their role; an instance (.0, an ifIndex) may follow the variable's own OID."""
    return {
        role: next(raw for oid, raw in trap.variables if oid[: len(base)] == base)
        for role, base in notification.variables.items()
        if any(oid[: len(base)] == base for oid, _ in trap.variables)
    }


def _number(values: Mapping[VariableRole, Raw], name: VariableRole) -> int | None:
    raw = values.get(name)
    if raw is not None and (not isinstance(raw, int) or abs(raw) >= _LARGEST_NUMBER):
        raise Malformed(f"{name}: {raw!r:.80} instead of a 32-bit integer")
    return raw


def _text(values: Mapping[VariableRole, Raw], name: VariableRole) -> str | None:
    raw = values.get(name)
    if raw is not None and (not isinstance(raw, bytes) or isinstance(raw, Opaque)):
        raise Malformed(f"{name}: {raw!r:.80} instead of text")
    return None if raw is None else printable(raw) or None


def _severity(notification: NotificationType, number: int | None) -> str:
    if number is not None:
        return notification.severities.get(number, f"unknown({number})")
    return "event" if notification.kind == "event" else "unknown"


def _action(notification: NotificationType, number: int | None, severity: str) -> str:
    """An event that is "set" stays an event: nothing clears it, so it must not become an active alarm."""
    action = "state" if number is None else notification.actions.get(number, "unknown")
    if "clear" in (severity, action):
        return "clear"
    return _ACTION_OF_SEVERITY.get(severity, "raise" if action == "state" else action)


def _meaning(
    notification: NotificationType, ids: AlarmIds, alarm_id: int | None, values: Mapping[VariableRole, Raw]
) -> str:
    name = notification.text if alarm_id is None else ids.names.get(alarm_id, notification.text or f"alarm {alarm_id}")
    module = _number(values, "module")
    return name if module is None else f"{name} (module {module})"


def _raw(source: str, trap: Trap) -> AlarmEvent:
    variables = ", ".join(f"{format_oid(oid)} = {_raw_text(raw)}" for oid, raw in trap.variables[:20])
    text = printable(f"{format_oid(trap.oid)}: {variables}".encode())
    return AlarmEvent(source, trap.boottime_ns, "unknown", None, 0, "unknown", text)


def _raw_text(raw: Raw) -> str:
    if isinstance(raw, Opaque):
        return f"0x{raw.hex()}"
    return printable(raw) if isinstance(raw, bytes) else str(raw)


def alarm_event_of_line(source: str, line: str, boottime_ns: int, ids: AlarmIds) -> AlarmEvent | None:
    """
    The event in a line of the alarm daemon (`... alarmd: <alarm id>,<index>,<severity>, <text>`, or in the form of RFC 5424); None
    for any other line.
    """
    found = _LINE_5424.fullmatch(line) or _LINE.fullmatch(line)
    if found is None:
        return None
    date = _DATE.search(found[1])
    event = AlarmEvent(
        source, boottime_ns, "unknown", None, 0, "unknown", _clean(found[2]), at=None if date is None else date[0]
    )
    alarm = _ALARM.fullmatch(found[2])
    if alarm is None:
        return event
    alarm_id, severity = int(alarm[1]), alarm[3].lower()
    action = _ACTION_OF_SEVERITY.get(severity, "raise") if severity in _SEVERITIES else "unknown"
    return replace(
        event,
        action="event" if alarm_id in ids.events else action,
        id=alarm_id,
        index=int(alarm[2]),
        severity=severity,
        text=_clean(alarm[4]) or ids.names.get(alarm_id, ""),
    )


def _clean(text: str) -> str:
    return printable(text.encode(errors="replace"))
