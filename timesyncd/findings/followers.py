"""The part of other nodes' states that the rules about grandmasters read, in a tenth of the state's size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern
from typing import Any, NamedTuple, Protocol

from timesyncd.bound import ClockStatus, status_at
from timesyncd.messages.node import BoundMessage, NodeState, Status, status_name


class FollowerSource(Protocol):
    """A node's clock source, with what it receives of its grandmaster; fields as in SourceState."""

    @property
    def name(self) -> str: ...
    @property
    def reason_code(self) -> str: ...
    @property
    def grandmaster_identity(self) -> str | None: ...
    @property
    def clock_class(self) -> int | None: ...
    @property
    def clock_accuracy(self) -> int | None: ...
    @property
    def current_utc_offset_s(self) -> int | None: ...
    @property
    def utc_seconds_removed(self) -> int | None: ...
    @property
    def offset_ns(self) -> int | None: ...
    @property
    def kind(self) -> str | None: ...
    @property
    def gm(self) -> BoundMessage | None: ...
    @property
    def utc(self) -> BoundMessage | None: ...
    @property
    def age_ns(self) -> int | None: ...


class Follower(Protocol):
    """A node that follows a grandmaster; fields as in NodeState, which satisfies this."""

    @property
    def node(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def grandmaster_identity(self) -> str | None: ...
    @property
    def utc(self) -> BoundMessage | None: ...
    @property
    def holdover_after_ns(self) -> int: ...
    @property
    def published_realtime_ns(self) -> int: ...
    @property
    def sources(self) -> Sequence[FollowerSource]: ...


class _Source(NamedTuple):
    """
    A tuple, since ten thousand nodes are aged every other second; the age comes last, so that replacing it is fast.
    """

    name: str
    kind: str | None
    reason_code: str
    grandmaster_identity: str | None
    clock_class: int | None
    clock_accuracy: int | None
    current_utc_offset_s: int | None
    utc_seconds_removed: int | None
    offset_ns: int | None
    gm: BoundMessage | None
    utc: BoundMessage | None
    age_ns: int | None


class _Node(NamedTuple):
    node: str
    grandmaster_identity: str | None
    utc: BoundMessage | None
    holdover_after_ns: int
    published_realtime_ns: int
    status: Status
    sources: tuple[_Source, ...]


class _ReceivedNode(NamedTuple):
    node: _Node
    age_ns: int | None
    void_after_ns: int
    received_ns: int


class Followers:
    """The last live state of each other node, in short."""

    def __init__(self) -> None:
        self._nodes: dict[str, _ReceivedNode] = {}

    def update(self, state: NodeState, received_boottime_ns: int) -> None:
        """Take in a live state that is newer than all earlier ones of its node."""
        sources = tuple(
            _Source(*(_small(getattr(source, name)) for name in _Source._fields)) for source in state.sources
        )
        node = _Node._make([*(_small(getattr(state, name)) for name in _Node._fields[:-1]), sources])
        self._nodes[state.node] = _ReceivedNode(node, state.age_ns, state.void_after_ns, received_boottime_ns)

    def remove(self, node: str) -> None:
        self._nodes.pop(node, None)

    def at(self, boottime_ns: int, realtime_ns: int) -> list[Follower]:
        """The nodes aged until now, by the larger of the times since receipt and since publication."""
        return [_aged(received, boottime_ns, realtime_ns) for received in self._nodes.values()]


def _aged(received: _ReceivedNode, boottime_ns: int, realtime_ns: int) -> _Node:
    node, age_ns, void_after_ns, received_ns = received
    since_ns = max(boottime_ns - received_ns, realtime_ns - node.published_realtime_ns)
    sources = tuple([_older(source, since_ns) for source in node.sources])
    status = node.status
    if age_ns is not None:
        status = _STATUS_NAMES[status_at(ClockStatus[status], age_ns + since_ns, node.holdover_after_ns, void_after_ns)]
    return _Node(*node[:-2], status, sources)


def _older(source: _Source, since_ns: int) -> _Source:
    return source if source.age_ns is None else _Source(*source[:-1], source.age_ns + since_ns)


_STATUS_NAMES = {status: status_name(status) for status in ClockStatus}


def _small(value: object) -> Any:
    """One object for equal texts of all nodes."""
    return intern(value) if isinstance(value, str) else value
