"""
The hub inside the daemon: takes in messages of nodes, ranks and hubs; gives the states of fleet and jobs. Time is an
argument.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.findings.catalogue import Judgement
from timesyncd.findings.fleet import FleetFindings, Key
from timesyncd.findings.followers import Follower, Followers
from timesyncd.fleet.node_clock import AgedStatus, aged_statuses, bounded_ns
from timesyncd.fleet.registry import FleetOverview
from timesyncd.hub.hub import STATE_EVERY_NS, Hub, HubOutput, Primary
from timesyncd.jobs.joining import JOB_ENDS_AFTER_NS
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetSummary, HubState
from timesyncd.messages.jobs import JobState, MarkBatch, PolicyRequest
from timesyncd.messages.node import GrandmasterState, NodeState, RepeatedState, status_name
from timesyncd.model.grandmaster import Invalidation

log = logging.getLogger(__name__)

#: Any process on a node may send requests, so at most one log line in this time reports a refused one.
REFUSAL_LOGGED_EVERY_NS = 10 * NS_PER_S

#: Findings of the fleet last for seconds at least, and evaluating ten thousand nodes takes 0.1 s.
JUDGED_EVERY_NS = 2 * NS_PER_S

#: A node that is not in hub.nodes has left the fleet after so long without a state.
EXPIRES_AFTER_NS = 3_600 * NS_PER_S


class HubService:
    """
    `alone`: there is no broker, so this hub is the primary. Otherwise the hubs elect one of them as the primary, which
    publishes for all. In a daemon that is not a hub (`is_hub`) it holds the own node's state and the list of hubs.
    `url` is this hub's page where other machines may reach it. `policies` are the configured policies, by job name.
    """

    def __init__(
        self,
        settings: HubSettings | None,
        node: str,
        started: Moment,
        alone: bool,
        policies: Mapping[str, str] | None = None,
    ) -> None:
        self.url: str | None = None
        self.is_hub = alone or settings is not None
        self.is_primary = alone
        self.hub = Hub(settings or HubSettings(), node, policies=policies)
        self._alone = alone
        self._node = node
        self._started = started
        self._primary = Primary(node)
        self._followers = Followers()
        self._findings = FleetFindings(settings.nodes if settings is not None else (), node)
        self._judged_ns: int | None = None
        self._judged: dict[Key, Judgement] = {}
        self._published: tuple[bool, int] | None = None
        self._clear_from_ns: dict[str, int] = {}
        self._refusal_logged_ns: int | None = None

    def accept_node(self, state: NodeState, received_boottime_ns: int, live: bool, json: bytes | None = None) -> None:
        """`live` False: a broker's retained copy. `json`: the state as it was received."""
        if not self.hub.accept_node(state, received_boottime_ns, live, json):
            return
        if not live:
            self._findings.add_last_known(state)
        else:
            self._findings.add(state, received_boottime_ns)
            if state.node != self._node:
                self._followers.update(state, received_boottime_ns)

    def accept_repeated(self, state: RepeatedState, received_boottime_ns: int, json: bytes) -> bool:
        """A live state of another node that repeats its last one; False: that one is not known, so it must be decoded."""
        if state.node not in self._followers or state.node not in self._findings:
            return False
        if self.hub.fleet.accept_repeated(state, received_boottime_ns, json):
            self._findings.repeat(state, received_boottime_ns)
            self._followers.repeat(state, received_boottime_ns)
            return True
        return False

    def accept_marks(self, batch: MarkBatch, received_boottime_ns: int) -> None:
        self.hub.accept_marks(batch, received_boottime_ns)

    def accept_request(self, request: PolicyRequest, received_boottime_ns: int) -> None:
        """A user requests another policy for a job. Only the primary hub applies it."""
        refusal = self.hub.request_policy(request) if self.is_primary else ""
        logged_ns = self._refusal_logged_ns
        if refusal and (logged_ns is None or received_boottime_ns - logged_ns >= REFUSAL_LOGGED_EVERY_NS):
            self._refusal_logged_ns = received_boottime_ns
            log.warning("policy request refused: %s", refusal)

    def accept_from_rank(self, message: MarkBatch | PolicyRequest, received_boottime_ns: int) -> None:
        """What a process of this node sent over the job link."""
        if isinstance(message, PolicyRequest):
            self.accept_request(message, received_boottime_ns)
        else:
            self.accept_marks(message, received_boottime_ns)

    def accept_hub(self, state: HubState, received_boottime_ns: int, live: bool) -> None:
        self._primary.accept(state, received_boottime_ns, live)

    def accept_job(self, state: JobState, now: Moment, live: bool) -> bool:
        """
        Another hub published a job's state, or this one did before its restart. True: it comes from the primary hub, so
        it counts. `live` False: a broker's retained copy, which may be of a job that ended while no hub was running.
        """
        self.hub.adopt(state)
        if not live:
            if self.is_hub:
                self._clear_from_ns[state.job_id] = now.boottime_ns + JOB_ENDS_AFTER_NS
            return False
        primaries = [hub.node for hub in self._primary.alive(now.boottime_ns) if hub.primary]
        return not self.is_primary and state.node in (primaries[:1] or [state.node]) and state.node != self._node

    def invalidate(self, identities: Collection[str], invalidation: Invalidation | None) -> None:
        """Apply a grandmaster's event after which earlier measurements of its followers do not count."""
        if invalidation is not None:
            self.hub.fleet.invalidate_before(identities, invalidation)

    def advance(self, now: Moment, connected: bool) -> HubOutput:
        """One round, about once a second. Afterwards `is_primary` says whether the daemon publishes the output."""
        if not self._alone and self.is_hub:
            self.is_primary = self._primary.advance(now.boottime_ns, connected)
        output = self.hub.advance(now.boottime_ns, now.realtime_ns, self.is_primary)
        self._clear_from_ns |= dict.fromkeys(output.ended, now.boottime_ns)
        for state in output.jobs:
            self._clear_from_ns.pop(state.job_id, None)
        return output

    def jobs_to_clear(self, now: Moment) -> list[str]:
        """
        The ids of ended jobs whose retained states this hub clears at the broker now. A hub that is not primary keeps
        them for a while: the primary may die before it clears them.
        """
        due = {job_id: from_ns for job_id, from_ns in self._clear_from_ns.items() if from_ns <= now.boottime_ns}
        cleared = list(due) if self.is_primary else []
        for job_id, from_ns in due.items():
            if self.is_primary or now.boottime_ns - from_ns >= JOB_ENDS_AFTER_NS:
                del self._clear_from_ns[job_id]
        return cleared

    def state_if_due(self, now: Moment) -> HubState | None:
        """
        This hub's own state, every few seconds and at once when it becomes primary or stops; None where no other hub
        can be.
        """
        if self._alone or not self.is_hub:
            return None
        if self._published is not None:
            was_primary, published_ns = self._published
            if was_primary == self.is_primary and now.boottime_ns - published_ns < STATE_EVERY_NS:
                return None
        self._published = self.is_primary, now.boottime_ns
        return self._state(now)

    def _state(self, now: Moment) -> HubState:
        return self.hub.state(now, self.is_primary, self._started.realtime_ns, self.url)

    def hubs(self, now: Moment) -> list[HubState]:
        """The hubs that are alive, by name; none where this daemon is alone."""
        own = [self._state(now)] if self.is_hub and not self._alone else []
        return sorted([*self._primary.alive(now.boottime_ns), *own], key=lambda state: state.node)

    def followers(self, now: Moment) -> list[Follower]:
        """The other nodes, aged since their last state."""
        return self._followers.at(now.boottime_ns, now.realtime_ns)

    def findings(self, grandmasters: Sequence[GrandmasterState], now: Moment) -> dict[Key, Judgement]:
        """
        What holds in the fleet. A hub that is not primary evaluates too, to be ready when it becomes primary, but
        returns nothing.
        """
        if self._judged_ns is None or now.boottime_ns - self._judged_ns >= JUDGED_EVERY_NS:
            self._judged_ns = now.boottime_ns
            of_jobs = self.hub.findings()
            self._judged = self._findings.judge(grandmasters, now.boottime_ns, now.realtime_ns) | of_jobs
            for node in self.hub.fleet.forget_silent(now.boottime_ns, EXPIRES_AFTER_NS):
                self._followers.remove(node)
        return self._judged if self.is_primary else {}

    # For the web API.

    def summary(self, now: Moment) -> FleetSummary:
        summary = self._summary(now)
        return FleetSummary(
            published_realtime_ns=now.realtime_ns,
            nodes=summary.known,
            statuses={status: count for status, count in summary.statuses.items()},
            grandmasters=summary.grandmasters,
            worst=list(summary.worst),
        )

    def _summary(self, now: Moment) -> FleetOverview:
        return self.hub.fleet.overview(now)

    def standings(self, now: Moment) -> list[AgedStatus]:
        """Of every node against its main reference, aged until now."""
        return aged_statuses(self.hub.fleet, now)

    def map(self, now: Moment) -> FleetMap:
        places: dict[str, list[tuple[str, str, int | None]]] = {}
        for status, error, clock in aged_statuses(self.hub.fleet.with_source(), now):
            entry = (clock.node, status_name(status), bounded_ns(error))
            places.setdefault(clock.topology, []).append(entry)
        return FleetMap.model_validate({"published_realtime_ns": now.realtime_ns, "places": places})

    def alignment(self, names: Sequence[str] | None, job_id: str | None, now: Moment) -> AlignmentState | None:
        """None: no such job runs."""
        if job_id is not None:
            return self.hub.alignment_state(job_id, now)
        return self.hub.fleet.alignment_state(names, now)

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """Of a job that this hub joins; None: no such job runs."""
        return self.hub.window(job_id, from_step, most_steps)
