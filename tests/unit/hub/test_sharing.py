"""A hub's share of jobs and nodes: what it decodes, gives up and takes over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from batches import batch, mark
from extreme_messages import job_state
from hypothesis import given
from hypothesis import strategies as st
from node_states import node_state

from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import HubSettings
from timesyncd.daemon.hub_service import HubService
from timesyncd.fleet.ownership import LISTEN_NS, SETTLED_AFTER_NS, owner
from timesyncd.fleet.registry import Fleet
from timesyncd.fleet.shares import EXPIRES_AFTER_NS
from timesyncd.fleet.undecoded import key_of
from timesyncd.hub.sharing import Sharing, job_of
from timesyncd.ipc.job_datagram import job_id, job_part
from timesyncd.messages.node import NodeState
from timesyncd.mqtt.topics import encode

HUBS = ("hub-a", "hub-b", "hub-c")
NODES = [f"n{number:02d}" for number in range(24)]
JOBS = [f"job-{number}" for number in range(12)]


@given(st.text(min_size=1, max_size=60), st.integers(0, 2**32), st.integers(0, 9))
def test_the_job_of_marks_is_read_without_decoding_them(name: str, uid: int, attempt: int) -> None:
    """Or it is not, where its name is written with escapes; then the batch is decoded."""
    found = job_of(encode(batch(0, mark(0), job=name, uid=uid, attempt=attempt)))

    assert found in (None, job_id(uid, name, attempt))
    assert found is not None or any(letter in '"\\' or ord(letter) < 32 or ord(letter) == 127 for letter in name)


def test_the_rack_of_a_state_is_read_without_decoding_it() -> None:
    """The same key as that of the decoded state."""
    state = node_state("n1")

    assert key_of("n1", encode(state)) == "n1"
    assert key_of("n1", encode(state.model_copy(update={"topology": "hall-1/rack-2"}))) == "hall-1/rack-2"
    assert key_of("n1", encode(state.model_copy(update={"topology": 'a"b'}))) == "n1"


def test_of_a_jobs_states_few_are_decoded() -> None:
    """A plan or a hub that is new is read at once, since the next owner goes on with it; ranks here need each state."""
    sharing = Sharing("hub-a", Fleet())
    first = job_state()
    replanned = first.model_copy(update={"plan": replace(first.plan, version=first.plan.version + 1)})
    states = [*[first] * 7, replanned, replanned.model_copy(update={"node": "hub-c"}), first]
    wanted = [sharing.wants("job_state", "j", encode(state)) for state in states]
    sharing.local_jobs = {"j"}
    of_local = [sharing.wants("job_state", "j", encode(first)) for _ in range(3)]

    assert wanted == [True, False, False, False, False, True, False, True, True, True]
    assert of_local == [True] * 3
    assert [sharing.wants("job_state", "k", b'{"node": "hub-c"}') for _ in range(2)] == [True, True]


class SharedFleet:
    """Hubs in one process, which receive all that nodes, ranks and hubs send, as from a broker."""

    def __init__(self) -> None:
        self.now = Moment(realtime_ns=10 * NS_PER_S, boottime_ns=10 * NS_PER_S)
        self.hubs = {
            name: HubService(HubSettings(shared=True, nodes=NODES), name, self.now, alone=False) for name in HUBS
        }
        self.claimed: list[list[str]] = []
        self._sequence = 0
        self.mute = ""

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self._sequence += 1
            later_ns = NS_PER_S * self._sequence
            self.now = Moment(realtime_ns=10 * NS_PER_S + later_ns, boottime_ns=10 * NS_PER_S + later_ns)
            for hub in self.hubs.values():
                self._deliver(hub)
            outputs = [(name, hub.advance(self.now, connected=True)) for name, hub in self.hubs.items()]
            self.claimed.append(
                [s.job for name, output in outputs for s in output.jobs if self.hubs[name].publishes_job(s.job_id)]
            )
            self._exchange()

    def _deliver(self, hub: HubService) -> None:
        for node in NODES:
            state = node_state(node, sequence=self._sequence)
            state = state.model_copy(update={"published_realtime_ns": self.now.realtime_ns})
            if hub.wants("node_state", node, encode(state)):
                hub.accept_node(state, self.now.boottime_ns, True, encode(state))
            else:
                hub.accept_other(node, encode(state), self.now.boottime_ns, True)
        for job in JOBS:
            marks = batch(0, mark(self._sequence), job=job, sequence=self._sequence, world_size=1)
            subscribed, part = hub.selected_parts, job_part(job_id(marks.uid, marks.job, marks.attempt))
            assert subscribed is not None
            if part in subscribed and hub.wants("mark_batch", marks.node, encode(marks)):
                hub.accept_marks(marks, self.now.boottime_ns)

    def _exchange(self) -> None:
        for sender in self.hubs.values():
            state, share = sender.state_if_due(self.now), sender.share_if_due(self.now)
            for receiver in self.hubs.values():
                if state is not None:
                    receiver.accept_hub(state, self.now.boottime_ns, live=True)
                if share is not None and share.node != self.mute and receiver is not sender:
                    receiver.accept_share(share, self.now.boottime_ns)

    def answers(self) -> dict[str, Any]:
        """By hub, what it answers of the whole fleet."""
        found = {}
        for name, hub in self.hubs.items():
            summary, alignment = hub.summary(self.now), hub.alignment(None, None, self.now)
            assert alignment is not None
            found[name] = (summary.nodes, summary.incomplete, alignment.alignment_ns is not None, alignment.reason_code)
        return found


JOINED_S = (LISTEN_NS + SETTLED_AFTER_NS) // NS_PER_S + 3
WHOLE: tuple[Any, ...] = (len(NODES), [], True, "ok")


def test_hubs_take_over_from_one_that_dies_within_ten_seconds() -> None:
    """Every hub answers for all; then those that are left do, and no job is ever published by two hubs in one round."""
    fleet = SharedFleet()
    fleet.run(JOINED_S)
    before, jobs = fleet.answers(), fleet.claimed[-1]
    del fleet.hubs["hub-b"]
    fleet.run(2)
    meanwhile = fleet.answers()
    fleet.run(8)

    assert before == dict.fromkeys(HUBS, WHOLE)
    assert {found[2:] for found in meanwhile.values()} in ({(True, "ok")}, {(False, "share_unavailable")})
    assert fleet.answers() == dict.fromkeys(("hub-a", "hub-c"), WHOLE)
    assert sorted(jobs) == sorted(fleet.claimed[-1]) == sorted(JOBS)
    assert all(len(each) == len(set(each)) for each in fleet.claimed)


def test_the_alignment_is_unknown_while_a_share_is_missing() -> None:
    """A part of the fleet would give too narrow a bound; the counts name the hub whose share they lack."""
    fleet = SharedFleet()
    fleet.run(JOINED_S)
    fleet.mute = "hub-b"
    fleet.run(EXPIRES_AFTER_NS // NS_PER_S + 1)
    found = fleet.answers()

    assert [found[hub][1:] for hub in ("hub-a", "hub-c")] == [(["hub-b"], False, "share_unavailable")] * 2
    assert found["hub-a"][0] < len(NODES)
    assert found["hub-b"] == WHOLE


def test_every_hub_answers_for_a_node_and_a_set_of_nodes() -> None:
    """Of another share too, from the state as it was received."""
    fleet = SharedFleet()
    fleet.run(JOINED_S)

    for hub in fleet.hubs.values():
        assert hub.hub.fleet.names() == NODES
        assert isinstance(hub.hub.fleet.state("n07"), NodeState)
        state = hub.alignment(["n03", "n07", "n11"], None, fleet.now)
        assert state is not None and state.alignment_ns is not None


def test_a_missing_node_is_reported_by_the_hub_of_its_share_alone() -> None:
    """An expected node that never reported belongs to the owner of its name."""
    fleet = SharedFleet()
    for hub in fleet.hubs.values():
        hub.hub.fleet._all_expected = (*NODES, "n99")
    fleet.run(JOINED_S)
    missing = {name: hub.hubs(fleet.now) for name, hub in fleet.hubs.items()}
    of_own = {name: next(each for each in states if each.node == name).missing for name, states in missing.items()}

    assert of_own == {name: (["n99"] if owner("n99", HUBS) == name else []) for name in HUBS}
    assert {found[3] for found in fleet.answers().values()} == {"node_never_reported"}
