"""What waits to be published, in bounded memory. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from timesyncd.messages import Message
from timesyncd.mqtt.topics import ALARM_EVENT, CHANNELS, Channel, channel_of, subject_of

#: A step of a job is closed after 10 s, so marks that waited longer are of no use.
MAX_WAITING = 1_000


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message on its way; None clears the retained topic."""

    channel: Channel
    subject: str
    message: Message | None


class Outbox:
    """
    The latest message of each retained topic, sent or not, and a queue for each other channel.

    A newer message replaces an unsent one on the same retained topic; a full queue drops its oldest and counts it.
    """

    def __init__(self, node: str) -> None:
        self.dropped = 0
        self._node = node
        self._latest: dict[tuple[str, str], Outgoing] = {}
        self._unsent: dict[tuple[str, str], None] = {}
        self._queues = {channel.name: deque[Outgoing]() for channel in CHANNELS if not channel.retained}

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._unsent) + sum(len(queue) for queue in self._queues.values())

    @property
    def is_urgent(self) -> bool:
        """An alarm event waits, which shall not."""
        return bool(self._queues[ALARM_EVENT.name])

    def put(self, message: Message) -> None:
        channel = channel_of(type(message))
        outgoing = Outgoing(channel, subject_of(message, self._node), message)
        if channel.retained:
            self._keep(outgoing)
            return
        queue = self._queues[channel.name]
        queue.append(outgoing)
        if len(queue) > MAX_WAITING:
            queue.popleft()
            self.dropped += 1

    def clear(self, channel: Channel, subject: str) -> None:
        self._keep(Outgoing(channel, subject, None))

    def next(self) -> Outgoing | None:
        """Take what is to be sent next: alarm events, then states, then the other queues in the channels' order."""
        if self.is_urgent:
            return self._queues[ALARM_EVENT.name].popleft()
        if self._unsent:
            key = next(iter(self._unsent))
            del self._unsent[key]
            return self._latest[key]
        for queue in self._queues.values():
            if queue:
                return queue.popleft()
        return None

    def sent(self, outgoing: Outgoing) -> None:
        """A cleared topic that nothing has replaced since is forgotten."""
        key = (outgoing.channel.name, outgoing.subject)
        if outgoing.message is None and self._latest.get(key) is outgoing:
            del self._latest[key]

    def failed(self, outgoing: Outgoing) -> None:
        """It may not have arrived. A state goes out again with all others, a queued message goes back to its place."""
        if outgoing.channel.retained:
            return
        queue = self._queues[outgoing.channel.name]
        if len(queue) < MAX_WAITING:
            queue.appendleft(outgoing)
        else:
            self.dropped += 1

    def renew(self) -> None:
        """A new connection, perhaps to a broker that forgot everything: every retained topic goes out again."""
        self._unsent = dict.fromkeys(self._latest)

    def _keep(self, outgoing: Outgoing) -> None:
        key = (outgoing.channel.name, outgoing.subject)
        self._latest[key] = outgoing
        self._unsent[key] = None
