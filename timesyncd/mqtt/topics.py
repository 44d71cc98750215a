"""
The topics: which message goes where, how, and back from a topic and its payload to the message. Pure.

Every topic is `<prefix>/<scope>/<subject>/<leaf>`, so a reader subscribes to one leaf of all subjects with one `+`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from timesyncd.config import Name, validation_text
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import CloudEvent, HistoryBatch, HubState, Stored
from timesyncd.messages.jobs import JobState, MarkBatch, PolicyRequest
from timesyncd.messages.node import (
    Availability,
    GrandmasterState,
    Message,
    NodeState,
    Ordered,
)

#: A longer message is not ours. The largest of ours is the state of a job with some 5 000 ranks.
MAX_MESSAGE_BYTES = 1_048_576
#: So much of what a sender calls something is repeated.
MAX_QUOTED_CHARS = 200

_NAME = TypeAdapter[str](Name)


@dataclass(frozen=True, slots=True)
class MqttChannel:
    """
    One kind of topic. `key` is the message's own field that the topic's subject must equal; None = the topic alone tells.
    `expiry_s` is how long a message is of use, waiting here or kept by the broker (MQTT 5); None = for ever. What is `addressed`
    is for its subject alone, and a newer one says all that those before it said.
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

    @property
    def address(self) -> str:
        """The topic below the prefix, with its subject as a parameter."""
        return f"{self.scope}/{{{self.scope}}}/{self.leaf}"

    def topic(self, prefix: str, subject: str) -> str:
        return f"{prefix}/{self.scope}/{subject}/{self.leaf}"

    def pattern(self, prefix: str, node: str) -> str:
        """What `node` subscribes to: this channel's topics of every subject, or its own."""
        return self.topic(prefix, node if self.addressed else "+")


#: What is retained goes so long after its publisher's last word: nobody clears the topics of a node that was taken away.
DAY_S = 86_400

AVAILABILITY = MqttChannel(
    "availability", "node", "availability", Availability,
    "Whether a node's daemon is connected; the broker says offline when the connection is lost.", None, qos=1,
    expiry_s=DAY_S,
)  # fmt: skip
NODE_STATE = MqttChannel(
    "node_state", "node", "state", NodeState,
    "How well a node's clock is known; at once when it changes, and repeated.", "node", expiry_s=DAY_S,
)  # fmt: skip
GRANDMASTER_STATE = MqttChannel(
    "grandmaster_state", "grandmaster", "state", GrandmasterState,
    "What a grandmaster says of itself, from the daemons that poll it.", "name", expiry_s=DAY_S,
)  # fmt: skip
JOB_STATE = MqttChannel(
    "job_state", "job", "state", JobState,
    "A job's two signals, its ranks and its barrier plan; an empty message when the job has ended.", "job_id",
    expiry_s=3_600,
)  # fmt: skip
EVENT = MqttChannel(
    "event", "node", "event", CloudEvent,
    "Something happened on a node, or a unit that it polls reported it: at once, to whoever listens now.",
    "node", qos=1, retained=False, content_type="application/cloudevents+json",
)  # fmt: skip
#: Expiry: it comes again after 30 s, and a hub that is slow shall not find all its copies at the broker.
HISTORY = MqttChannel(
    "history", "node", "history", HistoryBatch,
    "Roll-ups and events for the hubs to keep, in order, again and again until they say that they have stored them.",
    "node", qos=1, retained=False, expiry_s=60,
)  # fmt: skip
#: QoS 0: a hub says it to 10,000 nodes a minute, and what is lost is said again when the node sends its rows again.
STORED = MqttChannel(
    "stored", "node", "stored", Stored, "How much of a node's history a hub has stored, for that node.", "of",
    retained=False, expiry_s=60, addressed=True,
)  # fmt: skip
HUB_STATE = MqttChannel(
    "hub_state", "hub", "state", HubState, "A hub, and whether it is the one that speaks.", "node", expiry_s=DAY_S
)
#: Expiry: who asked gives up by then, and what comes later would surprise.
POLICY_REQUEST = MqttChannel(
    "policy_request", "node", "policy", PolicyRequest,
    "A user on a node wants the ranks of a job to synchronize otherwise; for the hub that speaks.", "node", qos=1,
    retained=False, expiry_s=10,
)  # fmt: skip
#: Expiry: a step of a job is closed after 10 s.
MARKS = MqttChannel(
    "mark_batch", "node", "marks", MarkBatch,
    "When the ranks on a node arrived at, began and ended each synchronization.", "node", retained=False, expiry_s=10,
)  # fmt: skip

#: In the order in which waiting messages go out.
CHANNELS = (
    AVAILABILITY, EVENT, NODE_STATE, GRANDMASTER_STATE, HUB_STATE, JOB_STATE, STORED, POLICY_REQUEST, HISTORY, MARKS,
)  # fmt: skip

#: Not availability: a daemon that is restarted is no clock that is lost, and who is silent is told by the states that do not come.
HUB_SUBSCRIPTIONS = (NODE_STATE, GRANDMASTER_STATE, HUB_STATE, JOB_STATE, POLICY_REQUEST, HISTORY, MARKS)
NODE_SUBSCRIPTIONS = (GRANDMASTER_STATE, HUB_STATE, JOB_STATE, STORED)

_BY_MESSAGE = {channel.message: channel for channel in CHANNELS}
_BY_TOPIC: dict[tuple[str, str], MqttChannel] = {(channel.scope, channel.leaf): channel for channel in CHANNELS}


def channel_of(message_type: type[Message]) -> MqttChannel:
    """The channel of a published message type; KeyError for any other."""
    return _BY_MESSAGE[message_type]


def subject_of(message: Message, node: str) -> str:
    """Of what the message speaks; `node` publishes it."""
    key = channel_of(type(message)).key
    return node if key is None else str(getattr(message, key))


def publisher_of(message: Message, subject: str) -> str:
    """The node that published the message about this subject."""
    return message.node if isinstance(message, Ordered) else subject


def parse_topic(prefix: str, topic: str) -> tuple[MqttChannel, str]:
    """The channel and the subject of a topic. Raises Malformed when it is none of ours."""
    parts = topic.removeprefix(f"{prefix}/").split("/")
    channel = _BY_TOPIC.get((parts[0], parts[2])) if len(parts) == 3 else None
    if channel is None or not topic.startswith(f"{prefix}/"):
        raise Malformed("no topic of ours")
    try:
        return channel, _NAME.validate_python(parts[1])
    except ValidationError as error:
        raise Malformed("its subject is not a name") from error


def encode(message: Message) -> bytes:
    return message.model_dump_json().encode()


def decode(channel: MqttChannel, subject: str, payload: bytes) -> Message:
    """Raises Malformed when the payload is not this channel's message about this subject."""
    if len(payload) > MAX_MESSAGE_BYTES:
        raise Malformed(f"{len(payload)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    try:
        message = channel.message.model_validate_json(payload)
    except ValidationError as error:
        raise Malformed(f"not a {channel.name} message: {validation_text(error, with_value=False)}") from error
    if channel.key is not None and getattr(message, channel.key) != subject:
        raise Malformed(f"its {channel.key} is not the topic's {subject!r}")
    return message
