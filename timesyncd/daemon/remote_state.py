"""What other daemons said of nodes, grandmasters and jobs, as it has aged since. Pure: time is an argument."""

from __future__ import annotations

from typing import TypeVar

from timesyncd.bound import Bound, ClockStatus, Reason, status_at, unbounded
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.node_clock import Explanation
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, Message, NodeState, SourceState, StateReason, status_name
from timesyncd.model.grandmaster import GrandmasterVerdict, MessageReceipt

JOB_FORGOTTEN_NS = 60 * NS_PER_S

#: A unit that nobody polls any more.
UNIT_FORGOTTEN_NS = 3_600 * NS_PER_S

#: A grandmaster's error or growth (ns, ppb) that is larger bounds nothing, and would not fit the segment with the node's own.
LARGEST_ERROR = 10**15

LAST_KNOWN = Explanation(StateReason.LAST_KNOWN, "last known only: nothing live was heard yet")

Aging = TypeVar("Aging", NodeState, GrandmasterState)


def heard_verdict(state: GrandmasterState, now: Moment) -> GrandmasterVerdict | None:
    """What a unit's state that came now means for those who follow it; None: its poller has not judged it."""
    if state.utc is None or state.age_ns is None:
        return None
    came = MessageReceipt(now.boottime_ns, now.realtime_ns, state.published_realtime_ns)
    utc = Bound(state.utc.bound_ns, state.utc.growth_ppb, _reason(state.utc.reason_code))
    if max(utc.bound_ns or 0, utc.growth_ppb) > LARGEST_ERROR:
        utc = unbounded(Reason.GRANDMASTER_STATE_UNKNOWN)
    void = None
    if state.void_before_realtime_ns is not None:
        void = came.void(state.void_before_realtime_ns, _reason(state.void_reason_code or ""))
    return GrandmasterVerdict(state.node, utc, came.poll_ns(state.age_ns), state.holdover_left_ns, void)


def _reason(code: str) -> Reason:
    """A reason that this version does not know is no good news."""
    return Reason.of_code(code, Reason.GRANDMASTER_STATE_UNKNOWN)


class RemoteStates:
    """What other daemons published of grandmasters and jobs, aged since it came."""

    def __init__(self) -> None:
        self._units: dict[str, tuple[GrandmasterState, int]] = {}
        self._jobs: dict[str, tuple[JobState, int]] = {}

    def note(self, message: Message, boottime_ns: int) -> None:
        match message:
            case GrandmasterState():
                self._units[message.name] = (message, boottime_ns)
            case JobState():
                self._jobs[message.job_id] = (message, boottime_ns)

    def grandmasters(self, now: Moment) -> list[GrandmasterState]:
        self._units = {k: v for k, v in self._units.items() if now.boottime_ns - v[1] < UNIT_FORGOTTEN_NS}
        return [_aged(state, came_ns, now) for state, came_ns in self._units.values()]

    def jobs(self, now: Moment) -> list[JobState]:
        """A job of which nothing was heard for a minute has ended."""
        self._jobs = {k: v for k, v in self._jobs.items() if now.boottime_ns - v[1] < JOB_FORGOTTEN_NS}
        return [state for state, _ in self._jobs.values()]


def last_known(state: NodeState, why: Explanation = LAST_KNOWN) -> NodeState:
    """A broker's retained copy says how it was once: the node is UNKNOWN until it speaks itself."""
    unknown = {"status": "UNKNOWN", "utc_status": "UNKNOWN", "since_realtime_ns": None}
    return state.model_copy(update=unknown | {"reason": why.text, "reason_code": why.code})


def heard_state(state: NodeState, came_boottime_ns: int, now: Moment, unheard: Explanation | None = None) -> NodeState:
    """A node's state that came then, its status as it has aged since; `unheard`: why it is only what was last known."""
    aged = _with_status_at_its_age(_aged(state, came_boottime_ns, now))
    return last_known(aged, unheard) if unheard else aged


def _aged(state: Aging, came_boottime_ns: int, now: Moment) -> Aging:
    """The larger of the time since it came and, for a broker's old copy, the time since it was published."""
    since_ns = max(now.boottime_ns - came_boottime_ns, now.realtime_ns - state.published_realtime_ns)
    changes: dict[str, object] = {"age_ns": None if state.age_ns is None else state.age_ns + since_ns}
    if isinstance(state, NodeState):
        changes["sources"] = [_older(source, since_ns) for source in state.sources]
    return state.model_copy(update=changes)


def _older(source: SourceState, since_ns: int) -> SourceState:
    return source if source.age_ns is None else source.model_copy(update={"age_ns": source.age_ns + since_ns})


def _with_status_at_its_age(state: NodeState) -> NodeState:
    """A node that fell silent is not SYNCHRONIZED for ever. What its status changed to by age has no known beginning."""
    if state.age_ns is None:
        return state
    limits = (state.age_ns, state.holdover_after_ns, state.void_after_ns)
    gm, utc = (status_name(status_at(ClockStatus[written], *limits)) for written in (state.status, state.utc_status))
    aged = state.model_copy(update={"status": gm, "utc_status": utc})
    if aged.main_status == state.main_status:
        return aged
    silence = Reason.STALE if aged.main_status == "HOLDOVER" else Reason.VOID
    changes = {"reason": silence.text, "reason_code": silence.code, "since_realtime_ns": None}
    return aged.model_copy(update=changes)
