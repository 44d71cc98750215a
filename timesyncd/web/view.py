"""What the HTTP server reads of a daemon: the `View` protocol, the filter of nodes, and the events for viewers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from timesyncd.feed import Feed
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.cost import DaemonCost
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetSummary, HubState
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, GrandmasterState, Message, NodeState, Status
from timesyncd.messages.notes import HandledFinding, NoteRequest, OperatorNote
from timesyncd.messages.overview import Overview
from timesyncd.messages.series import LatenessMatrix

StreamEventKind = Literal["node", "grandmaster", "alarm", "job", "finding", "hub", "fleet", "note"]


@dataclass(frozen=True)
class StreamEvent:
    """
    A changed state, for viewers. It is serialised at most once, when the first viewer needs it, and shared by all of
    them.
    """

    kind: StreamEventKind
    data: Message

    @cached_property
    def frame(self) -> bytes:
        """
        The event's frame without an id. The data is one line, since JSON escapes line ends: a name cannot end the event
        early.
        """
        return b"event: %s\ndata: %s\n\n" % (self.kind.encode(), self.data.model_dump_json().encode())


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """
    Selects nodes; None: any. `grandmaster` is a name or a clock identity, `topology` a place with all places below it,
    `part` a part of the name.
    """

    status: Status | None = None
    grandmaster: str | None = None
    topology: str | None = None
    part: str | None = None

    def matches(self, node: str, status: Status | None, topology: str, grandmasters: Sequence[str | None]) -> bool:
        """
        `status` is the node's main status at its present age (None: a node without a clock source); `grandmasters` are
        the name and the identity of the grandmaster that it follows.
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
    The states of a daemon, for reading; no method blocks or raises, and none but `write_note` has an effect.

    Every `age_ns` is as of the call: a hub adds the time since it received the node's message. A grandmaster's
    notifications exist as events only.
    """

    def node(self) -> NodeState:
        """This daemon's own node."""

    def node_count(self) -> int:
        """The number of known nodes, with this daemon's own. Cheap: called each second."""

    def node_names(self, node_filter: NodeFilter = ALL_NODES) -> list[str]:
        """The matching nodes' names, sorted. Builds no message, so it is cheap for 10,000 nodes."""

    def nodes(self, names: Sequence[str]) -> list[NodeState]:
        """The states of the known ones of these nodes, in the same order."""

    def fleet(self) -> FleetSummary: ...

    def map(self) -> FleetMap:
        """Place, status and bound of every known node. Builds no message of a single node."""

    def overview(self) -> Overview:
        """The fleet at a glance; all callers within a second get the same one."""

    def alignment(self, names: Sequence[str] | None, job: str | None) -> AlignmentState | None:
        """
        The alignment of these nodes, of the nodes of the job with this id, or, with neither, of all nodes. An unknown
        name is a node that never published a state. None: no such job.
        """

    def hubs(self) -> list[HubState]:
        """The live hubs, sorted by name."""

    def grandmasters(self) -> list[GrandmasterState]: ...

    def jobs(self) -> list[JobState]: ...

    def window(self, job_id: str, from_step: int, most_steps: int) -> RecordingMessage | None:
        """
        A page of a job's closed steps, from this step key on. None: this daemon aggregates no such job. A page is
        bounded, so the call is short.
        """

    def lateness(self, job_id: str, most_steps: int) -> LatenessMatrix | None:
        """The lateness in a job's newest closed steps. None: this daemon aggregates no such job."""

    def findings(self) -> list[FindingMessage]: ...

    def handled(self) -> list[HandledFinding]:
        """The active findings that somebody acknowledged or silenced."""

    def write_note(self, request: NoteRequest, author: str) -> OperatorNote | str:
        """Store and publish what `author` wrote; a text: why it is refused. The one method with an effect."""

    def cost(self) -> DaemonCost | None:
        """What this daemon costs its node; None: it is not known."""

    def config(self) -> str:
        """The effective configuration in JSON, with the location of each secret in place of its value."""

    def metrics(self) -> bytes:
        """All metrics in the Prometheus text format, version 0.0.4."""

    def health(self) -> str | None:
        """None while the daemon works, else the fault in one line, which clients without credentials may read."""

    @property
    def events(self) -> Feed[StreamEvent]:
        """The feed of changed states."""
