"""A hub at work in the daemon: what others say goes in, what the fleet and its jobs are like comes out. Time is an argument."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.findings.catalogue import Judged
from timesyncd.findings.fleet import FleetFindings, Key
from timesyncd.findings.followers import Follower, Followers
from timesyncd.fleet.node_clock import AgedStatus, aged_statuses, bounded_ns
from timesyncd.fleet.registry import FleetOverview
from timesyncd.hub.hub import Hub, HubOutput
from timesyncd.hub.primary import STATE_EVERY_NS, Primary
from timesyncd.jobs.joining import JOB_ENDS_AFTER_NS
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetSummary, HubState
from timesyncd.messages.jobs import JobState, MarkBatch, PolicyRequest
from timesyncd.messages.node import GrandmasterState, NodeState, status_name
from timesyncd.model.grandmaster import Invalidation

log = logging.getLogger(__name__)

#: Anybody on a node may ask, so at most one line in so long tells of what was refused.
REFUSAL_TOLD_EVERY_NS = 10 * NS_PER_S

#: Findings of the fleet last for seconds at least, and to judge ten thousand nodes takes a tenth of one.
JUDGED_EVERY_NS = 2 * NS_PER_S

#: A node that is not expected has left when it was silent for so long.
FORGOTTEN_AFTER_NS = 3_600 * NS_PER_S


class HubService:
    """
    `alone`: no broker brings word of others, so this one speaks. Else the hubs elect one of them, the primary, which speaks for
    all. A daemon that is no hub (`is_hub`) knows its own node here, and who the hubs are. `url` is this hub's page where others may
    ask it. `policies` are what the configuration wants of jobs, by their names.
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
        self._judged: dict[Key, Judged] = {}
        self._told: tuple[bool, int] | None = None
        self._over_from_ns: dict[str, int] = {}
        self._refusal_told_ns: int | None = None

    def accept_node(self, state: NodeState, received_boottime_ns: int, live: bool) -> None:
        """`live` False: a broker's retained copy."""
        if not self.hub.accept_node(state, received_boottime_ns, live):
            return
        if not live:
            self._findings.note_last_known(state)
        else:
            self._findings.note(state, received_boottime_ns)
            if state.node != self._node:
                self._followers.note(state, received_boottime_ns)

    def accept_marks(self, batch: MarkBatch, received_boottime_ns: int) -> None:
        self.hub.accept_marks(batch, received_boottime_ns)

    def accept_request(self, request: PolicyRequest, received_boottime_ns: int) -> None:
        """A user wants a job's policy to be another one. The hub that speaks alone does anything about it."""
        refusal = self.hub.request_policy(request) if self.is_primary else ""
        told_ns = self._refusal_told_ns
        if refusal and (told_ns is None or received_boottime_ns - told_ns >= REFUSAL_TOLD_EVERY_NS):
            self._refusal_told_ns = received_boottime_ns
            log.warning("policy: refused: %s", refusal)

    def accept_said(self, said: MarkBatch | PolicyRequest, received_boottime_ns: int) -> None:
        """What came over this node's own job link."""
        if isinstance(said, PolicyRequest):
            self.accept_request(said, received_boottime_ns)
        else:
            self.accept_marks(said, received_boottime_ns)

    def hear_hub(self, state: HubState, received_boottime_ns: int, live: bool) -> None:
        self._primary.accept(state, received_boottime_ns, live)

    def hear_job(self, state: JobState, now: Moment, live: bool) -> bool:
        """
        Another hub speaks of a job, or this one did before its restart. Whether it is the one to be believed; `live` False: a broker's
        retained copy, which may be of a job that ended while no hub was there.
        """
        self.hub.adopt(state)
        if not live:
            if self.is_hub:
                self._over_from_ns[state.job_id] = now.boottime_ns + JOB_ENDS_AFTER_NS
            return False
        speaking = [hub.node for hub in self._primary.alive(now.boottime_ns) if hub.primary]
        return not self.is_primary and state.node in (speaking[:1] or [state.node]) and state.node != self._node

    def void(self, identities: Collection[str], void: Invalidation | None) -> None:
        """A grandmaster did something after which nothing counts that was measured before."""
        if void is not None:
            self.hub.fleet.void(identities, void)

    def advance(self, now: Moment, connected: bool) -> HubOutput:
        """One round, about once a second. Afterwards `is_primary` says whether what it gives is to be told."""
        if not self._alone and self.is_hub:
            self.is_primary = self._primary.advance(now.boottime_ns, connected)
        output = self.hub.advance(now.boottime_ns, now.realtime_ns, self.is_primary)
        self._over_from_ns |= dict.fromkeys(output.ended, now.boottime_ns)
        for state in output.jobs:
            self._over_from_ns.pop(state.job_id, None)
        return output

    def over(self, now: Moment) -> list[str]:
        """
        The ids of jobs of which the broker's copy is to be cleared now. A hub that is not primary keeps them for a while: the one that is may
        have died before it cleared them.
        """
        due = {job_id: from_ns for job_id, from_ns in self._over_from_ns.items() if from_ns <= now.boottime_ns}
        told = list(due) if self.is_primary else []
        for job_id, from_ns in due.items():
            if self.is_primary or now.boottime_ns - from_ns >= JOB_ENDS_AFTER_NS:
                del self._over_from_ns[job_id]
        return told

    def state_if_due(self, now: Moment) -> HubState | None:
        """What this hub says of itself, every few seconds and at once when it begins to speak, where there may be others."""
        if self._alone or not self.is_hub:
            return None
        if self._told is not None:
            was_primary, told_ns = self._told
            if was_primary == self.is_primary and now.boottime_ns - told_ns < STATE_EVERY_NS:
                return None
        self._told = self.is_primary, now.boottime_ns
        return self._state(now)

    def _state(self, now: Moment) -> HubState:
        return self.hub.state(now, self.is_primary, self._started.realtime_ns, self.url)

    def hubs(self, now: Moment) -> list[HubState]:
        """Those that are alive, by name; a daemon that is alone is none worth telling of."""
        own = [self._state(now)] if self.is_hub and not self._alone else []
        return sorted([*self._primary.alive(now.boottime_ns), *own], key=lambda state: state.node)

    def followers(self, now: Moment) -> list[Follower]:
        """The other nodes, as they have aged since they spoke."""
        return self._followers.at(now.boottime_ns, now.realtime_ns)

    def findings(self, units: Sequence[GrandmasterState], now: Moment) -> dict[Key, Judged]:
        """What holds in the fleet; a hub that is not primary judges too, so that it knows when it becomes so, and says nothing."""
        if self._judged_ns is None or now.boottime_ns - self._judged_ns >= JUDGED_EVERY_NS:
            self._judged_ns = now.boottime_ns
            of_jobs = self.hub.findings()
            self._judged = self._findings.judge(units, now.boottime_ns, now.realtime_ns) | of_jobs
            for node in self.hub.fleet.forget_silent(now.boottime_ns, FORGOTTEN_AFTER_NS):
                self._followers.forget(node)
        return self._judged if self.is_primary else {}

    # What the web room asks for.

    def summary(self, now: Moment) -> FleetSummary:
        told = self._summary(now)
        return FleetSummary(
            published_realtime_ns=now.realtime_ns,
            nodes=told.known,
            statuses={status: count for status, count in told.statuses.items()},
            grandmasters=told.grandmasters,
            worst=list(told.worst),
        )

    def _summary(self, now: Moment) -> FleetOverview:
        return self.hub.fleet.summary(now)

    def standings(self, now: Moment) -> list[AgedStatus]:
        """Of every node, as told first, aged until now."""
        return aged_statuses(self.hub.fleet, now)

    def map(self, now: Moment) -> FleetMap:
        places: dict[str, list[tuple[str, str, int | None]]] = {}
        for status, error, clock in aged_statuses(self.hub.fleet.watched(), now):
            told = (clock.node, status_name(status), bounded_ns(error))
            places.setdefault(clock.topology, []).append(told)
        return FleetMap.model_validate({"published_realtime_ns": now.realtime_ns, "places": places})

    def alignment(self, names: Sequence[str] | None, job_id: str | None, now: Moment) -> AlignmentState | None:
        """None: no such job runs."""
        if job_id is not None:
            return self.hub.alignment_state(job_id, now)
        return self.hub.fleet.alignment_state(names, now)

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """Of a job that is joined here; None: no such job runs."""
        return self.hub.window(job_id, from_step, most_steps)
