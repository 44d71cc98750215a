"""What one daemon knows at a moment, as messages: its node, the grandmasters it polls, the jobs and nodes it has heard of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TypeVar

from timesyncd import messages
from timesyncd.bound import ClockStatus, ErrorBound, Reason, Reference, status_at
from timesyncd.client.clock import interval_now
from timesyncd.clocks import Clocks
from timesyncd.config import Config
from timesyncd.driver import PollReport
from timesyncd.feed import Observation
from timesyncd.findings import Finding
from timesyncd.messages import FindingMessage, GrandmasterState, JobState, NodeState, SourceState
from timesyncd.sample import ClockSample, GrandmasterSample, NoSample
from timesyncd.segment import Epoch

JOB_FORGOTTEN_NS = 60_000_000_000

LAST_KNOWN = "last known only: nothing live was heard yet"

Aging = TypeVar("Aging", NodeState, GrandmasterState)


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of the clocks: CLOCK_BOOTTIME and CLOCK_REALTIME, taken together."""

    boottime_ns: int
    realtime_ns: int

    @classmethod
    def read(cls, clocks: Clocks) -> Moment:
        """The best of three: a reading that was preempted between the clocks looks like a step back."""
        readings = [cls(realtime_ns=clocks.realtime_ns(), boottime_ns=clocks.boottime_ns()) for _ in range(3)]
        return max(readings, key=lambda moment: moment.realtime_ns - moment.boottime_ns)


@dataclass(frozen=True, slots=True)
class ClockNow:
    """The node's bound with its status at a moment, and why."""

    bound: ErrorBound | None
    status: ClockStatus
    utc_status: ClockStatus
    reason: str


class NodeView:
    """The latest of everything that this node reads. Times are arguments; nothing here waits or does."""

    def __init__(self, config: Config, epoch: Epoch, incarnation: int) -> None:
        self._config = config
        self._epoch = epoch
        self._incarnation = incarnation
        self._sequence = 0
        self.samples = 0
        self._bound: ErrorBound | None = None
        self._samples: dict[str, ClockSample] = {}
        self._refusals: dict[str, str] = {}
        self._units: dict[str, GrandmasterSample] = {}
        self._polls: dict[str, PollReport] = {}
        self._since: tuple[ClockStatus, int] | None = None

    def note(self, observation: Observation) -> bool:
        """Take what a driver delivered. True when the node's status is another one thereby."""
        reading = observation.reading
        if isinstance(reading, GrandmasterSample):
            self._units[reading.source] = reading
            self._refusals.pop(reading.source, None)
            return False
        if isinstance(reading, NoSample):
            self._refusals[reading.source] = reading.reason
        else:
            self.samples += 1
            self._samples[reading.source] = reading
            self._refusals.pop(reading.source, None)
        bound = observation.bound
        if bound is None:
            return False
        changed = self._bound is None or self._bound.gm_status is not bound.gm_status
        self._bound = bound
        return changed

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
            why = next(iter(self._silences()), Reason.NO_SAMPLE_YET.text)
            return ClockNow(None, ClockStatus.UNKNOWN, ClockStatus.UNKNOWN, why)
        gm, reason = interval_now(bound, Reference.GRANDMASTER, lambda: (now.realtime_ns, now.boottime_ns))
        utc, _ = interval_now(bound, Reference.UTC, lambda: (now.realtime_ns, now.boottime_ns))
        told = [reason.text, *(self._silences() if reason in (Reason.STALE, Reason.VOID) else [])]
        return ClockNow(bound, gm.status, utc.status, ": ".join(told))

    def node_state(self, now: Moment) -> NodeState:
        """The node's state as it is published; `since` is when the status last changed."""
        clock = self.clock(now)
        bound = clock.bound
        parts = {} if bound is None else messages.bound_messages(bound) | _identities(bound)
        return NodeState.model_validate(
            self.next_order()
            | parts
            | {
                "published_realtime_ns": now.realtime_ns,
                "age_ns": None if bound is None else max(0, now.boottime_ns - bound.as_of_ns),
                "boot_id": f"{self._epoch.boot_id:032x}",
                "time_namespace": self._epoch.time_namespace,
                "status": messages.status_name(clock.status),
                "utc_status": messages.status_name(clock.utc_status),
                "reason": clock.reason,
                "since_realtime_ns": self._since_ns(clock.status, now.realtime_ns),
                "sources": [self._source(source.name, source.driver) for source in self._config.source],
            }
        )

    def grandmaster_states(self, now: Moment) -> list[GrandmasterState]:
        return [self._unit(unit.name, unit.identities, now) for unit in self._config.grandmaster]

    def _silences(self) -> list[str]:
        """Why the clock sources give no samples; a grandmaster's own silence explains nothing of this clock."""
        return [self._refusals[source.name] for source in self._config.source if source.name in self._refusals]

    def _since_ns(self, status: ClockStatus, realtime_ns: int) -> int:
        if self._since is None or self._since[0] is not status:
            self._since = (status, realtime_ns)
        return self._since[1]

    def _source(self, name: str, driver: str) -> SourceState:
        sample, poll = self._samples.get(name), self._polls.get(name)
        state = SourceState(
            name=name,
            driver=driver,
            reachable=poll is not None and poll.error is None,
            reason=self._refusals.get(name, None if sample else Reason.NO_SAMPLE_YET.text),
            poll_duration_ns=poll.duration_ns if poll else None,
        )
        if sample is None:
            return state
        return state.model_copy(
            update={
                "port_state": sample.port_state.name,
                "offset_ns": sample.offset_ns,
                "path_delay_ns": sample.path_delay_ns,
                "frequency_ppb": sample.frequency_ppb,
                "clock_class": sample.clock_class,
                "clock_accuracy": sample.clock_accuracy,
                "steps_removed": sample.steps_removed,
                "ptp_timescale": sample.ptp_timescale,
            }
        )

    def _unit(self, name: str, identities: list[str], now: Moment) -> GrandmasterState:
        sample, poll = self._units.get(name), self._polls.get(name)
        return messages.grandmaster_state(
            sample,
            **self.next_order(),
            name=name,
            identities=identities,
            published_realtime_ns=now.realtime_ns,
            age_ns=None if sample is None else now.boottime_ns - sample.boottime_ns,
            reachable=poll is not None and poll.error is None,
            reason=self._refusals.get(name) or (poll and poll.error),
        )


class Heard:
    """What other daemons published, aged since it came."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[NodeState, int]] = {}
        self._units: dict[str, tuple[GrandmasterState, int]] = {}
        self._jobs: dict[str, tuple[JobState, int]] = {}

    def note(self, message: messages.Message, boottime_ns: int) -> None:
        match message:
            case NodeState():
                self._nodes[message.node] = (message, boottime_ns)
            case GrandmasterState():
                self._units[message.name] = (message, boottime_ns)
            case JobState():
                self._jobs[message.job_id] = (message, boottime_ns)

    def nodes(self, now: Moment) -> list[NodeState]:
        """Their statuses as they have aged since."""
        return [_with_status_at_its_age(_aged(state, came_ns, now)) for state, came_ns in self._nodes.values()]

    def grandmasters(self, now: Moment) -> list[GrandmasterState]:
        return [_aged(state, came_ns, now) for state, came_ns in self._units.values()]

    def jobs(self, now: Moment) -> list[JobState]:
        """A job of which nothing was heard for a minute has ended."""
        self._jobs = {k: v for k, v in self._jobs.items() if now.boottime_ns - v[1] < JOB_FORGOTTEN_NS}
        return [state for state, _ in self._jobs.values()]


def last_known(state: NodeState) -> NodeState:
    """A broker's retained copy says how it was once: the node is UNKNOWN until it speaks itself."""
    unknown = {"status": "UNKNOWN", "utc_status": "UNKNOWN", "reason": LAST_KNOWN, "since_realtime_ns": None}
    return state.model_copy(update=unknown)


def _aged(state: Aging, came_boottime_ns: int, now: Moment) -> Aging:
    """The larger of the time since it came and, for a broker's old copy, the time since it was published."""
    if state.age_ns is None:
        return state
    since_ns = max(now.boottime_ns - came_boottime_ns, now.realtime_ns - state.published_realtime_ns)
    return state.model_copy(update={"age_ns": state.age_ns + since_ns})


def _with_status_at_its_age(state: NodeState) -> NodeState:
    """A node that fell silent is not SYNCHRONIZED for ever. What its status changed to by age has no known beginning."""
    if state.age_ns is None:
        return state
    limits = (state.age_ns, state.holdover_after_ns, state.void_after_ns)
    gm, utc = (status_at(ClockStatus[written], *limits) for written in (state.status, state.utc_status))
    changes: dict[str, object] = {"status": messages.status_name(gm), "utc_status": messages.status_name(utc)}
    if changes["status"] != state.status:
        silence = Reason.STALE if gm is ClockStatus.HOLDOVER else Reason.VOID
        changes |= {"reason": silence.text, "since_realtime_ns": None}
    return state.model_copy(update=changes)


def standing(
    node: NodeState, units: list[GrandmasterState], store_problem: str | None, broker_lost: str | None
) -> dict[tuple[str, str], str]:
    """The findings that hold now, by (id, subject), with their evidence."""
    found: dict[tuple[str, str], str] = {}
    clock_finding = _STATUS_FINDINGS.get(node.status)
    if clock_finding:
        found[clock_finding, node.node] = node.reason
    for source in node.sources:
        if not source.reachable and source.poll_duration_ns is not None:
            found["source-lost", source.name] = source.reason or ""
    for unit in units:
        found |= _unit_findings(unit)
    if store_problem:
        found["store-failing", node.node] = store_problem
    if broker_lost:
        found["broker-lost", node.node] = broker_lost
    return found


def _unit_findings(unit: GrandmasterState) -> dict[tuple[str, str], str]:
    if not unit.reachable:
        return {("grandmaster-lost", unit.name): unit.reason} if unit.reason else {}
    found = {}
    if unit.clock_state not in (None, "locked"):
        found["grandmaster-not-locked", unit.name] = f"clock state {unit.clock_state}, clock class {unit.clock_class}"
    alarms = [alarm.text for alarm in unit.alarms or [] if alarm.severity in ("critical", "major", "minor")]
    if alarms:
        found["grandmaster-alarm", unit.name] = "; ".join(alarms)
    return found


_STATUS_FINDINGS = {"HOLDOVER": "clock-holdover", "UNKNOWN": "clock-unknown", "DISRUPTED": "clock-disrupted"}


def finding_message(finding: Finding) -> FindingMessage:
    """The wire form of a finding."""
    fields = asdict(finding)
    fields["since_realtime_ns"], fields["until_realtime_ns"] = fields.pop("since_ns"), fields.pop("until_ns")
    return FindingMessage.model_validate(fields)


def _identities(bound: ErrorBound) -> dict[str, object]:
    return {
        "terms": bound.terms,
        "holdover_after_ns": bound.holdover_after_ns,
        "void_after_ns": bound.void_after_ns,
        "grandmaster_identity": bound.grandmaster_identity,
        "parent_identity": bound.parent_identity,
        "utc_seconds_removed": bound.utc_seconds_removed,
        "clock": bound.clock,
    }
