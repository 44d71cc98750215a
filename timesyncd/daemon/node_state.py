"""
What one daemon knows at a moment, as messages: its node, and the grandmasters that it polls. Pure.

`NodeView.update` takes in one observation at a time; `node_state` and `grandmaster_state` compute what is true now, and
reading them changes nothing. Beside it: the alarms that a grandmaster without an alarm table has active, the clock
identities that it may announce, and the numbers of the messages that this node sends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.bound import ClockStatus, ErrorBound, Reason, Reference, interval_now
from timesyncd.clocks import Moment
from timesyncd.config import ClockSource, Config
from timesyncd.daemon.source_states import ClockReading, assumptions, measured
from timesyncd.driver import PollReport
from timesyncd.findings.steering import Ptp4lSteering
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.messages.node import (
    BoundMessage,
    GrandmasterState,
    NodeState,
    SourceState,
    StateReason,
    bound_fields,
    grandmaster_state,
    status_name,
)
from timesyncd.model.assumptions import Refutation
from timesyncd.model.grandmaster import GrandmasterAssessment
from timesyncd.model.grandmaster_events import GrandmasterEventKind
from timesyncd.model.observation import Observation
from timesyncd.model.selection import Agreement
from timesyncd.sample import Alarm, AlarmEvent, ClockSample, GrandmasterSample, NoSample, NoSampleCause, TimeErrorSeries

#: No grandmaster has so many active alarms; the ids come off the wire.
MAX_ALARMS = 200


class ActiveAlarms:
    """
    The alarms that a grandmaster raised and did not clear. It misses what was sent before the daemon started, or was
    lost.
    """

    def __init__(self) -> None:
        self._active: dict[tuple[int | None, int], tuple[Alarm, int]] = {}
        self._reported = False

    def update(self, event: AlarmEvent) -> None:
        key = (event.id, event.index)
        self._reported = self._reported or event.action in ("raise", "clear")
        if event.action == "clear":
            self._active.pop(key, None)
        elif (
            event.action == "raise" and event.id is not None and (len(self._active) < MAX_ALARMS or key in self._active)
        ):
            alarm = Alarm(event.id, event.index, event.severity, event.text, event.at)
            self._active[key] = alarm, event.boottime_ns

    def drop_raised_before(self, boottime_ns: int) -> None:
        """
        The grandmaster restarted after `boottime_ns`: it raises again what is still active, often before a poll shows
        the restart.
        """
        self._active = {key: raised for key, raised in self._active.items() if raised[1] > boottime_ns}

    @property
    def active(self) -> tuple[Alarm, ...] | None:
        """None: it never reported an alarm."""
        return tuple(alarm for alarm, _ in self._active.values()) if self._reported else None


class AdvertisedIdentities:
    """
    The clock identities that a grandmaster may announce: the configured ones, and those that it reported last. One that
    is missing from a later reading still counts: a part of the grandmaster may not answer, and its followers need what
    is known of it.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._configured = configured
        self._own: str | None = None
        self._ports: list[str] = []

    def update(self, sample: GrandmasterSample) -> None:
        self._own = sample.clock_identity or self._own
        if sample.ports is not None:
            self._ports = [port.clock_identity for port in sample.ports if port.clock_identity is not None]

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys([*self._configured, *([self._own] if self._own else []), *self._ports]))


class SequenceNumbers:
    """Numbers the messages that this start of the daemon sends: order is (node, incarnation, sequence)."""

    def __init__(self, node: str, incarnation: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._sequence = 0

    def next(self) -> dict[str, object]:
        """The fields of a message that is sent now."""
        self._sequence += 1
        return self.last()

    def last(self) -> dict[str, object]:
        """The fields of a state that is only read: it takes no number, and carries that of the message sent last."""
        return {"node": self._node, "incarnation": self._incarnation, "sequence": self._sequence}


NO_SOURCE = "no [[source]] is configured, so the daemon observes no clock of this node"

#: For a node whose sources are all of the driver `kernel`. "No valid sample yet" would promise one.
ONLY_KERNEL = "no [[source]] measures an offset: the driver kernel reads the kernel's state alone"

#: Reasons that the sources' own reasons explain further.
_EXPLAINED_BY_SOURCES = (Reason.STALE, Reason.EXPIRED, Reason.NO_GRANDMASTER)


@dataclass(frozen=True, slots=True)
class ClockNow:
    """The node's bound with its status at a moment, and the reason of the status."""

    bound: ErrorBound | None
    status: ClockStatus
    utc_status: ClockStatus
    reason: str
    reason_code: str

    @property
    def digest(self) -> tuple[object, ...]:
        """The state is published at once when any of these changes."""
        bound = self.bound
        followed = (None, None) if bound is None else (bound.grandmaster_identity, bound.parent_identity)
        return self.status, self.utc_status, *followed


class NodeView:
    """
    The latest of everything that this node reads. Times are arguments; nothing here waits, and reading a state changes
    nothing.
    """

    def __init__(self, config: Config, epoch: Epoch, incarnation: int) -> None:
        self.numbers = SequenceNumbers(config.node.name, incarnation)
        self.samples = 0
        self.ptp4l_steering = Ptp4lSteering()
        self._config = config
        self._epoch = epoch
        self._bound: ErrorBound | None = None
        self._samples: dict[str, ClockReading] = {}
        self._source_bounds: dict[str, ErrorBound] = {}
        self._failures: dict[str, NoSample] = {}
        self._grandmasters: dict[str, GrandmasterSample] = {}
        self._assessments: dict[str, GrandmasterAssessment] = {}
        self._alarms = {each.name: ActiveAlarms() for each in config.grandmaster}
        self._identities = {each.name: AdvertisedIdentities(each.identities) for each in config.grandmaster}
        self._polls: dict[str, PollReport] = {}
        self._since: tuple[str, int] | None = None
        self._agreement: Agreement | None = None
        self._refutations: Mapping[str, tuple[Refutation, ...]] = {}
        self._utc_offsets_s = config.utc_offsets_s

    def update(self, observation: Observation) -> bool:
        """
        Take in one reading with all that follows from it. True when the node's state or a grandmaster's is due at once.
        """
        self._agreement, self._refutations = observation.agreement, observation.refutations
        if observation.bounded_sources is not None:
            self._keep_bounds_of(observation.bounded_sources)
        match observation.reading:
            case GrandmasterSample() as sample:
                return self._update_grandmaster(sample, observation.assessment)
            case NoSample() as failure:
                self._update_failure(failure)
            case None | TimeErrorSeries():
                pass
            case sample:
                self._update_sample(sample, observation.source_bound)
        return observation.bound is not None and self._replace_bound(observation.bound)

    @property
    def grandmaster_digests(self) -> dict[str, tuple[object, ...]]:
        """A grandmaster's state is published at once when any of these changes."""
        return {
            name: (sample.clock_state, sample.clock_class, sample.alarms, self._alarms[name].active)
            for name, sample in self._grandmasters.items()
        }

    def _keep_bounds_of(self, sources: Collection[str]) -> None:
        """A grandmaster's event invalidates the bounds of the sources that follow it, believed or not."""
        self._source_bounds = {name: bound for name, bound in self._source_bounds.items() if name in sources}

    def _update_grandmaster(self, sample: GrandmasterSample, assessment: GrandmasterAssessment | None) -> bool:
        before, name = self.grandmaster_digests, sample.source
        if assessment is not None:
            self._assessments[name] = assessment
            if any(event.kind is GrandmasterEventKind.RESTARTED for event in assessment.events):
                self._alarms[name].drop_raised_before(self._grandmasters[name].boottime_ns)
        self._grandmasters[name] = sample
        self._identities[name].update(sample)
        self._failures.pop(name, None)
        return self.grandmaster_digests != before

    def _replace_bound(self, bound: ErrorBound) -> bool:
        """
        What readers of the segment see from now on. True when the node's status or its grandmaster changes thereby.
        """
        last, self._bound = self._bound, bound
        return last is None or _changed(last, bound)

    def _update_sample(self, sample: ClockReading, bound: ErrorBound | None) -> None:
        self.samples += 1
        self._samples[sample.source] = sample
        if isinstance(sample, ClockSample):
            self.ptp4l_steering.update(sample)
        self._failures.pop(sample.source, None)
        if bound is None:
            self._source_bounds.pop(sample.source, None)
        else:
            self._source_bounds[sample.source] = bound

    def _update_failure(self, failure: NoSample) -> None:
        """A restart or another path invalidates the source's own bound, a step of the clock those of all sources."""
        self._failures[failure.source] = failure
        if failure.stepped:
            self._source_bounds.clear()
        elif failure.restarted or failure.change:
            self._source_bounds.pop(failure.source, None)

    def update_alarms(self, event: AlarmEvent) -> None:
        """Apply what a grandmaster reported by itself."""
        self._alarms[event.source].update(event)

    def update_poll(self, report: PollReport) -> None:
        self._polls[report.source] = report

    @property
    def polls(self) -> list[PollReport]:
        return list(self._polls.values())

    def clock(self, now: Moment) -> ClockNow:
        """What a client that reads the segment sees at this moment."""
        bound = self._bound
        if bound is None:
            code, reason_text = self._reason_without_bound()
            return ClockNow(None, ClockStatus.UNKNOWN, ClockStatus.UNKNOWN, reason_text, code)
        gm, reason = interval_now(bound, Reference.GRANDMASTER, lambda: (now.realtime_ns, now.boottime_ns))
        utc, utc_reason = interval_now(bound, Reference.UTC, lambda: (now.realtime_ns, now.boottime_ns))
        if reason is Reason.NO_GRANDMASTER and utc_reason is not Reason.OK:
            reason = utc_reason
        if reason is Reason.NO_GRANDMASTER and (missing := self._missing_grandmaster()):
            code, texts = missing[0][0], dict.fromkeys(text for _, text in missing)
            return ClockNow(bound, gm.status, utc.status, ": ".join(texts), code)
        failures = self._source_failures() if reason in _EXPLAINED_BY_SOURCES else []
        texts = dict.fromkeys([reason.text, *(failure.reason for failure in failures)])
        return ClockNow(bound, gm.status, utc.status, ": ".join(texts), reason.code)

    def _reason_without_bound(self) -> tuple[str, str]:
        """The code and the sentence of a node that never had a bound."""
        if not self._config.source:
            return StateReason.NO_SOURCE, NO_SOURCE
        failure = next(iter(self._source_failures()), None)
        if failure is not None:
            return failure.cause, failure.reason
        is_measured = any(source.driver != "kernel" for source in self._config.source)
        return _no_sample_yet() if is_measured else (Reason.NO_SAMPLE_YET.code, ONLY_KERNEL)

    def node_state(self, now: Moment) -> NodeState:
        """The node's state; `since_realtime_ns` is when `main_status` last changed, as far as `mark_status` saw it."""
        clock = self.clock(now)
        bound = clock.bound
        parts = {} if bound is None else bound_fields(bound)
        state = NodeState.model_validate(
            self.numbers.last()
            | parts
            | {
                "published_realtime_ns": now.realtime_ns,
                "age_ns": None if bound is None else max(0, now.boottime_ns - bound.as_of_ns),
                "boot_id": f"{self._epoch.boot_id:032x}",
                "time_namespace": self._epoch.time_namespace,
                "topology": self._config.node.topology,
                "link": self._config.node.link,
                "every_ns": self._config.state_every_ns,
                "status": status_name(clock.status),
                "utc_status": status_name(clock.utc_status),
                "reason": clock.reason,
                "reason_code": clock.reason_code,
                "since_realtime_ns": None,
                "sources": [self._source(source, now) for source in self._config.source],
                "falsetickers": self._agreement.falsetickers if self._agreement else (),
                "sources_contradict": self._agreement is not None and self._agreement.contradiction,
                "utc_narrowed_by": self._agreement.narrowed_by if self._agreement else (),
                "utc_dependent": self._agreement.dependent if self._agreement else (),
            }
        )
        changes: dict[str, object] = {"since_realtime_ns": self._since_ns(state.main_status, now)}
        if state.knows_utc_alone and state.utc_status == "SYNCHRONIZED":
            # Such a node has no grandmaster by design; its `gm` carries the reason.
            changes |= {"reason": "", "reason_code": Reason.OK.code}
        return state.model_copy(update=changes)

    def mark_status(self, state: NodeState) -> None:
        """Date the status of a state that is published now: a later state with the same status began with this one."""
        if self._since is None or self._since[0] != state.main_status:
            self._since = (state.main_status, state.published_realtime_ns)

    def grandmaster_states(self, now: Moment) -> list[GrandmasterState]:
        return [self.grandmaster_state(each.name, now) for each in self._config.grandmaster]

    def _source_failures(self) -> list[NoSample]:
        """The clock sources that give no samples; a grandmaster that does not answer explains nothing of this clock."""
        return [self._failures[source.name] for source in self._config.source if source.name in self._failures]

    def _missing_grandmaster(self) -> list[tuple[str, str]]:
        """Codes and sentences of the sources that could know a grandmaster and do not; none of them decides."""
        found: list[tuple[str, str]] = []
        for name in (source.name for source in self._config.source):
            sample = self._samples.get(name)
            if sample is None or isinstance(sample, ClockSample):
                failure, reason = self._failures.get(name), Reason.EXPIRED if sample else Reason.NO_SAMPLE_YET
                found.append((failure.cause, failure.reason) if failure else (reason.code, reason.text))
        return found

    def _since_ns(self, status: str, now: Moment) -> int:
        return now.realtime_ns if self._since is None or self._since[0] != status else self._since[1]

    def _source(self, source: ClockSource, now: Moment) -> SourceState:
        name = source.name
        sample, poll, failure = self._samples.get(name), self._polls.get(name), self._failures.get(name)
        code, reason = (Reason.OK.code, None) if sample else _no_sample_yet()
        if failure is not None:
            code, reason = failure.cause, failure.reason
        state = SourceState(
            name=name,
            driver=source.driver,
            reachable=poll is not None and poll.error is None,
            reason=reason,
            reason_code=code,
            poll_duration_ns=poll.duration_ns if poll else None,
            steers_system_clock=self.ptp4l_steering.of_source(name),
            since_poll_ns=max(0, now.boottime_ns - poll.boottime_ns) if poll else None,
        )
        if sample is None:
            return state
        assumed = assumptions(sample, source.bounds, self._refutations.get(name, ()))
        return state.model_copy(update=measured(sample, self._utc_offsets_s) | self._bound_fields(name, now) | assumed)

    def _bound_fields(self, name: str, now: Moment) -> dict[str, object]:
        """The bounds that the source alone gives, by its newest sample."""
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
        sample, poll, failure = self._grandmasters.get(name), self._polls.get(name), self._failures.get(name)
        if sample is not None and sample.alarms is None:
            sample = replace(sample, alarms=self._alarms[name].active)
        return grandmaster_state(
            sample,
            **self.numbers.last(),
            **_assessment_fields(self._assessments.get(name)),
            name=name,
            identities=self._identities[name].all,
            published_realtime_ns=now.realtime_ns,
            age_ns=None if sample is None else now.boottime_ns - sample.boottime_ns,
            reachable=poll is not None and poll.error is None,
            reason=failure.reason if failure else poll and poll.error,
            reason_code=failure.cause if failure else _poll_code(poll),
        )


def _no_sample_yet() -> tuple[str, str]:
    return Reason.NO_SAMPLE_YET.code, Reason.NO_SAMPLE_YET.text


def _poll_code(poll: PollReport | None) -> str:
    return Reason.OK.code if poll is None or poll.error is None else NoSampleCause.NO_VALID_SAMPLE


def _changed(last: ErrorBound, bound: ErrorBound) -> bool:
    return any(getattr(last, name) != getattr(bound, name) for name in _PUBLISHED_AT_ONCE)


_PUBLISHED_AT_ONCE = ("gm_status", "utc_status", "grandmaster_identity", "parent_identity")


def _assessment_fields(assessment: GrandmasterAssessment | None) -> dict[str, object]:
    """The assessment's part of a grandmaster's state."""
    if assessment is None:
        return {}
    return {
        "utc": BoundMessage.of(assessment.utc),
        "utc_detail": assessment.detail or None,
        "clock_state_since_realtime_ns": assessment.clock_state_since_realtime_ns,
        "holdover_left_ns": assessment.holdover_left_ns,
        "invalid_before_realtime_ns": assessment.invalid_before_realtime_ns,
        "invalidation_reason": assessment.invalidation_reason.text if assessment.invalidation_reason else None,
        "invalidation_reason_code": assessment.invalidation_reason.code if assessment.invalidation_reason else None,
    }
