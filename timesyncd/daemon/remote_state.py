"""
What other daemons published of nodes, grandmasters and jobs, aged since it was received. Pure: time is an argument.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from timesyncd.bound import Bound, ClockStatus, Reason, status_at, unbounded
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.daemon.refused_names import RefusedCount
from timesyncd.ipc.wire_types import MAX_AGE_NS, CodedReason
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, NodeState, SourceState, StateReason, status_name
from timesyncd.model.grandmaster import GrandmasterVerdict, MessageReceipt, ReportedTime

#: A job without a state for so long has ended.
JOB_EXPIRES_NS = 60 * NS_PER_S

#: A grandmaster without a state for so long is polled by no daemon any more.
GRANDMASTER_EXPIRES_NS = 3_600 * NS_PER_S

#: So many are kept, and so many bytes of them as received: a client that may write every topic can invent names. What is
#: known gives way to nothing, since a verdict on a grandmaster that was dropped would make bounds too small.
MAX_GRANDMASTERS, MAX_GRANDMASTER_BYTES = 256, 8 * 1_048_576
MAX_JOBS, MAX_JOB_BYTES = 4_096, 32 * 1_048_576

#: A grandmaster's error or growth (ns, ppb) above this is implausible; added to the node's own it would not fit the
#: segment.
MAX_ERROR = 10**15

LAST_KNOWN: CodedReason[str] = CodedReason(
    StateReason.LAST_KNOWN, "last known state only: no live state was received yet"
)

Aging = TypeVar("Aging", NodeState, GrandmasterState)
State = TypeVar("State", GrandmasterState, JobState)


def grandmaster_verdict(state: GrandmasterState, now: Moment) -> GrandmasterVerdict | None:
    """
    What a grandmaster's state that was received `now` means for its followers; None: its poller did not judge it yet.
    """
    if state.utc is None or state.age_ns is None:
        return None
    received = MessageReceipt(now.boottime_ns, now.realtime_ns, state.published_realtime_ns)
    utc = Bound(state.utc.bound_ns, state.utc.growth_ppb, _reason(state.utc.reason_code))
    if max(utc.bound_ns or 0, utc.growth_ppb) > MAX_ERROR:
        utc = unbounded(Reason.GRANDMASTER_STATE_UNKNOWN)
    invalidation = None
    if state.invalid_before_realtime_ns is not None:
        invalidation = received.invalidation(
            state.invalid_before_realtime_ns, _reason(state.invalidation_reason_code or "")
        )
    reported = ReportedTime(
        state.clock_class, state.clock_accuracy, state.utc_offset_s, state.time_traceable, state.steps_removed
    )
    polled_ns = received.poll_ns(state.age_ns)
    return GrandmasterVerdict(state.node, utc, polled_ns, state.holdover_left_ns, invalidation, reported)


def _reason(code: str) -> Reason:
    """A code that this version does not know counts as an unknown state."""
    return Reason.of_code(code, Reason.GRANDMASTER_STATE_UNKNOWN)


class _Kept(NamedTuple, Generic[State]):
    state: State
    received_ns: int
    bytes: int


class _BoundedStates(Generic[State]):
    """The newest states by name. `refused` counts those for which there was no room, `last_refused` is the newest of them."""

    def __init__(self, most: int, most_bytes: int, expires_ns: int) -> None:
        self.refused = 0
        self.last_refused: str | None = None
        self._most = most
        self._most_bytes = most_bytes
        self._expires_ns = expires_ns
        self._kept: dict[str, _Kept[State]] = {}
        self._bytes = 0

    def put(self, name: str, state: State, received_ns: int, size: int) -> bool:
        """Whether there is room."""
        known = self._kept.get(name)
        more = size - (known.bytes if known is not None else 0)
        if (known is None and len(self._kept) >= self._most) or self._bytes + more > self._most_bytes:
            self.refused += 1
            self.last_refused = name
            return False
        self._kept[name] = _Kept(state, received_ns, size)
        self._bytes += more
        return True

    def current(self, now_ns: int) -> list[_Kept[State]]:
        """Those that have not expired."""
        self._kept = {name: kept for name, kept in self._kept.items() if now_ns - kept.received_ns < self._expires_ns}
        self._bytes = sum(kept.bytes for kept in self._kept.values())
        return list(self._kept.values())


class RemoteStates:
    """What other daemons published of grandmasters and jobs, aged since it came."""

    def __init__(self) -> None:
        self._grandmasters: _BoundedStates[GrandmasterState] = _BoundedStates(
            MAX_GRANDMASTERS, MAX_GRANDMASTER_BYTES, GRANDMASTER_EXPIRES_NS
        )
        self._jobs: _BoundedStates[JobState] = _BoundedStates(MAX_JOBS, MAX_JOB_BYTES, JOB_EXPIRES_NS)

    def update(self, message: GrandmasterState | JobState, boottime_ns: int, size: int = 0) -> bool:
        """A message of `size` bytes. False: there is no room for another grandmaster or job, and it is ignored."""
        if isinstance(message, JobState):
            return self._jobs.put(message.job_id, message, boottime_ns, size)
        return self._grandmasters.put(message.name, message, boottime_ns, size)

    @property
    def refused(self) -> dict[str, RefusedCount]:
        """By kind."""
        grandmasters, jobs = self._grandmasters, self._jobs
        return {
            "grandmasters": RefusedCount(grandmasters.refused, grandmasters.last_refused),
            "jobs": RefusedCount(jobs.refused, jobs.last_refused),
        }

    def grandmasters(self, now: Moment) -> list[GrandmasterState]:
        return [_aged(kept.state, kept.received_ns, now) for kept in self._grandmasters.current(now.boottime_ns)]

    def jobs(self, now: Moment) -> list[JobState]:
        """The states of the jobs that have not expired."""
        return [kept.state for kept in self._jobs.current(now.boottime_ns)]


def last_known(state: NodeState, why: CodedReason[str] = LAST_KNOWN) -> NodeState:
    """A broker's retained copy is of any age: the node is UNKNOWN until it publishes a live state."""
    unknown = {"status": "UNKNOWN", "utc_status": "UNKNOWN", "since_realtime_ns": None}
    return state.model_copy(update=unknown | {"reason": why.text, "reason_code": why.code})


def aged_state(
    state: NodeState, received_boottime_ns: int, now: Moment, not_live: CodedReason[str] | None = None
) -> NodeState:
    """
    A node's state received at `received_boottime_ns`, aged until `now`; `not_live`: why it is only the last known
    state.
    """
    aged = _with_status_at_its_age(_aged(state, received_boottime_ns, now))
    return last_known(aged, not_live) if not_live else aged


def _aged(state: Aging, received_boottime_ns: int, now: Moment) -> Aging:
    """By the larger of the time since receipt and, for a broker's old copy, the time since publication."""
    since_ns = max(now.boottime_ns - received_boottime_ns, now.realtime_ns - state.published_realtime_ns)
    changes: dict[str, object] = {"age_ns": _older_ns(state.age_ns, since_ns)}
    if isinstance(state, NodeState):
        changes["sources"] = [_older(source, since_ns) for source in state.sources]
    return state.model_copy(update=changes)


def _older(source: SourceState, since_ns: int) -> SourceState:
    return source if source.age_ns is None else source.model_copy(update={"age_ns": _older_ns(source.age_ns, since_ns)})


def _older_ns(age_ns: int | None, since_ns: int) -> int | None:
    return None if age_ns is None else min(age_ns + since_ns, MAX_AGE_NS)


def _with_status_at_its_age(state: NodeState) -> NodeState:
    """The status that the status table gives at this age. When it changed by age is not known."""
    if state.age_ns is None:
        return state
    limits = (state.age_ns, state.holdover_after_ns, state.void_after_ns)
    gm, utc = (status_name(status_at(ClockStatus[written], *limits)) for written in (state.status, state.utc_status))
    aged = state.model_copy(update={"status": gm, "utc_status": utc})
    if aged.main_status == state.main_status:
        return aged
    reason = Reason.STALE if aged.main_status == "HOLDOVER" else Reason.EXPIRED
    changes = {"reason": reason.text, "reason_code": reason.code, "since_realtime_ns": None}
    return aged.model_copy(update=changes)
