"""What comes in: parsed, checked against its topic, newest only. A poisoned message is counted and costs nothing else."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from timesyncd.errors import Malformed
from timesyncd.messages import Message
from timesyncd.mqtt.order import Newest
from timesyncd.mqtt.topics import Channel, decode, locate, publisher_of

log = logging.getLogger(__name__)

MAX_COMPLAINTS = 100


@dataclass(frozen=True, slots=True)
class Received:
    """
    A message from another daemon. `subject` is the node, grandmaster or job of its topic.

    `retained`: the broker's copy of what was last known, of any age; only a live message says how it is now.
    """

    channel: Channel
    subject: str
    message: Message
    retained: bool
    received_boottime_ns: int


class Inbox:
    """
    `rejected` counts messages that no timesyncd wrote, `outdated` those that were older than one already taken.

    What `node` itself published is passed over: its daemon knows better than a broker's old copy.
    """

    def __init__(self, prefix: str, node: str) -> None:
        self.rejected = 0
        self.outdated = 0
        self._prefix = prefix
        self._node = node
        self._newest = Newest()
        self._complained: set[str] = set()

    def take(self, topic: str, payload: bytes, retained: bool, now_ns: int) -> Received | None:
        """None when there is nothing to pass on."""
        try:
            channel, subject = locate(self._prefix, topic)
            if not payload:
                self._newest.forget(channel.name, subject)
                return None
            message = decode(channel, subject, payload)
        except Malformed as error:
            self._reject(topic, error)
            return None
        if publisher_of(message, subject) == self._node:
            return None
        if not self._newest.accept(channel.name, subject, message, retained):
            self.outdated += 1
            return None
        return Received(channel, subject, message, retained, now_ns)

    def reconnected(self) -> None:
        """Let each topic be complained about once again."""
        self._complained.clear()

    def _reject(self, topic: str, error: Malformed) -> None:
        self.rejected += 1
        if topic not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(topic)
            log.warning("mqtt: ignored a message on %.200s: %s", topic, error)
