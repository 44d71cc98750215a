"""
A node's events as CloudEvents; state changes have the types, values and data of O-RAN's O-Cloud notifications. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import NODE_PATH, CloudEvent, HistoryBatch
from timesyncd.messages.node import AlarmEventMessage, FindingMessage, GrandmasterState, NodeState
from timesyncd.messages.notes import OperatorNote
from timesyncd.sample import ClockState

FINDING = "timesyncd.finding."
BEGAN, CHANGED, ENDED = (f"{FINDING}{what}" for what in ("began", "changed", "ended"))
ALARM = "timesyncd.grandmaster.alarm"
NOTE = "timesyncd.operator"

_FREERUN = "FREERUN"

#: UNKNOWN and DISRUPTED are reported as FREERUN: the clock is not to be trusted.
_NODE_VALUES = {"SYNCHRONIZED": "LOCKED", "HOLDOVER": "HOLDOVER"}

#: A holdover out of its specification is reported as FREERUN: it guarantees no more than no reference.
_GRANDMASTER_VALUES: dict[str, str] = {ClockState.LOCKED: "LOCKED", ClockState.HOLDOVER: "HOLDOVER"}

_ANTENNA_VALUES = {"open": "ANTENNA-DISCONNECTED", "short": "ANTENNA-SHORT-CIRCUIT"}
_GNSS_VALUES = {"locked": "SYNCHRONIZED", "tracking": "ACQUIRING-SYNC", "none": "FAILURE-NOFIX"}


@dataclass(frozen=True, slots=True)
class StateKind:
    """A state that O-RAN defines: the type of its events, and its resource path below the address of its owner."""

    type: str
    resource: str


NODE_SYNC = StateKind("event.sync.sync-status.synchronization-state-change", "sync/sync-status/sync-state")
GRANDMASTER_LOCK = StateKind("event.sync.ptp-status.ptp-state-change", "sync/ptp-status/lock-state")
GRANDMASTER_CLASS = StateKind("event.sync.ptp-status.ptp-clock-class-change", "sync/ptp-status/clock-class")
GRANDMASTER_GNSS = StateKind("event.sync.gnss-status.gnss-state-change", "sync/gnss-status/gnss-sync-status")


class CloudEvents:
    """Builds one node's events and numbers them within this start of its daemon: `id` is `<incarnation>-<number>`."""

    def __init__(self, node: str, incarnation: int) -> None:
        self.source = NODE_PATH + node
        self._incarnation = incarnation
        self._count = 0
        self._open: set[tuple[str, str]] = set()

    def make(self, type: str, subject: str, realtime_ns: int, data: dict[str, Any]) -> CloudEvent:
        self._count += 1
        return CloudEvent(
            id=f"{self._incarnation}-{self._count}",
            source=self.source,
            type=type,
            subject=subject,
            time=rfc3339(realtime_ns),
            data=data,
        )

    def finding(self, finding: FindingMessage, realtime_ns: int) -> CloudEvent:
        """
        The event of a finding's change at `realtime_ns`. A finding that began and ended at one moment gives one event,
        BEGAN.
        """
        return self.make(self._change(finding), finding.subject, realtime_ns, finding.model_dump(mode="json"))

    def alarm(self, alarm: AlarmEventMessage) -> CloudEvent:
        return self.make(ALARM, alarm.name, alarm.published_realtime_ns, alarm.model_dump(mode="json"))

    def note(self, note: OperatorNote) -> CloudEvent:
        """An operator's note, at the time at which it was written."""
        subject = note.subject or note.node
        return self.make(f"{NOTE}.{note.kind}", subject, note.published_realtime_ns, note.model_dump(mode="json"))

    def _change(self, finding: FindingMessage) -> str:
        key = finding.id, finding.subject
        was_open = key in self._open
        if finding.until_realtime_ns is not None:
            self._open.discard(key)
            return ENDED if was_open else BEGAN
        self._open.add(key)
        return CHANGED if was_open else BEGAN


def notes_of(batch: HistoryBatch) -> Iterator[OperatorNote]:
    """
    The notes among a node's events, as a hub receives them that was away for longer than a note's own message lasts. A
    note that names another node, and one that lost its content, is none.
    """
    for event in (row.event for row in batch.rows if row.event is not None):
        if event.type.startswith(f"{NOTE}.") and event.data.get("node") == batch.node:
            with suppress(ValidationError):
                yield OperatorNote.model_validate(event.data)


class StateChanges:
    """
    The last published value of each state. A change becomes an event, and so does the first value, since subscribers
    know none. An unknown state gives no event.
    """

    def __init__(self, events: CloudEvents) -> None:
        self._events = events
        self._published: dict[tuple[StateKind, str], str] = {}

    def of_node(self, state: NodeState) -> list[CloudEvent]:
        """Its synchronization state, with the bound at that moment in ns. A node without a clock source has none."""
        if not state.sources:
            return []
        value = _NODE_VALUES.get(state.main_status, _FREERUN)
        metrics = [] if value == _FREERUN else _bound_value(state)
        return self._event_if_changed(NODE_SYNC, "", state.node, value, state.published_realtime_ns, metrics)

    def of_grandmaster(self, grandmaster: GrandmasterState) -> list[CloudEvent]:
        """None while it does not respond: its state is then the last known one."""
        if not grandmaster.reachable:
            return []
        name, when_ns = grandmaster.name, grandmaster.published_realtime_ns
        values_by_kind = {
            GRANDMASTER_LOCK: _lock_value(grandmaster),
            GRANDMASTER_CLASS: _class_value(grandmaster),
            GRANDMASTER_GNSS: _gnss_value(grandmaster),
        }
        return [
            event
            for kind, value in values_by_kind.items()
            if value is not None
            for event in self._event_if_changed(kind, f"grandmaster/{name}/", name, value, when_ns)
        ]

    def _event_if_changed(
        self, kind: StateKind, below: str, subject: str, value: str, realtime_ns: int, metrics: Iterable[str] = ()
    ) -> list[CloudEvent]:
        """`below`: the path of the state's owner below the node."""
        if self._published.get((kind, subject)) == value:
            return []
        self._published[kind, subject] = value
        address = f"{self._events.source}/{below}{kind.resource}"
        values = [_metric(address, value)] if kind is GRANDMASTER_CLASS else [_notification(address, value)]
        values += [_metric(address, number) for number in metrics]
        return [self._events.make(kind.type, subject, realtime_ns, {"version": "1.0", "values": values})]


def rfc3339(realtime_ns: int) -> str:
    """A time of CLOCK_REALTIME in UTC, to the nanosecond."""
    seconds, ns = divmod(realtime_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _lock_value(grandmaster: GrandmasterState) -> str | None:
    return None if grandmaster.clock_state is None else _GRANDMASTER_VALUES.get(grandmaster.clock_state, _FREERUN)


def _class_value(grandmaster: GrandmasterState) -> str | None:
    return None if grandmaster.clock_class is None else str(grandmaster.clock_class)


def _gnss_value(grandmaster: GrandmasterState) -> str | None:
    """An antenna fault that is neither open nor short has no value in O-RAN; the GNSS state shows its effect."""
    if grandmaster.antenna in _ANTENNA_VALUES:
        return _ANTENNA_VALUES[grandmaster.antenna]
    return None if grandmaster.gnss_state is None else _GNSS_VALUES.get(grandmaster.gnss_state, "FAILURE-NOFIX")


def _bound_value(state: NodeState) -> list[str]:
    bound = state.main_bound
    if bound is None or state.age_ns is None:
        return []
    now_ns = Bound(bound.bound_ns, bound.growth_ppb).at(state.age_ns)
    return [] if now_ns is None else [str(now_ns)]


def _notification(address: str, value: str) -> dict[str, str]:
    return {"ResourceAddress": address, "data_type": "notification", "value_type": "enumeration", "value": value}


def _metric(address: str, number: str) -> dict[str, str]:
    return {"ResourceAddress": address, "data_type": "metric", "value_type": "decimal64.3", "value": number}
