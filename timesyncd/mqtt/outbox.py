"""What waits to be published, in bounded memory. Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.node import Message
from timesyncd.mqtt.topics import CHANNELS, EVENT, HISTORY, MqttChannel, channel_of, subject_of

#: Of each kind that queues.
MAX_QUEUED = 1_000


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message on its way, which came at `put_ns` (CLOCK_BOOTTIME); None clears the retained topic."""

    channel: MqttChannel
    subject: str
    message: Message | None
    put_ns: int

    @property
    def key(self) -> tuple[str, str]:
        return self.channel.name, self.subject

    def left_s(self, now_ns: int) -> int | None:
        """How long it is still of use; None = for ever."""
        if self.channel.expiry_s is None or self.message is None:
            return None
        return self.channel.expiry_s - (now_ns - self.put_ns) // NS_PER_S


class Outbox:
    """
    The latest message of each retained topic, sent or not, what is to be said to each that is addressed, and a queue for each
    other channel.

    A newer message replaces an unsent one on the same topic, where it says all; a full queue drops its oldest. `dropped` counts
    these and what waited too long.
    """

    def __init__(self, node: str) -> None:
        self.dropped = 0
        self._node = node
        self._latest: dict[tuple[str, str], OutgoingMessage] = {}
        self._unsent: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._queues = {channel.name: deque[OutgoingMessage]() for channel in CHANNELS if not _newest_suffices(channel)}

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._unsent) + sum(len(queue) for queue in self._queues.values())

    @property
    def is_urgent(self) -> bool:
        """An event waits, which shall not."""
        return bool(self._queues[EVENT.name])

    def put(self, message: Message, now_ns: int) -> None:
        channel = channel_of(type(message))
        outgoing = OutgoingMessage(channel, subject_of(message, self._node), message, now_ns)
        if _newest_suffices(channel):
            self._keep(outgoing)
            return
        queue = self._queues[channel.name]
        queue.append(outgoing)
        if len(queue) > MAX_QUEUED:
            queue.popleft()
            self.dropped += 1

    def clear(self, channel: MqttChannel, subject: str) -> None:
        self._keep(OutgoingMessage(channel, subject, None, put_ns=0))

    def forget(self, channel: MqttChannel, subject: str) -> None:
        """Another speaks of this from now on: what the broker has stays, and is not sent again."""
        self._latest.pop((channel.name, subject), None)
        self._unsent.pop((channel.name, subject), None)

    def next(self, now_ns: int) -> OutgoingMessage | None:
        """Take what is to be sent next: events, then what says all, then the other queues in the channels' order."""
        while outgoing := self._take():
            left_s = outgoing.left_s(now_ns)
            if left_s is None or left_s > 0:
                return outgoing
            if _newest_suffices(outgoing.channel):
                self.forget(outgoing.channel, outgoing.subject)
            # The rows of a batch of history still wait in the store.
            self.dropped += outgoing.channel is not HISTORY
        return None

    def sent(self, outgoing: OutgoingMessage) -> None:
        """What is not repeated is forgotten, unless something newer came meanwhile."""
        is_over = outgoing.message is None or not outgoing.channel.retained
        if is_over and self._latest.get(outgoing.key) is outgoing:
            del self._latest[outgoing.key]

    def failed(self, outgoing: OutgoingMessage) -> None:
        """It may not have arrived. What says all goes out again with all others, a queued message goes back to its place."""
        if _newest_suffices(outgoing.channel):
            return
        queue = self._queues[outgoing.channel.name]
        if len(queue) < MAX_QUEUED:
            queue.appendleft(outgoing)
        else:
            self.dropped += 1

    def renew(self) -> None:
        """A new connection, perhaps to a broker that forgot everything: every retained topic goes out again."""
        self._unsent = OrderedDict.fromkeys(self._latest)

    def _keep(self, outgoing: OutgoingMessage) -> None:
        self._latest[outgoing.key] = outgoing
        self._unsent[outgoing.key] = None

    def _take(self) -> OutgoingMessage | None:
        if self.is_urgent:
            return self._queues[EVENT.name].popleft()
        if self._unsent:
            key, _ = self._unsent.popitem(last=False)
            return self._latest[key]
        for queue in self._queues.values():
            if queue:
                return queue.popleft()
        return None


def _newest_suffices(channel: MqttChannel) -> bool:
    """Whether its newest message about a subject makes those before it useless."""
    return channel.retained or channel.addressed
