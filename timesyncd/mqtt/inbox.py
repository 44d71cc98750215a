"""
Received messages: parsed, checked against their topic, and only those newer than the last. Pure; times are
CLOCK_BOOTTIME.

The order of messages is (node, incarnation, sequence), because clocks step and counters do not. An invalid message is
counted, logged once per topic, and has no other effect.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.ipc.wire_types import MAX_AGE_NS
from timesyncd.messages.fleet import HistoryBatch, Stored
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import Message, NodeState, Ordered, RepeatedState
from timesyncd.mqtt.topics import (
    MAX_MESSAGE_BYTES,
    MAX_QUOTED_CHARS,
    NODE_STATE,
    MqttChannel,
    decode,
    parse_topic,
    publisher_of,
)

log = logging.getLogger(__name__)

#: The most log lines about invalid messages per connection.
MAX_WARNINGS = 100
#: After this time without a message an incarnation may have ended. A lower one is then a daemon whose clock was ahead
#: before, or whose store was restored, and no old message: no broker delays one for so long.
SILENT_AFTER_NS = 60 * NS_PER_S
#: Longer for a hub's confirmations: they are rarer, and rows that an old one confirms are deleted for good.
HUB_SILENT_AFTER_NS = 300 * NS_PER_S
#: A node is forgotten after this time, so that memory is bounded by the nodes that publish.
EXPIRE_AFTER_NS = 3_600 * NS_PER_S
_SWEEP_EVERY_NS = 10 * NS_PER_S
#: More subjects than this are a flood: then, and until two minutes later, those without a message for a minute are forgotten.
FEW_ORDERS = 10_000
#: A client that may write every topic can invent subjects: of so many the order is known, and of so many bytes of states
#: the last one is compared. The one without a message for longest is forgotten first; twice 25,000 nodes and their jobs fit.
MAX_ORDERS = 60_000
MAX_COMPARED_BYTES = 48 * 1_048_576

#: The channel, the subject and the publishing node.
_Key = tuple[str, str, str]

#: The incarnation, then what orders messages within it.
OrderKey = tuple[int, ...]


class Freshness(Enum):
    """RESTARTED: newer although the incarnation is lower, since the node's order began again."""

    OUTDATED = auto()
    NEWER = auto()
    RESTARTED = auto()


class _LiveState(NamedTuple):
    """A node's last live state as it was received, what it begins with, and where the rest begins."""

    payload: bytes
    head: RepeatedState
    rest_at: int


@dataclass(slots=True)
class _LastMessage:
    """`live_state`: what the next state of a node is compared with; None: it is decoded."""

    order: OrderKey
    received_ns: int
    live_state: _LiveState | None = None


#: How `encode` begins a node's state. JSON may be written otherwise; then it is decoded.
_HEAD = re.compile(
    rb'\{"node":"([A-Za-z0-9._-]+)","incarnation":(0|[1-9]\d{0,18}),"sequence":(0|[1-9]\d{0,18}),'
    rb'"published_realtime_ns":(0|[1-9]\d{0,18}),"age_ns":(0|[1-9]\d{0,18}|null),'
)


def _head_of(payload: bytes) -> tuple[RepeatedState, int] | None:
    """The numbers that differ from state to state, within their limits, and where the rest begins."""
    found = _HEAD.match(payload)
    if found is None:
        return None
    node, incarnation, sequence, published, age = found.groups()
    age_ns = None if age == b"null" else int(age)
    head = RepeatedState(node.decode(), int(incarnation), int(sequence), int(published), age_ns)
    is_within = head.incarnation < 2**63 and head.sequence < 2**63
    is_within = is_within and head.published_realtime_ns <= MAX_AGE_NS and (age_ns or 0) <= MAX_AGE_NS
    return (head, found.end()) if is_within else None


class NewestMessages:
    """
    The order of the last accepted message, by channel, subject and publishing node. Bounded: of a subject that was forgotten
    any message counts as new.
    """

    def __init__(self, most: int = MAX_ORDERS, most_bytes: int = MAX_COMPARED_BYTES) -> None:
        self._last: dict[tuple[str, str], dict[str, _LastMessage]] = {}
        self._by_age: OrderedDict[_Key, None] = OrderedDict()
        self._compared: OrderedDict[_Key, int] = OrderedDict()
        self._compared_bytes = 0
        self._most = most
        self._most_bytes = most_bytes
        self._connected_ns = self._swept_ns = self._flooded_until_ns = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def classify(self, channel: str, subject: str, message: Message, retained: bool, now_ns: int) -> Freshness:
        """
        Whether the message is newer than the last accepted one. An older message and a second copy are outdated, but a
        live message is newer than its own retained copy. A lower incarnation is outdated while messages of the higher
        one arrive.

        A batch of history is never outdated: its rows have numbers of their own, and the store ignores a second copy. A
        hub may repeat a confirmation, but an older one may come from a store that no longer exists. A message without
        an order is never outdated.
        """
        self.sweep(now_ns)
        key = channel, subject
        match message:
            case HistoryBatch():
                return Freshness.NEWER
            case Stored():
                order: OrderKey = (message.incarnation, message.sequence)
                return self._advance(
                    key, message.node, _LastMessage(order, now_ns), HUB_SILENT_AFTER_NS, allow_repeat=True
                )
            case Ordered():
                order = (message.incarnation, message.sequence, int(not retained))
                return self._advance(
                    key, message.node, _LastMessage(order, now_ns), SILENT_AFTER_NS, allow_repeat=False
                )
            case _:
                return Freshness.NEWER

    def repeated(self, channel: str, node: str, payload: bytes, now_ns: int) -> RepeatedState | None:
        """
        The state of a node in short, where it is newer than the last live one and the rest is equal, octet by octet;
        None: it has to be decoded.
        """
        last = self._last.get((channel, node), {}).get(node)
        begin = _head_of(payload) if last is not None and last.live_state is not None else None
        if last is None or last.live_state is None or begin is None:
            return None
        (head, rest_at), (former, before, former_at) = begin, last.live_state
        order = (head.incarnation, head.sequence, 1)
        is_next = head.node == node and head.incarnation == before.incarnation and order > last.order
        same_age = (head.age_ns is None) == (before.age_ns is None)
        if not is_next or not same_age or payload[rest_at:] != former[former_at:]:
            return None
        last.order, last.received_ns = order, now_ns
        self._by_age.move_to_end((channel, node, node))
        self._compare((channel, node, node), last, _LiveState(payload, head, rest_at))
        return head

    def keep(self, channel: str, state: NodeState, payload: bytes) -> None:
        """An accepted live state, for the comparison with the next one."""
        last, begin = self._last.get((channel, state.node), {}).get(state.node), _head_of(payload)
        # The head counts only where JSON's last word on these keys is the head's.
        if last is not None and begin is not None and begin[0] == RepeatedState.of(state):
            self._compare((channel, state.node, state.node), last, _LiveState(payload, *begin))

    def _compare(self, key: _Key, last: _LastMessage, state: _LiveState) -> None:
        """From now on with this state; where that takes too much memory, those of the oldest are decoded instead."""
        last.live_state = state
        self._compared_bytes += len(state.payload) - self._compared.pop(key, 0)
        self._compared[key] = len(state.payload)
        while self._compared_bytes > self._most_bytes:
            (channel, subject, node), size = self._compared.popitem(last=False)
            self._compared_bytes -= size
            self._last[channel, subject][node].live_state = None

    def forget(self, channel: str, subject: str) -> None:
        """Forgets a subject that was cleared: its next message starts a new order."""
        for node in list(self._last.get((channel, subject), ())):
            self._remove((channel, subject, node))

    def _remove(self, key: _Key) -> None:
        channel, subject, node = key
        by_node = self._last[channel, subject]
        del by_node[node], self._by_age[key]
        self._compared_bytes -= self._compared.pop(key, 0)
        if not by_node:
            del self._last[channel, subject]

    def connected(self, now_ns: int) -> None:
        """Silence counts from here: without a connection no message could arrive."""
        self._connected_ns = now_ns

    def _advance(
        self, key: tuple[str, str], node: str, message: _LastMessage, silent_after_ns: int, allow_repeat: bool
    ) -> Freshness:
        by_node = self._last.setdefault(key, {})
        last = by_node.get(node)
        freshness = Freshness.NEWER
        if last is not None and message.order[0] < last.order[0]:
            silent_ns = message.received_ns - max(last.received_ns, self._connected_ns)
            freshness = Freshness.RESTARTED if silent_ns >= silent_after_ns else Freshness.OUTDATED
        elif last is not None and (message.order < last.order or (message.order == last.order and not allow_repeat)):
            freshness = Freshness.OUTDATED
            last.received_ns = message.received_ns
        if freshness is not Freshness.OUTDATED:
            # It is compared with the next one when it is decoded.
            self._compared_bytes -= self._compared.pop((*key, node), 0)
            by_node[node] = message
        self._by_age[*key, node] = None
        self._by_age.move_to_end((*key, node))
        if len(self._by_age) > self._most:
            self._remove(next(iter(self._by_age)))
        return freshness

    def sweep(self, now_ns: int) -> None:
        """
        Removes nodes without a message for EXPIRE_AFTER_NS, and after a flood for SILENT_AFTER_NS. To be called also
        while no message comes.
        """
        if now_ns - self._swept_ns < _SWEEP_EVERY_NS:
            return
        self._swept_ns = now_ns
        if len(self._by_age) > FEW_ORDERS:
            self._flooded_until_ns = now_ns + 2 * SILENT_AFTER_NS
        expires_ns = SILENT_AFTER_NS if now_ns < self._flooded_until_ns else EXPIRE_AFTER_NS
        before = len(self)
        while self._by_age:
            channel, subject, node = key = next(iter(self._by_age))
            silent_ns = now_ns - self._last[channel, subject][node].received_ns
            if silent_ns < expires_ns:
                break
            self._remove(key)
        if len(self) < before // 2:  # a dict keeps the room of its most entries
            self._last, self._by_age, self._compared = (
                dict(self._last),
                OrderedDict(self._by_age),
                OrderedDict(self._compared),
            )


class OtherState(NamedTuple):
    """The state of a node of another hub's share, which was not decoded."""

    node: str


def decode_all(_channel: str, _subject: str, _payload: bytes) -> bool:
    """Wants every message: no other hub has a share."""
    return True


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """
    A valid message of another daemon, as it was received in `payload`. `subject` is the node, grandmaster, job or hub
    of its topic.

    `retained`: it is the broker's copy of the last known state, of any age; only a live message describes the present.
    """

    channel: MqttChannel
    subject: str
    message: Message | RepeatedState | OtherState
    retained: bool
    received_boottime_ns: int
    payload: bytes


class Inbox:
    """
    Parses and filters received messages. `rejected` counts invalid messages, `outdated` those older than an accepted
    one.

    It ignores messages of this daemon's own `node`, except job states: they contain the plans from before this start.
    With `compares_states` a live state of a node that repeats its last one is a RepeatedState, and is not decoded.
    `wants`: which messages are decoded, by channel, subject and payload. Of the others a node's state is an OtherState,
    and the rest is ignored.
    """

    def __init__(
        self,
        prefix: str,
        node: str,
        compares_states: bool = False,
        wants: Callable[[str, str, bytes], bool] = decode_all,
    ) -> None:
        self._wants = wants
        self.rejected = 0
        self.outdated = 0
        self._prefix = prefix
        self._node = node
        self._compares_states = compares_states
        self._newest = NewestMessages()
        self._warned: set[str] = set()

    def receive(self, topic: str, payload: bytes, retained: bool, now_ns: int) -> ReceivedMessage | None:
        """The parsed message; None if it is invalid, outdated, empty or our own."""
        try:
            channel, subject = parse_topic(self._prefix, topic)
            if not payload:
                self._newest.forget(channel.name, subject)
                return None
            if len(payload) <= MAX_MESSAGE_BYTES and not self._wants(channel.name, subject, payload):
                return self._other(channel, subject, payload, retained, now_ns)
            if self._compares_states and channel is NODE_STATE and not retained and subject != self._node:
                repeated = self._newest.repeated(channel.name, subject, payload, now_ns)
                if repeated is not None:
                    return ReceivedMessage(channel, subject, repeated, retained, now_ns, payload)
            message = decode(channel, subject, payload)
        except Malformed as error:
            self._reject(topic, error)
            return None
        publisher = publisher_of(message, subject)
        if publisher == self._node and not isinstance(message, JobState):
            return None
        match self._newest.classify(channel.name, subject, message, retained, now_ns):
            case Freshness.OUTDATED:
                self.outdated += 1
                return None
            case Freshness.RESTARTED:
                self._warn_once(
                    publisher, f"{publisher} restarted with a lower incarnation: its clock or its store was set back"
                )
        if self._compares_states and isinstance(message, NodeState) and not retained:
            self._newest.keep(channel.name, message, payload)
        return ReceivedMessage(channel, subject, message, retained, now_ns, payload)

    def _other(
        self, channel: MqttChannel, subject: str, payload: bytes, retained: bool, now_ns: int
    ) -> ReceivedMessage | None:
        if channel is not NODE_STATE or subject == self._node:
            return None
        return ReceivedMessage(channel, subject, OtherState(subject), retained, now_ns, payload)

    def sweep(self, now_ns: int) -> None:
        """Forgets silent nodes; to be called every few seconds, since after a flood no message may come any more."""
        self._newest.sweep(now_ns)

    def reconnected(self, now_ns: int) -> None:
        """Allows one warning per topic again, and does not count the time without a connection as silence."""
        self._warned.clear()
        self._newest.connected(now_ns)

    def _reject(self, topic: str, error: Malformed) -> None:
        self.rejected += 1
        self._warn_once(topic, f"rejected a message on {ascii(topic)[1:-1][:MAX_QUOTED_CHARS]}: {error}")

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(about)
            log.warning("mqtt: %s", text)
