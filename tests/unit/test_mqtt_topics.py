"""From a message to its topic and back; what is none of ours is refused."""

from __future__ import annotations

import json
import logging

import pytest
from wire import finding, grandmaster, marks, node_state

from timesyncd.errors import Malformed
from timesyncd.messages import Message
from timesyncd.mqtt.inbox import MAX_COMPLAINTS, Inbox
from timesyncd.mqtt.topics import (
    CHANNELS,
    JOB_STATE,
    MARKS,
    MAX_MESSAGE_BYTES,
    NODE_STATE,
    Channel,
    channel_of,
    decode,
    encode,
    locate,
    subject_of,
)

PREFIX = "timesyncd/v1"


@pytest.mark.parametrize("channel", CHANNELS, ids=lambda channel: str(channel.name))
def test_a_topic_leads_back_to_its_channel(channel: Channel) -> None:
    """`locate` is the inverse of `topic`."""
    assert locate(PREFIX, channel.topic(PREFIX, "a.b-1")) == (channel, "a.b-1")


@pytest.mark.parametrize(
    "topic",
    ["", "node/n1/state", "timesyncd/v1/node/n1", "timesyncd/v1/node/n1/state/x", "timesyncd/v1/job/n1/marks",
     "timesyncd/v1/node//state", "timesyncd/v1/node/<b>/state", "timesyncd/v1timesyncd/v1/node/n1/state"],
)  # fmt: skip
def test_a_foreign_topic_is_refused(topic: str) -> None:
    """Another prefix, another depth, another leaf, or a subject that is no name."""
    with pytest.raises(Malformed):
        locate(PREFIX, topic)


@pytest.mark.parametrize(
    "message", [node_state(), marks(1), grandmaster("n1", 1, 1), finding()], ids=lambda m: type(m).__name__
)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    """A message survives the wire unchanged."""
    channel = channel_of(type(message))

    assert decode(channel, subject_of(message, "n1"), encode(message)) == message


def test_an_unknown_key_is_ignored() -> None:
    """A newer writer may say more."""
    payload = json.dumps(node_state().model_dump() | {"new_in_v2": 1}).encode()

    assert decode(NODE_STATE, "n1", payload) == node_state()


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\xff\x00", "not a node_state message: payload"),
        (b"[]", "not a node_state message: payload"),
        (b"{}", "not a node_state message: node: Field required"),
        (b" " * (MAX_MESSAGE_BYTES + 1), "at most 1048576 are read"),
        (encode(node_state("n2")), "its node is not the topic's 'n1'"),
        (encode(node_state()).replace(b'"sequence":1', b'"sequence":-1'), "sequence"),
        (
            encode(node_state()).replace(b'"published_realtime_ns":1', b'"published_realtime_ns":1' + b"0" * 30),
            "less than",
        ),
    ],
)
def test_poison_is_refused(payload: bytes, says: str) -> None:
    """What is not this channel's message about this subject raises Malformed with the reason."""
    with pytest.raises(Malformed, match=says):
        decode(NODE_STATE, "n1", payload)


def test_poison_is_counted_and_told_once_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    """A topic is complained about once a connection, however much poison comes, and the next good message counts."""
    inbox = Inbox(PREFIX, "me")
    topic = NODE_STATE.topic(PREFIX, "n1")
    with caplog.at_level(logging.WARNING):
        poisoned = [inbox.take(topic, b"{", False, 0) for _ in range(3)]
    good = inbox.take(topic, encode(node_state()), False, 7)

    assert poisoned == [None] * 3
    assert inbox.rejected == 3
    assert len(caplog.records) == 1
    assert good is not None
    assert (good.subject, good.message, good.retained, good.received_boottime_ns) == ("n1", node_state(), False, 7)


def test_complaints_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Poison on ever new topics fills neither the log nor the memory."""
    inbox = Inbox(PREFIX, "me")
    with caplog.at_level(logging.WARNING):
        for number in range(2 * MAX_COMPLAINTS):
            inbox.take(f"other/{number}", b"x", False, 0)

    assert inbox.rejected == 2 * MAX_COMPLAINTS
    assert len(caplog.records) == MAX_COMPLAINTS


@pytest.mark.parametrize("message", [node_state("me"), marks(1, "me"), grandmaster("me", 1, 1), finding()])
def test_our_own_message_is_passed_over(message: Message) -> None:
    """A broker's copy of what we said ourselves is no news, and no poison."""
    channel = channel_of(type(message))
    inbox = Inbox(PREFIX, "me")

    assert inbox.take(channel.topic(PREFIX, subject_of(message, "me")), encode(message), True, 0) is None
    assert (inbox.rejected, inbox.outdated) == (0, 0)


def test_an_empty_message_clears() -> None:
    """A cleared retained topic is no poison and no message."""
    inbox = Inbox(PREFIX, "me")

    assert inbox.take(JOB_STATE.topic(PREFIX, "0123456789abcdef"), b"", False, 0) is None
    assert inbox.rejected == 0


def test_marks_are_not_retained() -> None:
    """A replayed mark would be joined to the wrong step."""
    assert not MARKS.retained
