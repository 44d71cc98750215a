"""
Newest wins, by (node, incarnation, sequence): clocks step, counters do not. Pure; times are CLOCK_BOOTTIME.

What comes in: parsed, checked against its topic, newest only. A poisoned message is counted and costs nothing else.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.messages.fleet import HistoryBatch, Stored
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import Message, Ordered
from timesyncd.mqtt.topics import MAX_QUOTED_CHARS, MqttChannel, decode, parse_topic, publisher_of

#: An incarnation that was not heard of for so long may have ended. A lower one is then not its past, which no broker keeps for so
#: long, but a daemon whose clock was ahead before, or whose store was put back.
SILENT_AFTER_NS = 60 * NS_PER_S
#: A hub says less often what it has stored, and what is cut by an older word is gone.
HUB_SILENT_AFTER_NS = 300 * NS_PER_S
#: So the memory is bounded by who speaks.
EXPIRE_AFTER_NS = 3_600 * NS_PER_S
_SWEEP_EVERY_NS = 600 * NS_PER_S

#: Incarnation first, then what orders messages within it.
OrderKey = tuple[int, ...]


class Freshness(Enum):
    """ANEW: news of a lower incarnation, where the order begins anew."""

    OLD = auto()
    NEWS = auto()
    ANEW = auto()


@dataclass(slots=True)
class _LastMessage:
    stamp: OrderKey
    heard_ns: int


class NewestMessages:
    """What was last accepted, by channel and subject and, within these, by the node that published it."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], dict[str, _LastMessage]] = {}
        self._listening_since_ns = self._swept_ns = 0

    def judge(self, channel: str, subject: str, message: Message, retained: bool, now_ns: int) -> Freshness:
        """
        Whether this is news. An older message is not, nor is a second copy; but the live message is news after its own
        retained copy, which was only last known. A lower incarnation is old as long as the higher one is heard of.

        Rows of history are numbered by themselves and outlive their incarnation: whatever is sent again is for the store to judge.
        What a hub has stored may be said twice, but what it said earlier may be of a store that is no more. What has no order is
        always news.
        """
        self._sweep(now_ns)
        key = channel, subject
        match message:
            case HistoryBatch():
                return Freshness.NEWS
            case Stored():
                stamp: OrderKey = (message.incarnation, message.sequence)
                return self._advance(key, message.node, _LastMessage(stamp, now_ns), HUB_SILENT_AFTER_NS, again=True)
            case Ordered():
                stamp = (message.incarnation, message.sequence, int(not retained))
                return self._advance(key, message.node, _LastMessage(stamp, now_ns), SILENT_AFTER_NS, again=False)
            case _:
                return Freshness.NEWS

    def forget(self, channel: str, subject: str) -> None:
        """The subject is gone: what comes next of it begins anew."""
        self._last.pop((channel, subject), None)

    def listening_since(self, now_ns: int) -> None:
        """Before, nobody could be heard: that was no silence."""
        self._listening_since_ns = now_ns

    def _advance(
        self, key: tuple[str, str], node: str, said: _LastMessage, silent_after_ns: int, again: bool
    ) -> Freshness:
        by_node = self._last.setdefault(key, {})
        last = by_node.get(node)
        news = Freshness.NEWS
        if last is not None and said.stamp[0] < last.stamp[0]:
            silent_ns = said.heard_ns - max(last.heard_ns, self._listening_since_ns)
            news = Freshness.ANEW if silent_ns >= silent_after_ns else Freshness.OLD
        elif last is not None and (said.stamp < last.stamp or (said.stamp == last.stamp and not again)):
            news = Freshness.OLD
            last.heard_ns = said.heard_ns
        if news is not Freshness.OLD:
            by_node[node] = said
        return news

    def _sweep(self, now_ns: int) -> None:
        """Now and then forget who has long been silent."""
        if now_ns - self._swept_ns < _SWEEP_EVERY_NS:
            return
        self._swept_ns = now_ns
        for key, by_node in list(self._last.items()):
            for node in [node for node, last in by_node.items() if now_ns - last.heard_ns >= EXPIRE_AFTER_NS]:
                del by_node[node]
            if not by_node:
                del self._last[key]


log = logging.getLogger(__name__)

MAX_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """
    A message from another daemon. `subject` is the node, grandmaster or job of its topic.

    `retained`: the broker's copy of what was last known, of any age; only a live message says how it is now. `size` is its bytes.
    """

    channel: MqttChannel
    subject: str
    message: Message
    retained: bool
    received_boottime_ns: int
    size: int


class Inbox:
    """
    `rejected` counts messages that no timesyncd wrote, `outdated` those that were older than one already taken.

    What `node` itself published is passed over: its daemon knows better than a broker's old copy. But of a job it says what was
    planned before this start.
    """

    def __init__(self, prefix: str, node: str) -> None:
        self.rejected = 0
        self.outdated = 0
        self._prefix = prefix
        self._node = node
        self._newest = NewestMessages()
        self._complained: set[str] = set()

    def take(self, topic: str, payload: bytes, retained: bool, now_ns: int) -> ReceivedMessage | None:
        """None when there is nothing to pass on."""
        try:
            channel, subject = parse_topic(self._prefix, topic)
            if not payload:
                self._newest.forget(channel.name, subject)
                return None
            message = decode(channel, subject, payload)
        except Malformed as error:
            self._reject(topic, error)
            return None
        publisher = publisher_of(message, subject)
        if publisher == self._node and not isinstance(message, JobState):
            return None
        match self._newest.judge(channel.name, subject, message, retained, now_ns):
            case Freshness.OLD:
                self.outdated += 1
                return None
            case Freshness.ANEW:
                self._complain(publisher, f"{publisher} counts from below now: its clock or its store was put back")
        return ReceivedMessage(channel, subject, message, retained, now_ns, len(payload))

    def reconnected(self, now_ns: int) -> None:
        """Let each topic be complained about once again. Who was not heard of while we were away was not silent."""
        self._complained.clear()
        self._newest.listening_since(now_ns)

    def _reject(self, topic: str, error: Malformed) -> None:
        self.rejected += 1
        self._complain(topic, f"ignored a message on {ascii(topic)[1:-1][:MAX_QUOTED_CHARS]}: {error}")

    def _complain(self, about: str, words: str) -> None:
        if about not in self._complained and len(self._complained) < MAX_WARNINGS:
            self._complained.add(about)
            log.warning("mqtt: %s", words)
