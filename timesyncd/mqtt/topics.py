"""
The MQTT topics: the channel of each message type, and the conversion of messages to topic and payload and back. Pure.

Every topic is `<prefix>/<scope>/<subject>/<leaf>`, so one `+` subscribes to a leaf of every subject. Marks have the part of
their job behind it, so that a hub subscribes to those of its own jobs alone. docs/signals-mqtt.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from timesyncd.config import Name, validation_text
from timesyncd.errors import Malformed
from timesyncd.ipc.job_datagram import JOB_PARTS, job_id, job_part
from timesyncd.messages.decoding import FastDecoder
from timesyncd.messages.fleet import CloudEvent, FleetShare, HistoryBatch, HubState, StateRequest, Stored
from timesyncd.messages.jobs import JobState, MarkBatch, PolicyRequest
from timesyncd.messages.node import (
    Availability,
    GrandmasterState,
    Message,
    NodeState,
    Ordered,
)
from timesyncd.messages.notes import OperatorNote

#: A longer message is rejected. The largest valid one is the state of a job with about 5 000 ranks.
MAX_MESSAGE_BYTES = 1_048_576
#: The most characters of a received name that a log line or error quotes.
MAX_QUOTED_CHARS = 200

_NAME = TypeAdapter[str](Name)


@dataclass(frozen=True, slots=True)
class MqttChannel:
    """
    One kind of topic. `key` is the field of the message that must equal the topic's subject; None: no field has it.
    `expiry_s` is how long a message is valid in the outbox and in the broker (MQTT 5); None: for ever. An `addressed`
    message is for its subject alone, and the newest one replaces those before it. `has_parts`: the topic ends with the part
    of the message's job (ipc.job_datagram).
    """

    name: str
    scope: Literal["node", "grandmaster", "job", "hub"]
    leaf: str
    message: type[Message]
    summary: str
    key: str | None
    qos: Literal[0, 1] = 0
    retained: bool = True
    expiry_s: int | None = None
    addressed: bool = False
    content_type: str | None = None
    has_parts: bool = False

    @property
    def address(self) -> str:
        """The topic below the prefix, with its subject as a parameter."""
        return f"{self.scope}/{{{self.scope}}}/{self.leaf}" + ("/{part}" if self.has_parts else "")

    def topic(self, prefix: str, subject: str, part: str = "") -> str:
        """`part`: of the message's job, for a channel that has parts."""
        return f"{prefix}/{self.scope}/{subject}/{self.leaf}" + (f"/{part}" if self.has_parts else "")

    def pattern(self, prefix: str, node: str) -> str:
        """The subscription of `node`: this channel's topics of every subject, or, if addressed, its own alone."""
        return self.topic(prefix, node if self.addressed else "+", part="+")

    def selected(self, prefix: str, what: str) -> str:
        """The subscription to one part of every subject, or, for a channel without parts, to one subject."""
        return self.topic(prefix, "+", what) if self.has_parts else self.topic(prefix, what)


#: Retained messages expire a day after their last publication, since no daemon clears the topics of a node that was
#: removed.
DAY_S = 86_400

AVAILABILITY = MqttChannel(
    "availability",
    "node",
    "availability",
    Availability,
    "Whether a node's daemon is connected; the broker publishes offline when the connection is lost.",
    None,
    qos=1,
    expiry_s=DAY_S,
)
NODE_STATE = MqttChannel(
    "node_state",
    "node",
    "state",
    NodeState,
    "A node's clock: status, bounds and sources; at once when it changes, and repeated.",
    "node",
    expiry_s=DAY_S,
)
GRANDMASTER_STATE = MqttChannel(
    "grandmaster_state",
    "grandmaster",
    "state",
    GrandmasterState,
    "A grandmaster's state, from each daemon that polls it.",
    "name",
    expiry_s=DAY_S,
)
JOB_STATE = MqttChannel(
    "job_state",
    "job",
    "state",
    JobState,
    "A job's two signals, its ranks and its barrier plan; an empty message when the job ends.",
    "job_id",
    expiry_s=3_600,
)
EVENT = MqttChannel(
    "event",
    "node",
    "event",
    CloudEvent,
    "An event on a node or of a grandmaster that it polls; at once, to current subscribers.",
    "node",
    qos=1,
    retained=False,
    content_type="application/cloudevents+json",
)
NOTE = MqttChannel(
    "operator_note",
    "node",
    "note",
    OperatorNote,
    "What an operator wrote at this node's daemon: a comment, a deploy, an acknowledgement or a silence; for the hubs.",
    "node",
    qos=1,
    retained=False,
    expiry_s=3_600,
)
#: Expiry: the node sends it again after 30 s, and a slow hub must not find every copy at the broker.
HISTORY = MqttChannel(
    "history",
    "node",
    "history",
    HistoryBatch,
    "Roll-ups and events for the hubs to store, in order, repeated until the hubs confirm them.",
    "node",
    qos=1,
    retained=False,
    expiry_s=60,
)
#: QoS 0: a hub sends it to 10,000 nodes a minute, and repeats a lost one when the node repeats its rows.
STORED = MqttChannel(
    "stored",
    "node",
    "stored",
    Stored,
    "How much of a node's history a hub has stored; for that node.",
    "of",
    retained=False,
    expiry_s=60,
    addressed=True,
)
HUB_STATE = MqttChannel(
    "hub_state", "hub", "state", HubState, "A hub, and whether it is the primary one.", "node", expiry_s=DAY_S
)
#: Expiry: a share that is older counts as missing.
HUB_SHARE = MqttChannel(
    "hub_share",
    "hub",
    "share",
    FleetShare,
    "What a hub counts of its share, where hubs share the fleet; for the other hubs.",
    "node",
    retained=False,
    expiry_s=5,
)
#: Expiry: the command that sent it gives up by then, and a later change of policy would be unexpected.
POLICY_REQUEST = MqttChannel(
    "policy_request",
    "node",
    "policy",
    PolicyRequest,
    "A request by a user on a node to change a job's synchronization policy; for the primary hub.",
    "node",
    qos=1,
    retained=False,
    expiry_s=10,
)
#: Expiry: the hub closes a step after 10 s.
MARKS = MqttChannel(
    "mark_batch",
    "node",
    "marks",
    MarkBatch,
    "The arrival, begin and end of each synchronization of the ranks on a node; for the hubs.",
    "node",
    retained=False,
    expiry_s=10,
    has_parts=True,
)
#: Expiry: the periodic states come about then.
STATE_REQUEST = MqttChannel(
    "state_request",
    "hub",
    "request",
    StateRequest,
    "A hub for which the broker kept no states asks every daemon to publish its own again.",
    "node",
    qos=1,
    retained=False,
    expiry_s=5,
)

#: In the order in which queued messages are sent.
CHANNELS = (
    AVAILABILITY,
    EVENT,
    NOTE,
    NODE_STATE,
    GRANDMASTER_STATE,
    HUB_STATE,
    HUB_SHARE,
    STATE_REQUEST,
    JOB_STATE,
    STORED,
    POLICY_REQUEST,
    HISTORY,
    MARKS,
)

#: Without availability: a node counts as silent after missed states, so restarting a daemon does not count as a lost
#: clock.
HUB_SUBSCRIPTIONS = (
    NODE_STATE,
    GRANDMASTER_STATE,
    HUB_STATE,
    STATE_REQUEST,
    JOB_STATE,
    POLICY_REQUEST,
    NOTE,
    HISTORY,
    MARKS,
)
#: Besides, where hubs share the fleet.
SHARED_SUBSCRIPTIONS = (HUB_SHARE,)
NODE_SUBSCRIPTIONS = (GRANDMASTER_STATE, HUB_STATE, STATE_REQUEST, JOB_STATE, STORED)


def subscriptions(is_hub: bool, shares: bool, has_store: bool) -> list[MqttChannel]:
    """
    What a daemon subscribes to from the start. A node selects the states of the jobs with ranks on it, and a hub that shares
    selects the marks of its own jobs: a fleet of N nodes would send each of them N messages a second that it does not need.
    """
    wanted = dict.fromkeys([*NODE_SUBSCRIPTIONS, *(HUB_SUBSCRIPTIONS if is_hub else ())])
    wanted |= dict.fromkeys(SHARED_SUBSCRIPTIONS if shares else ())
    left_out = {(JOB_STATE, not is_hub), (MARKS, shares), (HISTORY, not has_store)}
    return [channel for channel in wanted if (channel, True) not in left_out]


#: The messages that come by thousands.
_FAST_DECODED = (NodeState, MarkBatch, JobState, HubState)


@cache
def _decoder(message_type: type[Message]) -> Callable[[bytes], Message]:
    return FastDecoder(message_type).decode if message_type in _FAST_DECODED else message_type.model_validate_json


_PARTS = frozenset(JOB_PARTS)
_BY_MESSAGE = {channel.message: channel for channel in CHANNELS}
_BY_TOPIC: dict[tuple[str, str], MqttChannel] = {(channel.scope, channel.leaf): channel for channel in CHANNELS}


def channel_of(message_type: type[Message]) -> MqttChannel:
    """The channel of a published message type; KeyError for any other."""
    return _BY_MESSAGE[message_type]


def subject_of(message: Message, node: str) -> str:
    """The subject of a message that `node` publishes."""
    key = channel_of(type(message)).key
    return node if key is None else str(getattr(message, key))


def publisher_of(message: Message, subject: str) -> str:
    """The node that published the message about this subject."""
    return message.node if isinstance(message, Ordered) else subject


def topic_of(message: Message, prefix: str, subject: str) -> str:
    """The topic of a message about this subject."""
    part = job_part(job_id(message.uid, message.job, message.attempt)) if isinstance(message, MarkBatch) else ""
    return channel_of(type(message)).topic(prefix, subject, part)


def parse_topic(prefix: str, topic: str) -> tuple[MqttChannel, str]:
    """The channel and the subject of a topic. Raises Malformed for a topic of no channel."""
    levels = topic.removeprefix(f"{prefix}/").split("/")
    channel = _BY_TOPIC.get((levels[0], levels[2])) if len(levels) >= 3 else None
    if channel is None or not topic.startswith(f"{prefix}/") or not _ends_as(channel, levels[3:]):
        raise Malformed("unknown topic")
    try:
        return channel, _NAME.validate_python(levels[1])
    except ValidationError as error:
        raise Malformed("the topic's subject is not a valid name") from error


def _ends_as(channel: MqttChannel, rest: list[str]) -> bool:
    """Whether these levels may come after the leaf of this channel's topics."""
    return len(rest) == 1 and rest[0] in _PARTS if channel.has_parts else not rest


def encode(message: Message) -> bytes:
    return message.model_dump_json().encode()


def decode(channel: MqttChannel, subject: str, payload: bytes) -> Message:
    """The message in a payload. Raises Malformed if it is not a valid message of this channel about this subject."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise Malformed(f"{len(payload)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        message = _decoder(channel.message)(payload)
    except ValidationError as error:
        raise Malformed(f"not a {channel.name} message: {validation_text(error, with_value=False)}") from error
    if channel.key is not None and getattr(message, channel.key) != subject:
        raise Malformed(f"{channel.key} differs from the topic's subject {subject!r}")
    return message
