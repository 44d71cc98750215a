"""Server-sent events: each viewer gets the state of everything, then what changes; a slow viewer is told what it lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from timesyncd.feed import Feed
from timesyncd.messages import Message

Kind = Literal["node", "grandmaster", "alarm", "job", "finding"]

QUEUE_SIZE = 256
HEARTBEAT_S = 15.0
HEARTBEAT = b": alive\n\n"
RECONNECT = b"retry: 2000\n\n"


@dataclass(frozen=True)
class Event:
    """Something changed. It is serialised when the first viewer wants it, once for all of them, and never without one."""

    kind: Kind
    data: Message

    @cached_property
    def json(self) -> bytes:
        """One line: the serialiser escapes line ends, so a name cannot end the event early."""
        return self.data.model_dump_json().encode()


async def frames(
    feed: Feed[Event], current: Callable[[], Sequence[Event]], heartbeat_s: float = HEARTBEAT_S
) -> AsyncGenerator[bytes, None]:
    """
    What one viewer is sent. Close it (`aclosing`): the feed is left then.

    Ids count the events meant for this viewer, so the id of `lost` has jumped by the number it carries.
    """
    subscription = feed.subscribe(QUEUE_SIZE)
    number = lost = 0
    try:
        first = current()  # no await since the subscription: nothing falls between the state and the changes
        yield RECONNECT + b"".join(_frame(place, event.kind, event.json) for place, event in enumerate(first, 1))
        number += len(first)
        while True:
            try:
                async with asyncio.timeout(heartbeat_s):
                    event = await anext(subscription)
            except TimeoutError:
                yield HEARTBEAT
                continue
            if newly_lost := subscription.dropped - lost:
                lost += newly_lost
                number += newly_lost
                yield _frame(number, "lost", json.dumps({"lost": newly_lost}).encode())
            number += 1
            yield _frame(number, event.kind, event.json)
    finally:
        feed.unsubscribe(subscription)


def _frame(number: int, kind: str, data: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind.encode(), data)
