"""
What the web room needs of a daemon, and how nodes are looked for among many.

What viewers are told of, as server-sent events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from timesyncd.feed import Feed
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetSummary, HubState
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, GrandmasterState, Message, NodeState, Status

StreamEventKind = Literal["node", "grandmaster", "alarm", "job", "finding", "hub", "fleet"]


@dataclass(frozen=True)
class StreamEvent:
    """Something changed. It is serialised when the first viewer wants it, once for all of them, and never without one."""

    kind: StreamEventKind
    data: Message

    @cached_property
    def frame(self) -> bytes:
        """Without its id. One line of data: the serialiser escapes line ends, so a name cannot end the event early."""
        return b"event: %s\ndata: %s\n\n" % (self.kind.encode(), self.data.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes; None: whatever. `grandmaster` is a unit's name or a clock identity, `topology` a place and all below it."""

    status: Status | None = None
    grandmaster: str | None = None
    topology: str | None = None
    part: str | None = None

    def takes(self, node: str, status: Status | None, topology: str, grandmasters: Sequence[str | None]) -> bool:
        """
        `status` is the one that is told first, as it has aged, None of a node without a clock source; `grandmasters` what the one it
        follows is called.
        """
        return (
            (self.status is None or self.status == status)
            and (self.grandmaster is None or self.grandmaster in grandmasters)
            and (self.topology is None or f"{topology}/".startswith(f"{self.topology}/"))
            and (self.part is None or self.part in node)
        )


ALL_NODES = NodeFilter()


class View(Protocol):
    """
    What is shown. Every `age_ns` is as of the call (a hub adds the time since a node's message came), and none of these
    waits or raises. What a grandmaster reports by itself comes as an event alone.
    """

    def node(self) -> NodeState:
        """This daemon's own node."""

    def node_count(self) -> int:
        """Of every node known here, the own one among them. Cheap: asked each second."""

    def node_names(self, wanted: NodeFilter = ALL_NODES) -> list[str]:
        """Of those that are wanted, in order. Makes no message of any, so that it may be asked about 10,000."""

    def nodes(self, names: Sequence[str]) -> list[NodeState]:
        """Those of the names that are known, in the same order."""

    def fleet(self) -> FleetSummary: ...

    def map(self) -> FleetMap:
        """Of every node known here. Makes no message of any either."""

    def alignment(self, names: Sequence[str] | None, job: str | None) -> AlignmentState | None:
        """
        Of these nodes, or of those of the job with this id, or with neither of all. A name that is not known is that of a node
        never heard of. None: there is no such job.
        """

    def hubs(self) -> list[HubState]:
        """Those that are alive, by name."""

    def grandmasters(self) -> list[GrandmasterState]: ...

    def jobs(self) -> list[JobState]: ...

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """A page of a job's closed steps, from this key on. None: no such job is joined here. Does not hold long."""

    def findings(self) -> list[FindingMessage]: ...

    def config(self) -> str:
        """The configuration as it counts, in JSON, its secrets by where they stand."""

    def metrics(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""

    def health(self) -> str | None:
        """None while all is well, else what is wrong, in one line that strangers may read."""

    @property
    def events(self) -> Feed[StreamEvent]:
        """What changes, as it changes."""
