"""What waits to be published, in bounded memory. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import Message
from timesyncd.mqtt.topics import CHANNELS, EVENT, HISTORY, MqttChannel, channel_of, subject_of

#: The size of the queue of each channel that queues.
MAX_QUEUED = 1_000


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

    It also stores the newest sent message of each retained topic, to repeat it on a new connection. A full queue drops
    its oldest message. `dropped` counts these and expired messages.
    """

    def __init__(self, node: str) -> None:
        self.dropped = 0
        self._node = node
        self._latest: dict[tuple[str, str], OutgoingMessage] = {}
        self._unsent: OrderedDict[tuple[str, str], None] = OrderedDict()
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
        if len(queue) > MAX_QUEUED:
            queue.popleft()
            self.dropped += 1

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
        queue = self._queues[outgoing.channel.name]
        if len(queue) < MAX_QUEUED:
            queue.appendleft(outgoing)
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
            return events.popleft()
        for key in self._unsent:
            if self._latest[key].qos <= max_qos:
                del self._unsent[key]
                return self._latest[key]
        for queue in self._queues.values():
            if queue and queue[0].qos <= max_qos:
                return queue.popleft()
        return None


def _newest_suffices(channel: MqttChannel) -> bool:
    """Whether the newest message of a subject makes the earlier ones useless."""
    return channel.retained or channel.addressed
