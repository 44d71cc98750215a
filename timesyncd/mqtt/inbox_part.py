"""What comes in: parsed, checked against its topic, newest only. A poisoned message is counted and costs nothing else."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from timesyncd.errors import Malformed
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import Message
from timesyncd.mqtt.inbox import Newest, News
from timesyncd.mqtt.topics import MOST_NAMED, Channel, decode, locate, publisher_of

log = logging.getLogger(__name__)

MAX_COMPLAINTS = 100


@dataclass(frozen=True, slots=True)
class Received:
    """
    A message from another daemon. `subject` is the node, grandmaster or job of its topic.

    `retained`: the broker's copy of what was last known, of any age; only a live message says how it is now. `size` is its bytes.
    """

    channel: Channel
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
        publisher = publisher_of(message, subject)
        if publisher == self._node and not isinstance(message, JobState):
            return None
        match self._newest.judge(channel.name, subject, message, retained, now_ns):
            case News.OLD:
                self.outdated += 1
                return None
            case News.ANEW:
                self._complain(publisher, f"{publisher} counts from below now: its clock or its store was put back")
        return Received(channel, subject, message, retained, now_ns, len(payload))

    def reconnected(self, now_ns: int) -> None:
        """Let each topic be complained about once again. Who was not heard of while we were away was not silent."""
        self._complained.clear()
        self._newest.listening_since(now_ns)

    def _reject(self, topic: str, error: Malformed) -> None:
        self.rejected += 1
        self._complain(topic, f"ignored a message on {ascii(topic)[1:-1][:MOST_NAMED]}: {error}")

    def _complain(self, about: str, words: str) -> None:
        if about not in self._complained and len(self._complained) < MAX_COMPLAINTS:
            self._complained.add(about)
            log.warning("mqtt: %s", words)
