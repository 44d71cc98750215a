"""Wire messages about a fleet: roll-ups, events, history, hubs, alignments and summaries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from timesyncd.ipc.wire_types import Count64, Int64, RealtimeNs
from timesyncd.messages.node import OK, Message, Ordered, ReasonCode, Sequence64, Status

#: The prefix of a node's name in an event's source, and in O-RAN's resource addresses.
NODE_PATH = "/cluster/node/"

Count = Annotated[int, Field(ge=1, lt=2**63)]


class Summary(Message):
    """Of `count` values: extremes, mean (rounded), median and the value that 99 of 100 do not exceed."""

    count: Count
    minimum: Int64
    maximum: Int64
    mean: Int64
    p50: Int64
    p99: Int64


class Rollup(Message):
    """
    One source's samples of a whole minute or hour of CLOCK_REALTIME, by quantity: offset_ns, path_delay_ns,
    frequency_ppb, and the worst bounds as the `maximum` of gm_bound_ns and utc_bound_ns. A quantity that no sample had
    is left out.
    """

    source: str
    span_s: Literal[60, 3600]
    begins_realtime_ns: Int64
    quantities: dict[str, Summary]


class CloudEvent(Message):
    """
    An event, as CloudEvents 1.0 in JSON. `source` is the node as a path, `id` is unique within it, `time` is RFC 3339
    in UTC. State changes have O-RAN's types and data; the other types are timesyncd.*, with a message of timesyncd as
    data.
    """

    specversion: Literal["1.0"] = "1.0"
    id: str
    source: str
    type: str
    subject: str | None = None
    time: str
    datacontenttype: Literal["application/json"] = "application/json"
    data: dict[str, Any]

    @property
    def node(self) -> str:
        """The node of `source`; "" when that is no node's path."""
        return self.source.removeprefix(NODE_PATH) if self.source.startswith(NODE_PATH) else ""


class HistoryRow(Message):
    """A roll-up or an event for the hubs to store. `sequence` counts them on their node, from 1 and without gaps."""

    sequence: Annotated[int, Field(ge=1, lt=2**63)]
    realtime_ns: Int64
    rollup: Rollup | None = None
    event: CloudEvent | None = None

    @model_validator(mode="after")
    def _either(self) -> HistoryRow:
        if (self.rollup is None) == (self.event is None):
            raise ValueError("either rollup or event must be given")
        return self


class HistoryBatch(Ordered):
    """
    Rows of a node's history in their order, without gaps. `stream` is the Unix time in seconds at which the node's
    store was created: a new store begins a new sequence. Rows below `floor` that no hub has are lost.
    """

    stream: int = Sequence64
    floor: Annotated[int, Field(ge=1, lt=2**63)]
    rows: Annotated[list[HistoryRow], Field(min_length=1, max_length=500)]


class Stored(Ordered):
    """
    The hub `node` has stored the rows of the node `of` up to `stored_up_to`, except for `lost` rows that the node no
    longer had. A node deletes only rows that every hub has stored.
    """

    of: str
    stream: int = Sequence64
    stored_up_to: int = Sequence64
    lost: int = Sequence64


class HubState(Ordered):
    """
    A hub. The `primary` one publishes jobs, plans and the fleet's findings; the others compute the same and publish
    nothing. `url` is its page, null where other machines cannot reach it. `missing` are the expected nodes that sent no
    state lately. `shares`: the hub owns a share of jobs and nodes, publishes for that alone, and counts that alone.
    """

    published_realtime_ns: RealtimeNs
    started_realtime_ns: Int64
    primary: bool
    url: str | None = None
    nodes_live: Int64
    nodes_known: Int64
    nodes_expected: Int64
    missing: list[str] = []
    jobs: Int64 = 0
    shares: bool = False


class StateRequest(Ordered):
    """
    The hub `node` asks every daemon to publish its states again, since the broker had none of them for it. A daemon answers
    within a few seconds, and at most once in ten seconds, whatever is requested.
    """

    published_realtime_ns: RealtimeNs


class NodeAlignment(Message):
    """
    One node's part in an alignment: its bound against the reference that decides, null for `reason_code` and `reason`.
    """

    node: str
    status: Status
    bound_ns: Int64 | None
    reason: str
    reason_code: ReasonCode = OK


class AlignmentState(Message):
    """
    How far apart the clocks of a set of nodes may be, as of `published_realtime_ns`: no two by more than
    `alignment_ns`, growing by `growth_ppb`. Without new states this holds for `holds_for_ns`. `pair` are the two nodes
    that may be the furthest apart. `alignment_ns` null: unknown, for `reason_code` and `reason`. `nodes` begins with
    the worst.
    """

    published_realtime_ns: RealtimeNs
    alignment_ns: Count64 | None
    growth_ppb: Count64 | None
    holds_for_ns: Count64 | None
    pair: list[str] | None
    reason: str
    reason_code: ReasonCode = OK
    nodes: list[NodeAlignment]


class ShareBound(Message):
    """The widest clock of a group; `bound_ns` null: it has no bound, for `reason_code` and `reason`."""

    node: str
    bound_ns: Count64 | None
    reason: str = ""
    reason_code: ReasonCode = OK


class ShareGroup(Message):
    """
    The clocks behind one parent clock (`group`), under one grandmaster (`gm_group`): the widest two against the parent
    clock, the widest one against the grandmaster and against UTC, and the largest growths of the same, in ppb.
    """

    group: str
    gm_group: str
    parent: Annotated[list[ShareBound], Field(min_length=1, max_length=2)]
    parent_growths: Annotated[list[Count64], Field(min_length=1, max_length=2)]
    gm: ShareBound
    gm_growth: Count64
    utc: ShareBound
    utc_growth: Count64


class FleetShare(Ordered):
    """
    What the hub `node` counts of its share while `members` share the fleet: parts from which every hub computes the
    numbers of the whole fleet. `unknown`: a node whose clock is unknown now. Without new states the others remain known
    for `holds_for_ns`.
    """

    published_realtime_ns: RealtimeNs
    members: Annotated[list[str], Field(min_length=1, max_length=256)]
    nodes: Count64
    nodes_live: Count64
    statuses: dict[Status, Count64]
    grandmasters: dict[str, Count64]
    worst: Annotated[list[NodeAlignment], Field(max_length=100)]
    missing: Annotated[list[str], Field(max_length=1_000)]
    unknown: ShareBound | None
    holds_for_ns: Count64
    groups: Annotated[list[ShareGroup], Field(max_length=4_096)]
    groups_left_out: Count64 = 0


class FleetSummary(Message):
    """
    A fleet in few numbers, as of `published_realtime_ns`: nodes by main status and by the grandmaster that they follow
    ("": none), and a few of the `worst`: first those without a bound, then the widest. `incomplete`: the hubs whose
    shares are missing in it.
    """

    published_realtime_ns: RealtimeNs
    nodes: Int64
    statuses: dict[Status, Int64]
    grandmasters: dict[str, Int64]
    worst: list[NodeAlignment]
    incomplete: list[str] = []


class FleetMap(Message):
    """
    The whole fleet in one small document, about 45 bytes a node. By place (a node's `topology`, "": none) its nodes as
    [name, main status, main bound in ns], all aged to `published_realtime_ns`; null: no bound. `incomplete`: the other
    hubs that share the fleet, whose maps have the other nodes.
    """

    published_realtime_ns: RealtimeNs
    incomplete: list[str] = []
    places: dict[str, list[tuple[str, Status, Count64 | None]]]
