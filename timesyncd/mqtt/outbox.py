"""What waits to be published, in bounded memory. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import HistoryBatch
from timesyncd.messages.jobs import MarkBatch
from timesyncd.messages.node import Message
from timesyncd.mqtt.topics import CHANNELS, EVENT, HISTORY, MqttChannel, channel_of, subject_of

#: The size of the queue of each channel that queues, in messages and in bytes.
MAX_QUEUED = 1_000
MAX_QUEUED_BYTES = 16 * 2**20
#: What a message takes in memory, about: without its marks or rows, and for each of them.
_MESSAGE_BYTES, _MARK_BYTES, _ROW_BYTES = 4_096, 512, 2_048


def weight_of(message: Message | None) -> int:
    """An estimate of its memory in bytes, which serializes nothing."""
    match message:
        case MarkBatch():
            return _MESSAGE_BYTES + _MARK_BYTES * len(message.marks)
        case HistoryBatch():
            return _MESSAGE_BYTES + _ROW_BYTES * len(message.rows)
        case _:
            return _MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send, queued at `queued_ns` (CLOCK_BOOTTIME). The message None clears the retained topic."""

    channel: MqttChannel
    subject: str
    message: Message | None
    queued_ns: int

    @property
    def key(self) -> tuple[str, str]:
        return self.channel.name, self.subject

    @property
    def qos(self) -> int:
        """A cleared topic is not repeated, so it is cleared at QoS 1."""
        return 1 if self.message is None else self.channel.qos

    def remaining_s(self, now_ns: int) -> int | None:
        """Seconds until the message expires; None: never."""
        if self.channel.expiry_s is None or self.message is None:
            return None
        return self.channel.expiry_s - (now_ns - self.queued_ns) // NS_PER_S


class Outbox:
    """
    The messages to send: of a retained or addressed channel the newest per subject, of every other channel a queue.

    It also stores the newest sent message of each retained topic, to repeat it on a new connection. A queue that has too
    many messages, or too many bytes, drops its oldest ones. `dropped` counts these and expired messages.
    """

    def __init__(self, node: str) -> None:
        self.dropped = 0
        self._node = node
        self._latest: dict[tuple[str, str], OutgoingMessage] = {}
        self._unsent: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._queued_bytes = {channel.name: 0 for channel in CHANNELS}
        self._queues = {channel.name: deque[OutgoingMessage]() for channel in CHANNELS if not _newest_suffices(channel)}

    def __len__(self) -> int:
        """The number of unsent messages."""
        return len(self._unsent) + sum(len(queue) for queue in self._queues.values())

    @property
    def is_urgent(self) -> bool:
        """Whether an event is queued: events are sent without delay."""
        return bool(self._queues[EVENT.name])

    def put(self, message: Message, now_ns: int) -> None:
        channel = channel_of(type(message))
        outgoing = OutgoingMessage(channel, subject_of(message, self._node), message, now_ns)
        if _newest_suffices(channel):
            self._store(outgoing)
            return
        queue = self._queues[channel.name]
        queue.append(outgoing)
        self._queued_bytes[channel.name] += weight_of(message)
        while self._is_over(queue, channel.name, now_ns):
            self._pop_left(queue)
            self.dropped += channel is not HISTORY

    def clear(self, channel: MqttChannel, subject: str) -> None:
        self._store(OutgoingMessage(channel, subject, None, queued_ns=0))

    def forget(self, channel: MqttChannel, subject: str) -> None:
        """Removes the message of this subject: another daemon publishes it from now on. The broker's copy stays."""
        self._latest.pop((channel.name, subject), None)
        self._unsent.pop((channel.name, subject), None)

    def next(self, now_ns: int, max_qos: int = 1) -> OutgoingMessage | None:
        """
        Removes and returns the next message of at most this QoS: events first, then newest states, then the other
        queues in the order of CHANNELS.
        """
        while outgoing := self._pop(max_qos):
            remaining_s = outgoing.remaining_s(now_ns)
            if remaining_s is None or remaining_s > 0:
                return outgoing
            if _newest_suffices(outgoing.channel):
                self.forget(outgoing.channel, outgoing.subject)
            # An expired batch of history is not lost: its rows are still in the store.
            self.dropped += outgoing.channel is not HISTORY
        return None

    def mark_sent(self, outgoing: OutgoingMessage) -> None:
        """Removes a sent message that is not repeated, unless a newer one replaced it meanwhile."""
        is_over = outgoing.message is None or not outgoing.channel.retained
        if is_over and self._latest.get(outgoing.key) is outgoing:
            del self._latest[outgoing.key]

    def requeue(self, outgoing: OutgoingMessage) -> None:
        """
        Returns a message that the broker may not have received to the front of its queue; `requeue_all` repeats a
        newest state.
        """
        if _newest_suffices(outgoing.channel):
            return
        name, weight = outgoing.channel.name, weight_of(outgoing.message)
        queue = self._queues[name]
        if len(queue) < MAX_QUEUED and self._queued_bytes[name] + weight <= MAX_QUEUED_BYTES:
            queue.appendleft(outgoing)
            self._queued_bytes[name] += weight
        else:
            self.dropped += 1

    def requeue_all(self) -> None:
        """Sends every retained topic again: the broker of a new connection may have lost them."""
        self._unsent = OrderedDict.fromkeys(self._latest)

    def _store(self, outgoing: OutgoingMessage) -> None:
        self._latest[outgoing.key] = outgoing
        self._unsent[outgoing.key] = None

    def _pop(self, max_qos: int) -> OutgoingMessage | None:
        events = self._queues[EVENT.name]
        if events and events[0].qos <= max_qos:
            return self._pop_left(events)
        for key in self._unsent:
            if self._latest[key].qos <= max_qos:
                del self._unsent[key]
                return self._latest[key]
        for queue in self._queues.values():
            if queue and queue[0].qos <= max_qos:
                return self._pop_left(queue)
        return None

    def _is_over(self, queue: deque[OutgoingMessage], name: str, now_ns: int) -> bool:
        """Whether the queue's oldest message must go: there are too many, or it expired."""
        if len(queue) > MAX_QUEUED or (self._queued_bytes[name] > MAX_QUEUED_BYTES and len(queue) > 1):
            return True
        remaining_s = queue[0].remaining_s(now_ns) if queue else None
        return remaining_s is not None and remaining_s <= 0

    def _pop_left(self, queue: deque[OutgoingMessage]) -> OutgoingMessage:
        outgoing = queue.popleft()
        self._queued_bytes[outgoing.channel.name] -= weight_of(outgoing.message)
        return outgoing


def _newest_suffices(channel: MqttChannel) -> bool:
    """Whether the newest message of a subject makes the earlier ones useless."""
    return channel.retained or channel.addressed
