"""From a message to its topic and back; other topics and invalid messages are rejected."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import cloud_event, grandmaster, history, hub_share, hub_state, marks, node_state, policy_request, stored

from timesyncd.clocks import NS_PER_S
from timesyncd.config import TOPIC_PREFIX
from timesyncd.errors import Malformed
from timesyncd.ipc.job_datagram import JOB_PARTS, job_id, job_part
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import Message
from timesyncd.mqtt.inbox import MAX_WARNINGS, Inbox
from timesyncd.mqtt.topics import (
    CHANNELS,
    EVENT,
    GRANDMASTER_STATE,
    HISTORY,
    HUB_SHARE,
    HUB_SUBSCRIPTIONS,
    JOB_STATE,
    MARKS,
    MAX_MESSAGE_BYTES,
    NODE_STATE,
    NODE_SUBSCRIPTIONS,
    POLICY_REQUEST,
    STATE_REQUEST,
    STORED,
    MqttChannel,
    channel_of,
    decode,
    encode,
    parse_topic,
    subject_of,
    subscriptions,
    topic_of,
)


@pytest.mark.parametrize("channel", CHANNELS, ids=lambda channel: str(channel.name))
def test_a_topic_leads_back_to_its_channel(channel: MqttChannel) -> None:
    """`parse_topic` is the inverse of `topic`."""
    assert parse_topic(TOPIC_PREFIX, channel.topic(TOPIC_PREFIX, "a.b-1", part="f0")) == (channel, "a.b-1")


@pytest.mark.parametrize(
    "topic",
    ["", "node/n1/state", f"{TOPIC_PREFIX}/node/n1", f"{TOPIC_PREFIX}/node/n1/state/x", f"{TOPIC_PREFIX}/job/n1/marks",
     f"{TOPIC_PREFIX}/node//state", f"{TOPIC_PREFIX}/node/<b>/state", f"{TOPIC_PREFIX}{TOPIC_PREFIX}/node/n1/state",
     f"{TOPIC_PREFIX}/node/n1/marks", f"{TOPIC_PREFIX}/node/n1/marks/g0", f"{TOPIC_PREFIX}/node/n1/marks/00/x"],
)  # fmt: skip
def test_a_foreign_topic_is_refused(topic: str) -> None:
    """Another prefix, another depth, another leaf, a part that no job has, or a subject that is no name."""
    with pytest.raises(Malformed):
        parse_topic(TOPIC_PREFIX, topic)


@pytest.mark.parametrize(
    "message",
    [
        node_state(),
        marks(1),
        grandmaster("n1", 1, 1),
        cloud_event(),
        history(),
        stored(),
        hub_state(),
        hub_share(),
        policy_request(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    """A message survives the wire unchanged."""
    channel = channel_of(type(message))

    assert decode(channel, subject_of(message, "n1"), encode(message)) == message


def test_an_unknown_key_is_ignored() -> None:
    """A newer writer may add fields."""
    payload = json.dumps(node_state().model_dump() | {"new_in_v2": 1}).encode()

    assert decode(NODE_STATE, "n1", payload) == node_state()


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"\xff\x00", "not a node_state message: Invalid JSON"),
        (b"[]", "not a node_state message: Input should be an object"),
        (b"{}", "not a node_state message: node: missing"),
        (b" " * (MAX_MESSAGE_BYTES + 1), "at most 1048576 are allowed"),
        (encode(node_state("n2")), "node differs from the topic's subject 'n1'"),
        (encode(node_state()).replace(b'"sequence":1', b'"sequence":-1'), "sequence"),
        (
            encode(node_state()).replace(b'"published_realtime_ns":1', b'"published_realtime_ns":1' + b"0" * 30),
            "less than",
        ),
    ],
)
def test_an_invalid_message_is_rejected(payload: bytes, error: str) -> None:
    """What is not this channel's message about this subject raises Malformed with the reason."""
    with pytest.raises(Malformed, match=error):
        decode(NODE_STATE, "n1", payload)


def test_an_invalid_message_is_counted_and_logged_once_per_topic(caplog: pytest.LogCaptureFixture) -> None:
    """A topic is complained about once a connection, however much poison comes, and the next good message counts."""
    inbox = Inbox(TOPIC_PREFIX, "me")
    topic = NODE_STATE.topic(TOPIC_PREFIX, "n1")
    with caplog.at_level(logging.WARNING):
        poisoned = [inbox.receive(topic, b"{", False, 0) for _ in range(3)]
    good = inbox.receive(topic, encode(node_state()), False, 7)

    assert poisoned == [None] * 3
    assert inbox.rejected == 3
    assert len(caplog.records) == 1
    assert good is not None
    assert (good.subject, good.message, good.retained, good.received_boottime_ns) == ("n1", node_state(), False, 7)
    assert good.payload == encode(node_state())


def test_a_sender_writes_no_line_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Neither by a topic nor by the name of a key, and not at any length."""
    inbox = Inbox(TOPIC_PREFIX, "me")
    lie = "x\nERROR all is lost\x1b[31m" + "y" * 5_000
    state = node_state().model_dump() | {"terms": {lie: "z"}}
    with caplog.at_level(logging.WARNING):
        inbox.receive(NODE_STATE.topic(TOPIC_PREFIX, "n1"), json.dumps(state).encode(), False, 0)
        inbox.receive(f"{TOPIC_PREFIX}/node/{lie}/state", b"{}", False, 0)
    lines = [record.getMessage() for record in caplog.records]

    assert len(lines) == 2
    assert all(line.isprintable() and "x\\nERROR" in line and len(line) < 500 for line in lines)


def test_a_restarted_incarnation_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its later messages are accepted on all its topics."""
    inbox = Inbox(TOPIC_PREFIX, "me")
    states = [(9, 0, 0), (1, 5, 60), (1, 6, 62)]
    with caplog.at_level(logging.WARNING):
        took = [
            inbox.receive(
                topic_of(message, TOPIC_PREFIX, subject_of(message, "n1")),
                encode(message),
                False,
                at_s * NS_PER_S,
            )
            for incarnation, sequence, at_s in states
            for message in (node_state("n1", incarnation, sequence), grandmaster("n1", incarnation, sequence))
        ]

    assert all(took)
    assert [record.getMessage() for record in caplog.records] == [
        "mqtt: n1 restarted with a lower incarnation: its clock or its store was set back"
    ]


def test_what_came_while_we_were_away_is_not_missed() -> None:
    """A replayed message right after a reconnection is as old as before."""
    inbox = Inbox(TOPIC_PREFIX, "me")
    topic = NODE_STATE.topic(TOPIC_PREFIX, "n1")
    inbox.receive(topic, encode(node_state(incarnation=9)), False, 0)
    inbox.reconnected(900 * NS_PER_S)

    assert inbox.receive(topic, encode(node_state(incarnation=8)), False, 901 * NS_PER_S) is None
    assert inbox.outdated == 1


@pytest.mark.parametrize("node", ["", "a b", "n1\n", "x" * 65])
def test_every_publisher_has_a_name(node: str) -> None:
    """It is remembered, and written into logs."""
    payload = json.dumps(grandmaster("n1", 1, 1).model_dump() | {"node": node}).encode()

    with pytest.raises(Malformed, match="node"):
        decode(GRANDMASTER_STATE, "gm-a", payload)


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "no_such()"},
        {"policy": ""},
        {"policy": "bsp" + " " * 94},
        {"policy": "b\nsp"},
        {"job_id": "train"},
        {"uid": None},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused(change: dict[str, str | None]) -> None:
    """A hub puts into a plan what ranks understand, and nothing else."""
    payload = json.dumps(policy_request().model_dump() | change).encode()

    with pytest.raises(Malformed, match=next(iter(change))):
        decode(POLICY_REQUEST, "n1", payload)


@pytest.mark.parametrize(
    "plan",
    [{"policy": "x" * 97}, {"policy": "ü"}, {"policy_version": -1}, {"groups": [[-1]]}, {"groups": [[2**31]]}],
    ids=str,
)
def test_a_plan_that_no_segment_holds_is_refused(plan: dict[str, object]) -> None:
    """
    No segment could hold it, or it would differ there. A policy that only a newer version understands is accepted.
    """
    fields = dict.fromkeys(("step", "sync_overhead", "arrival_skew_ns", "arrival_skew_p50_ns", "arrival_skew_error_ns", "last_rank",
        "straggler_rank", "alignment_ns", "alignment_growth_ppb"))  # fmt: skip
    zero = dict.fromkeys(
        ("attempt", "uid", "world_size", "published_realtime_ns", "steps_complete", "steps_incomplete"), 0
    )
    words = {
        "node": "n1",
        "incarnation": 1,
        "sequence": 1,
        "job_id": "0" * 16,
        "job": "j",
        "verdict": "",
        "alignment_reason": "",
    }
    state = fields | zero | words | {"ranks": []}
    newer = decode(JOB_STATE, "0" * 16, json.dumps(state | {"plan": {"policy": "of_tomorrow(x=1)"}}).encode())

    assert isinstance(newer, JobState) and newer.plan.policy == "of_tomorrow(x=1)"
    with pytest.raises(Malformed, match=f"plan.{next(iter(plan))}"):
        decode(JOB_STATE, "0" * 16, json.dumps(state | {"plan": plan}).encode())


@pytest.mark.parametrize("rows", [0, 501])
def test_a_batch_of_history_has_a_size(rows: int) -> None:
    """Not empty, and at most as many rows as may be unconfirmed."""
    content = history().model_dump()
    payload = json.dumps(content | {"rows": content["rows"] * rows}).encode()

    with pytest.raises(Malformed, match="rows"):
        decode(HISTORY, "n1", payload)


def test_warnings_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Invalid messages on ever new topics fill neither the log nor the memory."""
    inbox = Inbox(TOPIC_PREFIX, "me")
    with caplog.at_level(logging.WARNING):
        for number in range(2 * MAX_WARNINGS):
            inbox.receive(f"other/{number}", b"x", False, 0)

    assert inbox.rejected == 2 * MAX_WARNINGS
    assert len(caplog.records) == MAX_WARNINGS


@pytest.mark.parametrize(
    "message",
    [
        node_state("me"), marks(1, "me"), grandmaster("me", 1, 1), cloud_event(node="me"), history(node="me"),
        stored(of="n1", node="me"), stored(of="me", node="me"), hub_state("me"), policy_request(1, "me"),
    ],
)  # fmt: skip
def test_our_own_message_is_ignored(message: Message) -> None:
    """The broker's copy of our own message is ignored, and is not invalid."""
    inbox = Inbox(TOPIC_PREFIX, "me")

    assert inbox.receive(topic_of(message, TOPIC_PREFIX, subject_of(message, "me")), encode(message), True, 0) is None
    assert (inbox.rejected, inbox.outdated) == (0, 0)


@pytest.mark.parametrize(
    "message",
    [
        node_state("n2"),
        marks(1, "n2"),
        cloud_event(node="n2"),
        history(node="n2"),
        hub_state("n2"),
        policy_request(1, "n2"),
    ],
)
def test_a_node_speaks_for_itself_alone(message: Message) -> None:
    """What names another node than its topic does is poison, on every channel."""
    channel = channel_of(type(message))

    with pytest.raises(Malformed, match="node differs from the topic's subject 'n1'"):
        decode(channel, "n1", encode(message))


@pytest.mark.parametrize("source", ["n1", "/cluster/node/", "/cluster/node/n1/x", "/other/n1", "/cluster/node/N1"])
def test_an_event_of_a_foreign_source_is_refused(source: str) -> None:
    """Only a node's path is a node."""
    event = cloud_event().model_copy(update={"source": source})

    with pytest.raises(Malformed):
        decode(EVENT, "n1", encode(event))


def test_a_confirmation_for_another_is_refused() -> None:
    """What a hub has stored of n2 must not cut the outbox of n1."""
    with pytest.raises(Malformed, match="of differs from the topic's subject 'n1'"):
        decode(STORED, "n1", encode(stored(of="n2")))


def test_only_addressed_channels_have_one_subscriber() -> None:
    """
    If each of 10,000 nodes received the confirmations for all others, that would be 100,000,000 messages a minute.
    """
    patterns = {
        channel.name: channel.pattern(TOPIC_PREFIX, "n1") for channel in (*HUB_SUBSCRIPTIONS, *NODE_SUBSCRIPTIONS)
    }

    assert patterns.pop("stored") == f"{TOPIC_PREFIX}/node/n1/stored"
    assert patterns["mark_batch"] == f"{TOPIC_PREFIX}/node/+/marks/+"
    assert all(pattern.split("/")[3] == "+" for pattern in patterns.values())


@pytest.mark.parametrize("channel", CHANNELS, ids=lambda channel: str(channel.name))
def test_every_retained_message_expires(channel: MqttChannel) -> None:
    """No daemon clears the topics of a removed node."""
    assert not channel.retained or channel.expiry_s is not None


def test_an_empty_message_clears() -> None:
    """A cleared retained topic is no poison and no message."""
    inbox = Inbox(TOPIC_PREFIX, "me")

    assert inbox.receive(JOB_STATE.topic(TOPIC_PREFIX, "0123456789abcdef"), b"", False, 0) is None
    assert inbox.rejected == 0


@given(st.integers(0, 2**32), st.text(min_size=1, max_size=30), st.integers(0, 9))
def test_the_topic_of_marks_names_the_part_of_their_job(uid: int, job: str, attempt: int) -> None:
    """A hub that subscribes to the parts of its own jobs receives every batch of those."""
    batch = marks(1).model_copy(update={"uid": uid, "job": job, "attempt": attempt})
    part = job_part(job_id(uid, job, attempt))

    assert topic_of(batch, TOPIC_PREFIX, "n1") == f"{TOPIC_PREFIX}/node/n1/marks/{part}"
    assert MARKS.selected(TOPIC_PREFIX, part) == f"{TOPIC_PREFIX}/node/+/marks/{part}"
    assert part in JOB_PARTS


def test_a_daemon_subscribes_to_what_it_needs() -> None:
    """Else each of N nodes would receive the states of all jobs, and each of several hubs the marks of all jobs."""
    node, hub = subscriptions(False, False, True), subscriptions(True, False, True)
    shared, without_store = subscriptions(True, True, True), subscriptions(True, False, False)

    assert JOB_STATE not in node and MARKS not in node and STATE_REQUEST in node
    assert {JOB_STATE, MARKS, HISTORY} <= set(hub)
    assert set(hub) - set(shared) == {MARKS} and HUB_SHARE in shared
    assert set(hub) - set(without_store) == {HISTORY}


def test_marks_and_requests_are_not_retained() -> None:
    """A replayed mark would be joined to the wrong step, and a replayed request would change a policy again."""
    assert not MARKS.retained and not POLICY_REQUEST.retained
