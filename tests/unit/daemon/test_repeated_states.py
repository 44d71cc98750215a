"""A state that repeats a node's last one is compared, not decoded: the hub knows the same as if it had decoded all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import node_state

from timesyncd.bound import Reason
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.config import TOPIC_PREFIX, HubSettings
from timesyncd.daemon.hub_service import HubService
from timesyncd.findings.fleet_nodes import DelayHistory, NodeRecord, OffsetHistory
from timesyncd.messages.node import BoundMessage, NodeState, RepeatedState, SourceState
from timesyncd.model.grandmaster import Invalidation
from timesyncd.mqtt.inbox import Inbox
from timesyncd.mqtt.topics import NODE_STATE, encode

NODES = ("n1", "n2")
GM = "001122.fffe.334455"
BOUND = BoundMessage(bound_ns=1_900, growth_ppb=1_250, reason="")
PTP = SourceState(
    name="ptp", driver="ptp4l", reachable=True, kind="ptp", gm=BOUND, utc=BOUND, offset_ns=40, path_delay_ns=1_200,
    age_ns=40_000_000, grandmaster_identity=GM, domain=24,
)  # fmt: skip
STATE = node_state().model_copy(
    update=dict.fromkeys(("parent", "gm", "utc"), BOUND)
    | dict.fromkeys(("status", "utc_status"), "SYNCHRONIZED")
    | dict.fromkeys(("grandmaster_identity", "parent_identity"), GM)
    | {"sources": [PTP, PTP.model_copy(update={"name": "ntp", "kind": "utc"})], "utc_seconds_removed": 37}
)
BODIES: dict[str, dict[str, Any]] = {
    "same": {},
    "later offset": {"sources": [PTP.model_copy(update={"offset_ns": 60})]},
    "no source": {"sources": []},
    "holdover": {"status": "HOLDOVER", "utc_status": "HOLDOVER"},
    "longer path": {"sources": [PTP.model_copy(update={"path_delay_ns": 9_000})]},
}


class Received:
    """A hub that receives the same payloads; `compares`: as the daemon does, else it decodes each."""

    def __init__(self, compares: bool) -> None:
        self.service = HubService(HubSettings(), "hub", Moment(realtime_ns=0, boottime_ns=0), alone=False)
        self.inbox = Inbox(TOPIC_PREFIX, "hub", compares)
        self.repeated = 0

    def accept(self, node: str, payload: bytes, retained: bool, now_ns: int) -> None:
        received = self.inbox.receive(NODE_STATE.topic(TOPIC_PREFIX, node), payload, retained, now_ns)
        if received is None:
            return
        if isinstance(received.message, RepeatedState):
            self.repeated += 1
            if self.service.accept_repeated(received.message, now_ns, payload):
                return
        self.service.accept_node(NodeState.model_validate_json(payload), now_ns, not retained, payload)

    def knowledge(self, now: Moment) -> list[Any]:
        service = self.service
        records = [_slots(each) for each in service._findings._nodes.values()]
        states = [service.hub.fleet.state(node) for node in service.hub.fleet.names()]
        followers = service._followers.at(now.boottime_ns, now.realtime_ns)
        return [
            list(service.hub.fleet),
            states,
            followers,
            records,
            service.alignment(None, None, now),
            self.inbox.outdated,
        ]


def _slots(value: object) -> object:
    """What a record holds, in values."""
    if isinstance(value, NodeRecord | DelayHistory | OffsetHistory):
        return [_slots(getattr(value, name)) for name in type(value).__slots__]
    return value


steps = st.lists(
    st.tuples(
        st.sampled_from(NODES), st.sampled_from(["same", *BODIES]), st.sampled_from([1, 1, 1, 0, -1]),
        st.sampled_from([0, 0, 0, 1]), st.sampled_from([40, 50, None]), st.sampled_from([False, False, True]),
        st.sampled_from([False, False, True]),
    ),
    max_size=25,
)  # fmt: skip


@given(steps)
def test_a_hub_knows_the_same(sent: list[tuple[str, str, int, int, int | None, bool, bool]]) -> None:
    """Whatever changes or stays, with late copies, restarts, retained copies, and events of the grandmaster."""
    hubs, now_ns, sequence, incarnation = [Received(True), Received(False)], NS_PER_S, 5, 1
    for node, body, by, restart, age_ns, retained, invalidates in sent:
        now_ns, sequence, incarnation = now_ns + 5 * NS_PER_S, max(0, sequence + by), incarnation + restart
        head = {"node": node, "incarnation": incarnation, "sequence": sequence, "age_ns": age_ns}
        state = STATE.model_copy(update=BODIES[body] | head | {"published_realtime_ns": now_ns - 1_000})
        for hub in hubs:
            hub.accept(node, encode(state), retained and restart == 0, now_ns)
            if invalidates:
                hub.service.invalidate([GM], Invalidation(now_ns, now_ns, Reason.GRANDMASTER_JUMPED))
    now = Moment(realtime_ns=now_ns + NS_PER_S, boottime_ns=now_ns + NS_PER_S)

    assert hubs[0].knowledge(now) == hubs[1].knowledge(now)


def payload_of(sequence: int, **more: Any) -> bytes:
    return encode(STATE.model_copy(update={"sequence": sequence} | more))


def test_an_unchanged_state_is_not_decoded() -> None:
    """And a changed one is, as is a retained copy."""
    hub = Received(True)
    for sequence in (1, 2, 3):
        hub.accept("n1", payload_of(sequence, published_realtime_ns=sequence), False, sequence)
    hub.accept("n1", payload_of(4, reason="changed"), False, 4)
    hub.accept("n1", payload_of(5), True, 5)

    assert hub.repeated == 2


@pytest.mark.parametrize(
    "head",
    [
        {"sequence": 2**63}, {"published_realtime_ns": 2**62}, {"age_ns": 2**62}, {"sequence": -1}, {"age_ns": 1.5},
        {"node": "n2"}, {"sequence": 10**30}, {"published_realtime_ns": None},
    ],
)  # fmt: skip
def test_the_head_of_an_unchanged_state_is_checked(head: dict[str, Any]) -> None:
    """A number out of its range, or another node's name, is rejected and counted like that of any state."""
    hub = Received(True)
    hub.accept("n1", payload_of(1), False, 1)
    document = json.loads(payload_of(2)) | head
    hub.accept("n1", json.dumps(document, separators=(",", ":")).encode(), False, 2)

    assert (hub.inbox.rejected, hub.repeated) == (1, 0)


def test_a_key_that_comes_twice_counts_as_json_has_it() -> None:
    """The last one counts, so such a state is never compared by its head."""
    hub = Received(True)
    for sequence in (1, 2):
        hub.accept("n1", payload_of(sequence)[:-1] + b',"sequence":7}', False, sequence)

    assert (hub.repeated, hub.inbox.outdated) == (0, 1)
