"""
The hub inside the daemon: takes in messages of nodes, ranks and hubs; gives the states of fleet and jobs. Time is an
argument.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.daemon.refused_names import RefusedCount
from timesyncd.findings.catalogue import Judgement
from timesyncd.findings.fleet import FLEET, FleetFindings, Key
from timesyncd.findings.followers import Follower, Followers
from timesyncd.fleet import ownership
from timesyncd.fleet.admission import Admission
from timesyncd.fleet.node_clock import AgedStatus, aged_statuses, bounded_ns
from timesyncd.fleet.ownership import Ownership, job_key, share_key
from timesyncd.fleet.registry import FleetOverview
from timesyncd.hub.hub import STATE_EVERY_NS, Hub, HubOutput, Primary
from timesyncd.hub.sharing import MAX_GAINED, Sharing
from timesyncd.ipc.job_datagram import job_id
from timesyncd.jobs.joining import JOB_ENDS_AFTER_NS
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetShare, FleetSummary, HubState, NodeAlignment
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

#: The nodes that a hub keeps, besides those of hub.nodes: a client that may write every topic can invent names. Where hubs
#: share the fleet, each also keeps the others' states, undecoded.
MAX_NODES, MAX_BYTES = 25_000, 176 * 1_048_576
MAX_SHARED_NODES, MAX_SHARED_BYTES = 150_000, 512 * 1_048_576

#: Retained states of jobs that this hub clears if they have ended; the others expire at the broker within an hour.
MAX_TO_CLEAR = 10_000

#: What a node takes: 3.8 kB with a state of 0.8 kB, 8.2 with 2.8, 92 with 42. Its histories take another kilobyte later.
_NODE_BYTES, _NODE_BYTES_A_BYTE = 3_584, 2.2
#: One of another share.
_OTHER_BYTES = 700


class HubService:
    """
    `alone`: there is no broker, so this hub is the primary. Otherwise the hubs elect one of them as the primary, which
    publishes for all. In a daemon that is not a hub (`is_hub`) it holds the own node's state and the list of hubs.
    `url` is this hub's page where other machines may reach it. `policies` and `priorities` are the configured ones, by job name.
    """

    def __init__(
        self,
        settings: HubSettings | None,
        node: str,
        started: Moment,
        alone: bool,
        policies: Mapping[str, str] | None = None,
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        self.url: str | None = None
        self.is_hub = alone or settings is not None
        self.is_primary = alone
        self.hub = Hub(settings or HubSettings(), node, policies=policies, priorities=priorities)
        self.released: list[str] = []
        self._sharing = (
            Sharing(node, self.hub.fleet) if settings is not None and settings.shared and not alone else None
        )
        self._ownership = self._sharing.ownership if self._sharing is not None else Ownership(node)
        self._owned_parts: frozenset[str] = frozenset()
        self._alone = alone
        self._node = node
        self._started = started
        self._primary = Primary(node)
        self._followers = Followers()
        is_shared = self._sharing is not None
        most = (MAX_SHARED_NODES, MAX_SHARED_BYTES) if is_shared else (MAX_NODES, MAX_BYTES)
        self.admission = Admission(*most, protected=(node, *(settings.nodes if settings is not None else ())))
        self._findings = FleetFindings(settings.nodes if settings is not None else (), node)
        if self._sharing is not None:
            self._findings.owns = lambda node: self._ownership.owns(self.hub.fleet.key(node))
        self._judged_ns: int | None = None
        self._judged: dict[Key, Judgement] = {}
        self._published: tuple[tuple[bool, bool], int] | None = None
        self._clear_from_ns: dict[str, int] = {}
        self._refusal_logged_ns: int | None = None
        self._hubs_refused = RefusedCount(0, None)

    def wants(self, channel: str, subject: str, payload: bytes) -> bool:
        """Whether this hub has to decode a message: where hubs share the fleet, those of its share alone."""
        return self._sharing is None or self._sharing.wants(channel, subject, payload)

    def set_local_jobs(self, jobs: Collection[str]) -> None:
        """The jobs with ranks on this node, of which each state is decoded."""
        if self._sharing is not None:
            self._sharing.local_jobs = jobs

    def accept_other(self, node: str, json: bytes, received_boottime_ns: int, live: bool) -> None:
        """The state of a node of another hub's share, undecoded."""
        if not self._admits(node, _OTHER_BYTES + len(json), live, received_boottime_ns):
            return
        if self.hub.fleet.accept_other(node, json, received_boottime_ns, live):
            self._forget_node(node)

    def _forget_node(self, node: str) -> None:
        self._followers.remove(node)
        self._findings.forget(node)

    def _admits(self, node: str, size: int, live: bool, received_boottime_ns: int) -> bool:
        """Whether the node is kept; others may give way to it."""
        decision = self.admission.admit(node, size, live, received_boottime_ns)
        self._drop(decision.given_way)
        return decision.admitted

    def _drop_expired(self, nodes: Sequence[str]) -> None:
        self._drop(nodes)
        for part in (self.hub.fleet, self._followers, self._findings) if nodes else ():
            part.compact()

    def _drop(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self.hub.fleet.drop(node)
            self._forget_node(node)

    def accept_node(self, state: NodeState, received_boottime_ns: int, live: bool, json: bytes | None = None) -> bool:
        """
        `live` False: a broker's retained copy. `json`: the state as it was received. Returns False where the hub has no room for
        the node, and ignores its state.
        """
        json = json or state.model_dump_json().encode()
        if self._sharing is not None and not self._ownership.owns(share_key(state.topology, state.node)):
            self.accept_other(state.node, json, received_boottime_ns, live)
            return True
        size = _NODE_BYTES + int(_NODE_BYTES_A_BYTE * len(json))
        if not self._admits(state.node, size, live, received_boottime_ns):
            return False
        if self.hub.accept_node(state, received_boottime_ns, live, json):
            self._judge_later(state, received_boottime_ns, live)
        return True

    def _judge_later(self, state: NodeState, received_boottime_ns: int, live: bool) -> None:
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
            self.admission.repeat(state.node, received_boottime_ns)
            self._findings.repeat(state, received_boottime_ns)
            self._followers.repeat(state, received_boottime_ns)
            return True
        return False

    def accept_marks(self, batch: MarkBatch, received_boottime_ns: int) -> None:
        if self._sharing is None or self._ownership.owns(job_key(job_id(batch.uid, batch.job, batch.attempt))):
            self.hub.accept_marks(batch, received_boottime_ns)

    def accept_request(self, request: PolicyRequest, received_boottime_ns: int) -> None:
        """A user requests another policy for a job. Only the primary hub applies it."""
        refusal = self.hub.request_policy(request) if self.publishes_job(request.job_id) else ""
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

    def accept_hub(self, state: HubState, received_boottime_ns: int, live: bool) -> bool:
        """False: there are too many hubs, and this new one is ignored."""
        if not self._primary.accept(state, received_boottime_ns, live):
            self._hubs_refused = RefusedCount(self._hubs_refused.total + 1, state.node)
            return False
        self._ownership.accept(state, received_boottime_ns, live)
        return True

    @property
    def refused(self) -> dict[str, RefusedCount]:
        """By kind, the messages and names for which this hub had no room."""
        nodes = self.admission
        return {"nodes": RefusedCount(nodes.refused + nodes.dropped, nodes.last_refused), "hubs": self._hubs_refused}

    def accept_share(self, share: FleetShare, received_boottime_ns: int) -> None:
        if self._sharing is not None:
            self._sharing.accept(share, received_boottime_ns)

    def publishes_job(self, job: str) -> bool:
        """Whether this hub publishes the job with this id: it is primary, or where hubs share, the job's owner."""
        return self._ownership.claims(job_key(job)) if self._sharing is not None else self.is_primary

    @property
    def selected_parts(self) -> frozenset[str] | None:
        """The parts of the jobs whose marks this hub needs; None: of all jobs, or this daemon is no hub."""
        return None if self._sharing is None else self._owned_parts

    def accept_job(self, state: JobState, now: Moment, live: bool) -> bool:
        """
        Another hub published a job's state, or this one did before its restart. True: it comes from the primary hub, so
        it counts. `live` False: a broker's retained copy, which may be of a job that ended while no hub was running.
        """
        self.hub.adopt(state)
        if not live:
            if self.is_hub and len(self._clear_from_ns) < MAX_TO_CLEAR:
                self._clear_from_ns[state.job_id] = now.boottime_ns + JOB_ENDS_AFTER_NS
            return False
        if self._sharing is None:
            self._ownership.observe(now.boottime_ns)
        if (owner := self._ownership.owner(job_key(state.job_id))) is not None:
            return state.node == owner != self._node
        primaries = [hub.node for hub in self._primary.alive(now.boottime_ns) if hub.primary]
        return not self.is_primary and state.node in (primaries[:1] or [state.node]) and state.node != self._node

    def invalidate(self, identities: Collection[str], invalidation: Invalidation | None) -> None:
        """Apply a grandmaster's event after which earlier measurements of its followers do not count."""
        if invalidation is not None:
            self.hub.fleet.invalidate_before(identities, invalidation)

    def advance(self, now: Moment, connected: bool) -> HubOutput:
        """One round, about once a second. Afterwards `is_primary` says whether the daemon publishes the output."""
        if self._sharing is not None:
            self._share(self._sharing, now, connected)
        elif not self._alone and self.is_hub:
            self.is_primary = self._primary.advance(now.boottime_ns, connected)
        output = self.hub.advance(now.boottime_ns, now.realtime_ns, self.is_primary, self.publishes_job)
        self._clear_from_ns |= dict.fromkeys(output.ended, now.boottime_ns)
        for state in output.jobs:
            self._clear_from_ns.pop(state.job_id, None)
        return output

    def _share(self, sharing: Sharing, now: Moment, connected: bool) -> None:
        """Give up what other hubs own from now on, and take over what this one owns, so many nodes in a round."""
        self.released = []
        if self._ownership.advance(now.boottime_ns, connected):
            self._owned_parts = self._ownership.owned_parts()
            self.released = self.hub.release(lambda job: self._ownership.owns(job_key(job)))
            for node in self.hub.fleet.release():
                self._forget_node(node)
        self.is_primary = self._ownership.has_joined
        gained = self.hub.fleet.gained(MAX_GAINED)
        for state, other in gained:
            self.accept_node(state, other.received_ns, other.live, other.payload)
        sharing.set_gaining(len(gained) >= MAX_GAINED)

    def share_if_due(self, now: Moment) -> FleetShare | None:
        """This hub's part of the fleet's numbers; None: nothing is due, or the hubs do not share the fleet."""
        return None if self._sharing is None else self._sharing.share_if_due(now)

    def jobs_to_clear(self, now: Moment) -> list[str]:
        """
        The ids of ended jobs whose retained states this hub clears at the broker now. A hub that is not primary keeps
        them for a while: the primary may die before it clears them.
        """
        due = {job_id: from_ns for job_id, from_ns in self._clear_from_ns.items() if from_ns <= now.boottime_ns}
        cleared = [job for job in due if self.publishes_job(job)]
        for job, from_ns in due.items():
            if self.publishes_job(job) or now.boottime_ns - from_ns >= JOB_ENDS_AFTER_NS:
                del self._clear_from_ns[job]
        return cleared

    def state_if_due(self, now: Moment) -> HubState | None:
        """
        This hub's own state, every few seconds and at once when it becomes primary or stops; None where no other hub
        can be.
        """
        if self._alone or not self.is_hub:
            return None
        role = self.is_primary, self._shares
        # Where hubs share, in every round: a round is about a second, so half of one early is on time.
        every_ns = STATE_EVERY_NS if self._sharing is None else ownership.STATE_EVERY_NS // 2
        if self._published is not None:
            former, published_ns = self._published
            if former == role and now.boottime_ns - published_ns < every_ns:
                return None
        self._published = role, now.boottime_ns
        return self._state(now)

    @property
    def _shares(self) -> bool:
        return self._sharing is not None and self._ownership.has_joined

    def _state(self, now: Moment) -> HubState:
        return self.hub.state(now, self.is_primary, self._started.realtime_ns, self.url, self._shares)

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
                self.admission.remove(node)
            self._drop_expired(self.admission.expire(now.boottime_ns))
        if self._sharing is not None:
            return {key: judgement for key, judgement in self._judged.items() if self.publishes_finding(key)}
        return self._judged if self.is_primary else {}

    def publishes_finding(self, key: Key) -> bool:
        """
        Whether this hub publishes a finding of the fleet, so that it is published once: where hubs share, the owner of
        its subject does. Each hub reports the missing nodes of its own share.
        """
        if self._sharing is None:
            return self.is_primary
        return key[1] == FLEET or self._ownership.claims(self.hub.fleet.key(key[1]))

    # For the web API.

    def summary(self, now: Moment) -> FleetSummary:
        if self._sharing is not None:
            return self._sharing.summary(now)
        summary = self._summary(now)
        return FleetSummary(
            published_realtime_ns=now.realtime_ns,
            nodes=summary.known,
            statuses={status: count for status, count in summary.statuses.items()},
            grandmasters=summary.grandmasters,
            worst=list(summary.worst),
        )

    def worst_of_all_shares(self, now: Moment) -> list[NodeAlignment] | None:
        """None: no hub shares the fleet, so this hub's nodes are all of it."""
        return None if self._sharing is None else self._sharing.summary(now).worst

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
        others = [] if self._sharing is None else [hub for hub in self._ownership.members if hub != self._node]
        fields = {"published_realtime_ns": now.realtime_ns, "incomplete": others, "places": places}
        return FleetMap.model_validate(fields)

    def alignment(self, names: Sequence[str] | None, job_id: str | None, now: Moment) -> AlignmentState | None:
        """None: no such job runs."""
        if job_id is not None:
            return self.hub.alignment_state(job_id, now)
        state = self.hub.fleet.alignment_state(names, now)
        if names is None and self._sharing is not None:
            return state.model_copy(update=self._sharing.alignment(now).fields())
        return state

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """Of a job that this hub joins; None: no such job runs."""
        return self.hub.window(job_id, from_step, most_steps)
