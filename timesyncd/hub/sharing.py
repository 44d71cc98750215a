"""
A hub's share of the fleet and of the jobs, and the numbers of the whole fleet by the shares of all hubs. Pure: time is an
argument.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.alignment import Alignment, unknown_alignment
from timesyncd.fleet.ownership import Ownership, job_key
from timesyncd.fleet.registry import Fleet
from timesyncd.fleet.shares import FleetTotals, ReceivedShare, share_fields, totals
from timesyncd.fleet.undecoded import key_of
from timesyncd.ipc.job_datagram import job_id
from timesyncd.messages.fleet import FleetShare, FleetSummary
from timesyncd.messages.node import StateReason

#: A hub publishes its share at this interval.
SHARE_EVERY_NS = 2 * NS_PER_S

#: Nodes that a round takes over from another hub: some 0.1 ms each.
MAX_GAINED = 2_000

_JOB = re.compile(rb'"uid":(\d{1,19}),"pid":-?\d{1,19},"job":"([^"\\]{1,1020})","attempt":(\d{1,19}),')
_HEAD_BYTES = 2_048

#: A hub decodes each fifth of a job's states that differ in neither hub nor plan: one comes each second and costs 18 us or more.
DECODED_EVERY = 5
#: Jobs whose states are counted; beyond them the counts of all jobs start again at 0.
_MAX_COUNTED_JOBS = 10_000
_PLAN = b'"plan":{"version":'
_MAX_PUBLISHER_BYTES = 200


def job_of(marks: bytes) -> str | None:
    """The id of the job of a batch of marks, without decoding it; None: it is written in another way."""
    found = _JOB.search(marks, 0, _HEAD_BYTES)
    if found is None:
        return None
    uid, name, attempt = found.groups()
    return job_id(int(uid), name.decode(errors="replace"), int(attempt))


def _origin(state: bytes) -> bytes:
    """The hub that published a job's state, and the version of its plan, without decoding it; empty: it is written otherwise."""
    ends, plan = state.find(b",", 0, _MAX_PUBLISHER_BYTES), state.rfind(_PLAN)
    if ends < 0 or plan < 0:
        return b""
    return state[:ends] + state[plan : plan + _MAX_PUBLISHER_BYTES].split(b",", 1)[0]


class JobStates:
    """Which states of a job are decoded: each from another hub or with another plan, and of the others each fifth."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[bytes, int]] = {}

    def wants(self, job: str, payload: bytes) -> bool:
        origin = _origin(payload)
        known, skipped = self._last.get(job, (b"", 0))
        wanted = not origin or origin != known or skipped >= DECODED_EVERY - 1
        if len(self._last) >= _MAX_COUNTED_JOBS:
            self._last.clear()
        self._last[job] = origin, 0 if wanted else skipped + 1
        return wanted


class Sharing:
    """
    What the hub `node` owns while hubs share the fleet. `fleet` counts the clocks of this share alone. `local_jobs` have ranks
    on this node, which need each state.

    A fleet-wide number is of all shares, counted while the same hubs shared: so no node counts twice. While one is
    missing the alignment is unknown, and the other numbers name the hub whose share they lack.
    """

    def __init__(self, node: str, fleet: Fleet) -> None:
        self.ownership = Ownership(node)
        self.local_jobs: Collection[str] = ()
        self._job_states = JobStates()
        self._node = node
        self._fleet = fleet
        self._received: dict[str, ReceivedShare] = {}
        self._published_ns: int | None = None
        self._published_members: tuple[str, ...] = ()
        self._is_gaining = False
        fleet.owns = self.ownership.owns

    def wants(self, channel: str, subject: str, payload: bytes) -> bool:
        """Whether this hub has to decode a message: of its share, or one that all hubs read."""
        match channel:
            case "node_state":
                return self.ownership.owns(key_of(subject, payload))
            case "mark_batch":
                job = job_of(payload)
                return job is None or self.ownership.owns(job_key(job))
            case "job_state":
                return subject in self.local_jobs or self._job_states.wants(subject, payload)
            case "history":
                return self.ownership.owns(self._fleet.key(subject))
        return True

    def accept(self, share: FleetShare, received_ns: int) -> None:
        """Another hub's share."""
        self._received[share.node] = ReceivedShare(share, received_ns)
        self._received = {name: each for name, each in self._received.items() if name in self.ownership.members}

    def share_if_due(self, now: Moment) -> FleetShare | None:
        """This hub's share, every few seconds and at once after the members changed, when it has all of its nodes."""
        ownership = self.ownership
        if not ownership.has_joined or self._is_gaining:
            return None
        is_new = self._published_members != ownership.members
        if not is_new and self._published_ns is not None and now.boottime_ns - self._published_ns < SHARE_EVERY_NS:
            return None
        self._published_ns, self._published_members = now.boottime_ns, ownership.members
        return self._own_share(now)

    def set_gaining(self, is_gaining: bool) -> None:
        """Whether nodes of this share are still to be taken over, so that its numbers are not complete."""
        self._is_gaining = is_gaining

    def _own_share(self, now: Moment) -> FleetShare:
        head = {"node": self._node, "incarnation": 0, "sequence": 0, "published_realtime_ns": now.realtime_ns}
        return FleetShare.model_validate(
            head | {"members": list(self.ownership.members)} | share_fields(self._fleet, now)
        )

    def totals(self, now: Moment) -> tuple[FleetTotals, list[str]]:
        """Of the shares that are here, and the hubs whose shares are missing."""
        members = self.ownership.members
        found = [] if not self.ownership.has_joined or self._is_gaining else [self._own_share(now)]
        missing = [] if found else [self._node]
        for hub in members:
            received = self._received.get(hub)
            if hub == self._node:
                continue
            if received is None or not received.is_current(members, now.boottime_ns):
                missing.append(hub)
            else:
                found.append(received.aged(now))
        return totals(found), missing

    def alignment(self, now: Moment) -> Alignment:
        """Of the whole fleet; unknown while a share is missing."""
        of_all, missing = self.totals(now)
        if missing:
            reason = f"the share of hub {missing[0]} is not here"
            return unknown_alignment(reason, StateReason.SHARE_UNAVAILABLE)
        return of_all.alignment()

    def summary(self, now: Moment) -> FleetSummary:
        of_all, missing = self.totals(now)
        return FleetSummary(
            published_realtime_ns=now.realtime_ns,
            nodes=of_all.nodes,
            statuses=dict(of_all.statuses or {}),
            grandmasters=dict(of_all.grandmasters or {}),
            worst=list(of_all.worst),
            incomplete=missing,
        )
