"""What a grandmaster complains about: each condition with its number in both of the vendor's numberings."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class AlarmKind:
    """`id` is the TimeProvider 5000's number, `s650_id` that of the SyncServer S650's lineage; None: it has none."""

    id: int | None
    s650_id: int | None
    severity: str
    text: str


KINDS = {
    "gnss-not-tracking": AlarmKind(2, 92, "minor", "GNSS: not tracking satellites"),
    "gnss-signal-low": AlarmKind(78, 93, "minor", "GNSS: signal low"),
    "antenna-open": AlarmKind(11, 97, "major", "GNSS: antenna open, no current"),
    "antenna-short": AlarmKind(12, 96, "minor", "GNSS: antenna short circuit"),
    "reference-lost": AlarmKind(34, None, "minor", "GNSS-1: reference disqualified"),
    "warmup": AlarmKind(None, 1, "minor", "Clock in warm-up"),
    "freerun": AlarmKind(None, 2, "minor", "Clock in freerun"),
    "fast-track": AlarmKind(26, 3, "event", "Clock in fast track"),
    "normal-track": AlarmKind(27, 4, "event", "Clock in normal track"),
    "bridging": AlarmKind(28, 5, "minor", "Clock in bridging"),
    "holdover": AlarmKind(29, 6, "minor", "Clock in holdover"),
    "holdover-recovery": AlarmKind(None, 8, "event", "Clock recovers from holdover"),
    "holdover-exceeded": AlarmKind(30, 172, "major", "Clock in extended holdover: time error estimate exceeded"),
    "failed": AlarmKind(31, 132, "critical", "Operational failure"),
    "reference-selected": AlarmKind(None, 24, "event", "GNSS selected as time reference"),
    "phase-changed": AlarmKind(36, 153, "event", "Phase changed"),
    "reboot": AlarmKind(None, 155, "event", "System rebooted"),
    "leap-pending": AlarmKind(None, 173, "event", "Leap second pending"),
    "near-client-limit": AlarmKind(42, 130, "minor", "PTP: number of clients near the limit"),
    "fan": AlarmKind(99, 140, "minor", "Fan failed"),
    "power": AlarmKind(9, 175, "critical", "Power input lost"),
    "temperature": AlarmKind(None, 139, "major", "Temperature out of range"),
    "rb-unlock": AlarmKind(74, 138, "major", "Rubidium oscillator unlocked"),
    "port-down": AlarmKind(7, 115, "minor", "Ethernet link down"),
}
"""Every condition by name. `event`: it is reported once and does not stand."""


@dataclass(frozen=True)
class SimulatedAlarm:
    """`severity`: critical, major, minor or event; `raised_s` in Unix time. `id` and `s650_id` as in AlarmKind."""

    id: int | None
    severity: str
    text: str
    index: int = 0
    raised_s: float = field(default_factory=time.time)
    s650_id: int | None = None
    name: str = ""


@dataclass(frozen=True)
class DeviceEvent:
    """
    What a grandmaster reports by itself: `action` is raise, clear, event (does not stand) or restart (then `alarm` is None).
    `at_s` in Unix time.
    """

    action: str
    at_s: float
    alarm: SimulatedAlarm | None = None


Listener = Callable[[DeviceEvent], None]


def alarm(name: str, index: int, at_s: float) -> SimulatedAlarm:
    kind = KINDS[name]
    return SimulatedAlarm(kind.id, kind.severity, kind.text, index, at_s, kind.s650_id, name)


class AlarmBoard:
    """The raised alarms, the latest events, and the listeners to both."""

    def __init__(self) -> None:
        self.standing: tuple[SimulatedAlarm, ...] = ()
        self.events: deque[SimulatedAlarm] = deque(maxlen=20)
        self.listeners: list[Listener] = []

    def report(self, name: str, index: int, at_s: float) -> None:
        """An event that does not stand."""
        event = alarm(name, index, at_s)
        self.events.append(event)
        self._tell(DeviceEvent("event", at_s, event))

    def compare(self, holding: Iterable[tuple[str, int]], at_s: float) -> None:
        """Clear raised alarms that no longer hold; raise those that hold, as (name, index), and are not raised."""
        wanted = dict.fromkeys(holding)
        for standing in self.standing:
            if (standing.name, standing.index) not in wanted:
                self.standing = tuple(other for other in self.standing if other is not standing)
                self._tell(DeviceEvent("clear", at_s, standing))
        known = {(standing.name, standing.index) for standing in self.standing}
        for name, index in wanted:
            if (name, index) not in known:
                raised = alarm(name, index, at_s)
                self.standing = (*self.standing, raised)
                self._tell(DeviceEvent("raise", at_s, raised))

    def restart(self, at_s: float) -> None:
        """Everything is forgotten."""
        self.standing = ()
        self.events.clear()
        self._tell(DeviceEvent("restart", at_s))

    def _tell(self, event: DeviceEvent) -> None:
        for listener in self.listeners:
            listener(event)
