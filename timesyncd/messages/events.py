"""What happens on a node, as CloudEvents; state changes with the types, words and data of O-RAN's O-Cloud notifications. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import NODE_PATH, CloudEvent
from timesyncd.messages.node import AlarmEventMessage, FindingMessage, GrandmasterState, NodeState
from timesyncd.sample import ClockState

BEGAN, CHANGED, ENDED = (f"timesyncd.finding.{what}" for what in ("began", "changed", "ended"))
ALARM = "timesyncd.grandmaster.alarm"

_FREERUN = "FREERUN"

#: UNKNOWN and DISRUPTED are not here: whoever must not trust a clock is told FREERUN.
_NODE_STATES = {"SYNCHRONIZED": "LOCKED", "HOLDOVER": "HOLDOVER"}

#: Out of its specification a holdover promises as little as no reference at all.
_GRANDMASTER_STATES: dict[str, str] = {ClockState.LOCKED: "LOCKED", ClockState.HOLDOVER: "HOLDOVER"}

_ANTENNA_STATES = {"open": "ANTENNA-DISCONNECTED", "short": "ANTENNA-SHORT-CIRCUIT"}
_GNSS_STATES = {"locked": "SYNCHRONIZED", "tracking": "ACQUIRING-SYNC", "none": "FAILURE-NOFIX"}


@dataclass(frozen=True, slots=True)
class StateKind:
    """A state that O-RAN names: its events' type, and where it stands below its owner's address."""

    type: str
    resource: str


NODE_SYNC = StateKind("event.sync.sync-status.synchronization-state-change", "sync/sync-status/sync-state")
GRANDMASTER_LOCK = StateKind("event.sync.ptp-status.ptp-state-change", "sync/ptp-status/lock-state")
GRANDMASTER_CLASS = StateKind("event.sync.ptp-status.ptp-clock-class-change", "sync/ptp-status/clock-class")
GRANDMASTER_GNSS = StateKind("event.sync.gnss-status.gnss-state-change", "sync/gnss-status/gnss-sync-status")


class CloudEvents:
    """Makes one node's events, and counts them within this start of its daemon: `id` is `<incarnation>-<number>`."""

    def __init__(self, node: str, incarnation: int) -> None:
        self.source = NODE_PATH + node
        self._incarnation = incarnation
        self._made = 0
        self._standing: set[tuple[str, str]] = set()

    def make(self, type: str, subject: str, realtime_ns: int, data: dict[str, Any]) -> CloudEvent:
        self._made += 1
        return CloudEvent(
            id=f"{self._incarnation}-{self._made}",
            source=self.source,
            type=type,
            subject=subject,
            time=rfc3339(realtime_ns),
            data=data,
        )

    def finding(self, finding: FindingMessage, realtime_ns: int) -> CloudEvent:
        """To be called for each change of a finding, at `realtime_ns`. What happened at one moment began then, and its data says the end."""
        return self.make(self._change(finding), finding.subject, realtime_ns, finding.model_dump(mode="json"))

    def alarm(self, alarm: AlarmEventMessage) -> CloudEvent:
        return self.make(ALARM, alarm.name, alarm.published_realtime_ns, alarm.model_dump(mode="json"))

    def _change(self, finding: FindingMessage) -> str:
        key = finding.id, finding.subject
        was_standing = key in self._standing
        if finding.until_realtime_ns is not None:
            self._standing.discard(key)
            return ENDED if was_standing else BEGAN
        self._standing.add(key)
        return CHANGED if was_standing else BEGAN


class StateChanges:
    """
    What was last told of each state: a change becomes an event, and so does the first sight of it, since whoever listens knows
    nothing before. A state that is not known tells nothing.
    """

    def __init__(self, events: CloudEvents) -> None:
        self._events = events
        self._published: dict[tuple[StateKind, str], str] = {}

    def of_node(self, state: NodeState) -> list[CloudEvent]:
        """Beside its synchronization state stands the bound at that moment, in ns. A node without a clock source has none."""
        if not state.sources:
            return []
        word = _NODE_STATES.get(state.main_status, _FREERUN)
        metrics = [] if word == _FREERUN else _bound_now(state)
        return self._event_if_changed(NODE_SYNC, "", state.node, word, state.published_realtime_ns, metrics)

    def of_grandmaster(self, grandmaster: GrandmasterState) -> list[CloudEvent]:
        """While it does not answer, its state is what was last known, which is no news."""
        if not grandmaster.reachable:
            return []
        name, when_ns = grandmaster.name, grandmaster.published_realtime_ns
        words = {
            GRANDMASTER_LOCK: _lock_word(grandmaster),
            GRANDMASTER_CLASS: _class_word(grandmaster),
            GRANDMASTER_GNSS: _gnss_word(grandmaster),
        }
        return [
            event
            for kind, word in words.items()
            if word is not None
            for event in self._event_if_changed(kind, f"grandmaster/{name}/", name, word, when_ns)
        ]

    def _event_if_changed(
        self, kind: StateKind, below: str, subject: str, word: str, realtime_ns: int, metrics: Iterable[str] = ()
    ) -> list[CloudEvent]:
        """`below`: where the state's owner stands below the node."""
        if self._published.get((kind, subject)) == word:
            return []
        self._published[kind, subject] = word
        address = f"{self._events.source}/{below}{kind.resource}"
        values = [_metric(address, word)] if kind is GRANDMASTER_CLASS else [_notification(address, word)]
        values += [_metric(address, value) for value in metrics]
        return [self._events.make(kind.type, subject, realtime_ns, {"version": "1.0", "values": values})]


def rfc3339(realtime_ns: int) -> str:
    """A time of CLOCK_REALTIME in UTC, to the nanosecond."""
    seconds, ns = divmod(realtime_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _lock_word(grandmaster: GrandmasterState) -> str | None:
    return None if grandmaster.clock_state is None else _GRANDMASTER_STATES.get(grandmaster.clock_state, _FREERUN)


def _class_word(grandmaster: GrandmasterState) -> str | None:
    return None if grandmaster.clock_class is None else str(grandmaster.clock_class)


def _gnss_word(grandmaster: GrandmasterState) -> str | None:
    """A fault of the antenna that is neither open nor short has no word of its own: what follows from it has."""
    if grandmaster.antenna in _ANTENNA_STATES:
        return _ANTENNA_STATES[grandmaster.antenna]
    return None if grandmaster.gnss_state is None else _GNSS_STATES.get(grandmaster.gnss_state, "FAILURE-NOFIX")


def _bound_now(state: NodeState) -> list[str]:
    bound = state.main_bound
    if bound is None or state.age_ns is None:
        return []
    now_ns = Bound(bound.bound_ns, bound.growth_ppb).at(state.age_ns)
    return [] if now_ns is None else [str(now_ns)]


def _notification(address: str, word: str) -> dict[str, str]:
    return {"ResourceAddress": address, "data_type": "notification", "value_type": "enumeration", "value": word}


def _metric(address: str, number: str) -> dict[str, str]:
    return {"ResourceAddress": address, "data_type": "metric", "value_type": "decimal64.3", "value": number}
