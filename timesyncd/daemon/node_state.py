"""
What one daemon knows at a moment, as messages: its node, and the grandmasters that it polls.

The alarms that stand on a unit by what it sent itself, where it serves no table of them. Pure.

The clock identities that one grandmaster may announce. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

from timesyncd.bound import ClockStatus, ErrorBound, Reason, Reference
from timesyncd.client.clock import interval_now
from timesyncd.clocks import Moment
from timesyncd.config import Config
from timesyncd.daemon.source_states import ClockReading, measured
from timesyncd.driver import PollReport
from timesyncd.feed import Observation
from timesyncd.findings.catalogue import Finding, Judged
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.messages import node as messages_node
from timesyncd.messages.node import BoundMessage, FindingMessage, GrandmasterState, NodeState, SourceState, StateReason
from timesyncd.model.grandmaster import GrandmasterAssessment
from timesyncd.model.grandmaster_events import GrandmasterEventKind
from timesyncd.model.selection import Agreement
from timesyncd.sample import Alarm, AlarmEvent, ClockSample, GrandmasterSample, NoSample, NoSampleCause, TimeErrorSeries

#: No unit has so many; the ids come off the wire.
MOST = 200


class ActiveAlarms:
    """What was raised and not cleared since. What was sent while nobody listened, or was lost on the way, is not in it."""

    def __init__(self) -> None:
        self._standing: dict[tuple[int | None, int], tuple[Alarm, int]] = {}
        self._heard = False

    def note(self, event: AlarmEvent) -> None:
        key = (event.id, event.index)
        self._heard = self._heard or event.action in ("raise", "clear")
        if event.action == "clear":
            self._standing.pop(key, None)
        elif event.action == "raise" and event.id is not None and (len(self._standing) < MOST or key in self._standing):
            alarm = Alarm(event.id, event.index, event.severity, event.text, event.at)
            self._standing[key] = alarm, event.boottime_ns

    def forget(self, until_ns: int) -> None:
        """
        The unit restarted after `until_ns` (CLOCK_BOOTTIME): what still stands it says again, and often before a poll tells of
        the restart.
        """
        self._standing = {key: heard for key, heard in self._standing.items() if heard[1] > until_ns}

    @property
    def standing(self) -> tuple[Alarm, ...] | None:
        """None: it never said anything of an alarm."""
        return tuple(alarm for alarm, _ in self._standing.values()) if self._heard else None


class AdvertisedIdentities:
    """
    Those of a unit: as configured, and as it told them last. One that is not told any more, since only a part of the unit
    answers, is its own still: what is known of the unit must go on to count for those who follow it.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._configured = configured
        self._own: str | None = None
        self._ports: list[str] = []

    def note(self, sample: GrandmasterSample) -> None:
        self._own = sample.clock_identity or self._own
        if sample.ports is not None:
            self._ports = [port.clock_identity for port in sample.ports if port.clock_identity is not None]

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys([*self._configured, *([self._own] if self._own else []), *self._ports]))


NO_SOURCE = "no clock of this node is watched: no [[source]] is configured"

_SILENCES_EXPLAIN = (Reason.STALE, Reason.VOID, Reason.NO_GRANDMASTER)


@dataclass(frozen=True, slots=True)
class ClockNow:
    """The node's bound with its status at a moment, and why."""

    bound: ErrorBound | None
    status: ClockStatus
    utc_status: ClockStatus
    reason: str
    reason_code: str

    @property
    def in_short(self) -> tuple[object, ...]:
        """What is told at once when it changes."""
        bound = self.bound
        followed = (None, None) if bound is None else (bound.grandmaster_identity, bound.parent_identity)
        return self.status, self.utc_status, *followed


class NodeView:
    """The latest of everything that this node reads. Times are arguments; nothing here waits or does."""

    def __init__(self, config: Config, epoch: Epoch, incarnation: int) -> None:
        self._config = config
        self._epoch = epoch
        self._incarnation = incarnation
        self._sequence = 0
        self.samples = 0
        self._bound: ErrorBound | None = None
        self._samples: dict[str, ClockReading] = {}
        self._source_bounds: dict[str, ErrorBound] = {}
        self._refusals: dict[str, NoSample] = {}
        self._units: dict[str, GrandmasterSample] = {}
        self._verdicts: dict[str, GrandmasterAssessment] = {}
        self._alarms = {unit.name: ActiveAlarms() for unit in config.grandmaster}
        self._identities = {unit.name: AdvertisedIdentities(unit.identities) for unit in config.grandmaster}
        self._polls: dict[str, PollReport] = {}
        self._since: tuple[str, int] | None = None
        self._agreement: Agreement | None = None

    def note(self, observation: Observation) -> bool:
        """Take what a driver delivered. True when the node's status, or a unit's, is another one thereby."""
        match observation.reading:
            case GrandmasterSample() as unit:
                before = self.units_in_short
                self._units[unit.source] = unit
                self._identities[unit.source].note(unit)
                self._refusals.pop(unit.source, None)
                return self.units_in_short != before
            case NoSample() as refusal:
                self._note_refusal(refusal)
            case TimeErrorSeries():
                pass
            case sample:
                self._note_sample(sample, observation.source_bound)
        return observation.bound is not None and self.note_bound(observation.bound)

    @property
    def units_in_short(self) -> dict[str, tuple[object, ...]]:
        """Of each unit what is told at once when it changes."""
        return {
            name: (unit.clock_state, unit.clock_class, unit.alarms, self._alarms[name].standing)
            for name, unit in self._units.items()
        }

    def note_bound(self, bound: ErrorBound) -> bool:
        """What readers of the segment see from now on. True when the node's status is another one thereby."""
        last, self._bound = self._bound, bound
        return last is None or _changed(last, bound)

    def note_agreement(self, agreement: Agreement | None) -> None:
        """How the sources stand to each other, as of the reading that was noted last; None: one alone knows UTC."""
        self._agreement = agreement

    def note_bounded(self, sources: Collection[str]) -> None:
        """Only of these is a bound still known: a grandmaster's event voids those of its followers, be they believed or not."""
        self._source_bounds = {name: bound for name, bound in self._source_bounds.items() if name in sources}

    def _note_sample(self, sample: ClockReading, bound: ErrorBound | None) -> None:
        self.samples += 1
        self._samples[sample.source] = sample
        self._refusals.pop(sample.source, None)
        if bound is None:
            self._source_bounds.pop(sample.source, None)
        else:
            self._source_bounds[sample.source] = bound

    def _note_refusal(self, refusal: NoSample) -> None:
        """A source that began anew knows nothing of before; after a step of the clock none does."""
        self._refusals[refusal.source] = refusal
        if refusal.stepped:
            self._source_bounds.clear()
        elif refusal.restarted:
            self._source_bounds.pop(refusal.source, None)

    def note_verdict(self, unit: str, verdict: GrandmasterAssessment) -> None:
        """What follows from the sample of this unit that is noted next."""
        self._verdicts[unit] = verdict
        if any(event.kind is GrandmasterEventKind.RESTARTED for event in verdict.events):
            self._alarms[unit].forget(self._units[unit].boottime_ns)

    def note_alarm(self, event: AlarmEvent) -> None:
        """A unit reported something by itself."""
        self._alarms[event.source].note(event)

    def note_poll(self, report: PollReport) -> None:
        self._polls[report.source] = report

    @property
    def polls(self) -> list[PollReport]:
        return list(self._polls.values())

    def next_order(self) -> dict[str, object]:
        """Node, incarnation and the next sequence number, for a message that this node sends."""
        self._sequence += 1
        return {"node": self._config.node.name, "incarnation": self._incarnation, "sequence": self._sequence}

    def clock(self, now: Moment) -> ClockNow:
        """What a client that reads the segment sees at this moment."""
        bound = self._bound
        if bound is None:
            code, why = self._why_no_bound()
            return ClockNow(None, ClockStatus.UNKNOWN, ClockStatus.UNKNOWN, why, code)
        gm, reason = interval_now(bound, Reference.GRANDMASTER, lambda: (now.realtime_ns, now.boottime_ns))
        utc, utc_reason = interval_now(bound, Reference.UTC, lambda: (now.realtime_ns, now.boottime_ns))
        if reason is Reason.NO_GRANDMASTER and utc_reason is not Reason.OK:
            reason = utc_reason
        if reason is Reason.NO_GRANDMASTER and (missing := self._missing_grandmaster()):
            code, texts = missing[0][0], dict.fromkeys(text for _, text in missing)
            return ClockNow(bound, gm.status, utc.status, ": ".join(texts), code)
        silences = self._silences() if reason in _SILENCES_EXPLAIN else []
        texts = dict.fromkeys([reason.text, *(silence.reason for silence in silences)])
        return ClockNow(bound, gm.status, utc.status, ": ".join(texts), reason.code)

    def _why_no_bound(self) -> tuple[str, str]:
        """The code and the sentence of a node that never had a bound."""
        if not self._config.source:
            return StateReason.NO_SOURCE, NO_SOURCE
        silence = next(iter(self._silences()), None)
        return _no_sample_yet() if silence is None else (silence.cause, silence.reason)

    def node_state(self, now: Moment) -> NodeState:
        """The node's state as it is published; `since` is when the status that is told first last changed."""
        clock = self.clock(now)
        bound = clock.bound
        parts = {} if bound is None else messages_node.bound_fields(bound)
        state = NodeState.model_validate(
            self.next_order()
            | parts
            | {
                "published_realtime_ns": now.realtime_ns,
                "age_ns": None if bound is None else max(0, now.boottime_ns - bound.as_of_ns),
                "boot_id": f"{self._epoch.boot_id:032x}",
                "time_namespace": self._epoch.time_namespace,
                "topology": self._config.node.topology,
                "link": self._config.node.link,
                "every_ns": self._config.state_every_ns,
                "status": messages_node.status_name(clock.status),
                "utc_status": messages_node.status_name(clock.utc_status),
                "reason": clock.reason,
                "reason_code": clock.reason_code,
                "since_realtime_ns": None,
                "sources": [self._source(source.name, source.driver, now) for source in self._config.source],
                "falsetickers": self._agreement.falsetickers if self._agreement else (),
                "sources_contradict": self._agreement is not None and self._agreement.contradiction,
            }
        )
        changes: dict[str, object] = {"since_realtime_ns": self._since_ns(state.main_status, now.realtime_ns)}
        if state.knows_utc_alone and state.utc_status == "SYNCHRONIZED":
            # That there is no grandmaster is no fault of such a node; its `gm` says so.
            changes |= {"reason": "", "reason_code": Reason.OK.code}
        return state.model_copy(update=changes)

    def grandmaster_states(self, now: Moment) -> list[GrandmasterState]:
        return [self.grandmaster_state(unit.name, now) for unit in self._config.grandmaster]

    def _silences(self) -> list[NoSample]:
        """Why the clock sources give no samples; a grandmaster's own silence explains nothing of this clock."""
        return [self._refusals[source.name] for source in self._config.source if source.name in self._refusals]

    def _missing_grandmaster(self) -> list[tuple[str, str]]:
        """Why the sources that could know one, none of which decides, do not: codes and sentences."""
        found: list[tuple[str, str]] = []
        for name in (source.name for source in self._config.source):
            sample = self._samples.get(name)
            if sample is None or isinstance(sample, ClockSample):
                refusal, silence = self._refusals.get(name), Reason.VOID if sample else Reason.NO_SAMPLE_YET
                found.append((refusal.cause, refusal.reason) if refusal else (silence.code, silence.text))
        return found

    def _since_ns(self, status: str, realtime_ns: int) -> int:
        if self._since is None or self._since[0] != status:
            self._since = (status, realtime_ns)
        return self._since[1]

    def _source(self, name: str, driver: str, now: Moment) -> SourceState:
        sample, poll, refusal = self._samples.get(name), self._polls.get(name), self._refusals.get(name)
        code, reason = (Reason.OK.code, None) if sample else _no_sample_yet()
        if refusal is not None:
            code, reason = refusal.cause, refusal.reason
        state = SourceState(
            name=name,
            driver=driver,
            reachable=poll is not None and poll.error is None,
            reason=reason,
            reason_code=code,
            poll_duration_ns=poll.duration_ns if poll else None,
        )
        return state if sample is None else state.model_copy(update=measured(sample) | self._bounded(name, now))

    def _bounded(self, name: str, now: Moment) -> dict[str, object]:
        """What the source by itself makes of its newest sample."""
        bound = self._source_bounds.get(name)
        if bound is None:
            return {}
        return {
            "gm": BoundMessage.of(bound.gm_hard),
            "utc": BoundMessage.of(bound.utc_hard),
            "age_ns": max(0, now.boottime_ns - bound.as_of_ns),
            "utc_seconds_removed": bound.utc_seconds_removed,
        }

    def grandmaster_state(self, name: str, now: Moment) -> GrandmasterState:
        sample, poll, refusal = self._units.get(name), self._polls.get(name), self._refusals.get(name)
        if sample is not None and sample.alarms is None:
            sample = replace(sample, alarms=self._alarms[name].standing)
        return messages_node.grandmaster_state(
            sample,
            **self.next_order(),
            **_judged(self._verdicts.get(name)),
            name=name,
            identities=self._identities[name].all,
            published_realtime_ns=now.realtime_ns,
            age_ns=None if sample is None else now.boottime_ns - sample.boottime_ns,
            reachable=poll is not None and poll.error is None,
            reason=refusal.reason if refusal else poll and poll.error,
            reason_code=refusal.cause if refusal else _poll_code(poll),
        )


def _no_sample_yet() -> tuple[str, str]:
    return Reason.NO_SAMPLE_YET.code, Reason.NO_SAMPLE_YET.text


def _poll_code(poll: PollReport | None) -> str:
    return Reason.OK.code if poll is None or poll.error is None else NoSampleCause.NO_VALID_SAMPLE


def _changed(last: ErrorBound, bound: ErrorBound) -> bool:
    """Status, or whom it follows."""
    return any(getattr(last, name) != getattr(bound, name) for name in _TOLD_AT_ONCE)


_TOLD_AT_ONCE = ("gm_status", "utc_status", "grandmaster_identity", "parent_identity")


def _judged(verdict: GrandmasterAssessment | None) -> dict[str, object]:
    """The verdict's part of a unit's state; its detail says more than the reason does."""
    if verdict is None:
        return {}
    return {
        "utc": BoundMessage.of(verdict.utc),
        "utc_detail": verdict.detail or None,
        "clock_state_since_realtime_ns": verdict.clock_state_since_realtime_ns,
        "holdover_left_ns": verdict.holdover_left_ns,
        "void_before_realtime_ns": verdict.void_before_realtime_ns,
        "void_reason": verdict.void_reason.text if verdict.void_reason else None,
        "void_reason_code": verdict.void_reason.code if verdict.void_reason else None,
    }


def standing(node: NodeState, store_problem: str | None, broker_lost: str | None) -> dict[tuple[str, str], Judged]:
    """The findings of the node itself that hold now, by (id, subject)."""
    found: dict[tuple[str, str], str] = {}
    clock_finding = _STATUS_FINDINGS.get(node.main_status)
    if clock_finding and node.sources:
        found[clock_finding, node.node] = node.reason
    for source in node.sources:
        if not source.reachable and source.poll_duration_ns is not None:
            found["source-lost", source.name] = source.reason or ""
    if store_problem:
        found["store-failing", node.node] = store_problem
    if broker_lost:
        found["broker-lost", node.node] = broker_lost
    return {key: Judged(evidence) for key, evidence in found.items()}


_STATUS_FINDINGS = {"HOLDOVER": "clock-holdover", "UNKNOWN": "clock-unknown", "DISRUPTED": "clock-disrupted"}


def finding_message(finding: Finding) -> FindingMessage:
    """The wire form of a finding."""
    fields = asdict(finding)
    fields["chain"] = [step._asdict() for step in finding.chain]
    fields["since_realtime_ns"], fields["until_realtime_ns"] = fields.pop("since_ns"), fields.pop("until_ns")
    return FindingMessage.model_validate(fields)
