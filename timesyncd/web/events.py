"""What viewers are told of, as server-sent events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from timesyncd.messages.node import Message

Kind = Literal["node", "grandmaster", "alarm", "job", "finding", "hub", "fleet"]


@dataclass(frozen=True)
class Event:
    """Something changed. It is serialised when the first viewer wants it, once for all of them, and never without one."""

    kind: Kind
    data: Message

    @cached_property
    def frame(self) -> bytes:
        """Without its id. One line of data: the serialiser escapes line ends, so a name cannot end the event early."""
        return b"event: %s\ndata: %s\n\n" % (self.kind.encode(), self.data.model_dump_json().encode())
