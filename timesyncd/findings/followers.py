"""
Which node follows which grandmaster, and how far two grandmasters are apart. Pure.

A follower is the part of a node's state that the rules about grandmasters read, in a tenth of the state's size. Two
grandmasters are compared by every measurement there is: a node with both as sources, an input of one of them, or
followers of each that know UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from operator import attrgetter
from sys import intern
from typing import Any, NamedTuple, Protocol

from timesyncd.bound import Bound, ClockStatus, status_at
from timesyncd.clocks import NS_PER_S
from timesyncd.config import MeasuredInput
from timesyncd.findings.text import grandmaster_summary_text, is_locked
from timesyncd.messages.node import (
    OK,
    BoundMessage,
    GrandmasterOffset,
    GrandmasterState,
    NodeState,
    RepeatedState,
    Status,
    status_name,
)
from timesyncd.model.grandmaster_events import RATE_PPB
from timesyncd.sample import TimeError


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
    def time_traceable(self) -> bool | None: ...
    @property
    def leap(self) -> str | None: ...
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
    time_traceable: bool | None
    leap: str | None
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


_SOURCE_FIELDS = attrgetter(*_Source._fields)
_NODE_FIELDS = attrgetter(*_Node._fields[:-1])


def _interned(values: Iterable[Any]) -> list[Any]:
    """One object for equal texts of all nodes."""
    return [intern(value) if type(value) is str else value for value in values]


class Followers:
    """The last live state of each other node, in short."""

    def __init__(self) -> None:
        self._nodes: dict[str, _ReceivedNode] = {}

    def update(self, state: NodeState, received_boottime_ns: int) -> None:
        """Take in a live state that is newer than all earlier ones of its node."""
        sources = tuple([_Source._make(_interned(_SOURCE_FIELDS(source))) for source in state.sources])
        node = _Node._make((*_interned(_NODE_FIELDS(state)), sources))
        self._nodes[state.node] = _ReceivedNode(node, state.age_ns, state.void_after_ns, received_boottime_ns)

    def repeat(self, state: RepeatedState, received_boottime_ns: int) -> None:
        """The node's next state, which differs from its last one in these numbers alone."""
        known = self._nodes[state.node]
        node = known.node._replace(published_realtime_ns=state.published_realtime_ns)
        self._nodes[state.node] = _ReceivedNode(node, state.age_ns, known.void_after_ns, received_boottime_ns)

    def __contains__(self, node: str) -> bool:
        return node in self._nodes

    def remove(self, node: str) -> None:
        self._nodes.pop(node, None)

    def compact(self) -> None:
        """After many nodes were removed: a dict keeps the room of its most entries."""
        self._nodes = dict(self._nodes)

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


def identities(grandmaster: GrandmasterState) -> set[str]:
    """Every clock identity that the grandmaster may announce: the configured ones, its own, and those of its ports."""
    reported = [grandmaster.clock_identity, *(port.clock_identity for port in grandmaster.ports or [])]
    return {*grandmaster.identities, *(identity for identity in reported if identity is not None)}


def by_identity(grandmasters: Iterable[GrandmasterState]) -> dict[str, GrandmasterState]:
    """The grandmaster by identity; of two with the same identity the first."""
    found: dict[str, GrandmasterState] = {}
    for grandmaster in grandmasters:
        found = dict.fromkeys(identities(grandmaster), grandmaster) | found
    return found


def followed_grandmaster(node: Follower, grandmasters: Iterable[GrandmasterState]) -> GrandmasterState | None:
    """The grandmaster that the node's clock follows; None where it is none of these."""
    return by_identity(grandmasters).get(node.grandmaster_identity or "")


def with_grandmaster(node: NodeState, grandmasters: Iterable[GrandmasterState], now_ns: int) -> NodeState:
    """The node's state with the name and the state of the grandmaster that it follows."""
    grandmaster = followed_grandmaster(node, grandmasters)
    if grandmaster is None:
        return node
    return node.model_copy(
        update={"grandmaster": grandmaster.name, "grandmaster_summary": grandmaster_summary_text(grandmaster, now_ns)}
    )


#: A channel that is polled once a minute has a newest value of up to a minute.
FRESH_NS = 180 * NS_PER_S

#: chronyd is polled once a second, and its replies are as of then.
NTP_FRESH_NS = 5 * NS_PER_S

#: Half of a message's range, 146 years: offsets of a clock that is that wrong are useless.
TOO_FAR_NS = 2**62

Inputs = Mapping[str, Mapping[str, MeasuredInput]]
"""By grandmaster and channel: the other grandmaster that feeds the channel."""

ByIdentity = Mapping[str, GrandmasterState]
"""The grandmaster by the identity that it announces."""


@dataclass(frozen=True, slots=True)
class _PairOffset:
    """`grandmaster`'s time minus that of `other`, within `bound_ns`."""

    grandmaster: str
    other: str
    offset_ns: int
    bound_ns: int
    evidence: str


@dataclass(frozen=True, slots=True)
class _SourceOffset:
    """A node's clock minus the time of `grandmaster`, within `error`, `age_ns` ago."""

    grandmaster: str
    source: str
    offset_ns: int
    error: Bound
    age_ns: int
    utc_seconds_removed: int


def offsets(
    grandmasters: Sequence[GrandmasterState], nodes: Iterable[Follower], inputs: Inputs
) -> dict[str, list[GrandmasterOffset]]:
    """Of each grandmaster against every other with a measurement between them, by the one with the smallest bound."""
    nodes = [node for node in nodes if len(node.sources) > 1 and node.status in ("SYNCHRONIZED", "HOLDOVER")]
    by_id = by_identity(grandmasters)
    measured = [*_by_nodes(by_id, nodes), *_by_utc(by_id, nodes), *_by_inputs(grandmasters, inputs)]
    sane = [each for each in measured if max(abs(each.offset_ns), each.bound_ns) < TOO_FAR_NS]
    best: dict[tuple[str, str], GrandmasterOffset] = {}
    for each in sorted(sane, key=lambda each: each.bound_ns):
        for grandmaster, other, sign in ((each.grandmaster, each.other, 1), (each.other, each.grandmaster, -1)):
            offset = GrandmasterOffset(
                other=other, offset_ns=sign * each.offset_ns, bound_ns=each.bound_ns, evidence=each.evidence
            )
            best.setdefault((grandmaster, other), offset)
    return {
        grandmaster.name: [offset for (name, _), offset in sorted(best.items()) if name == grandmaster.name]
        for grandmaster in grandmasters
    }


def _by_nodes(grandmasters: ByIdentity, nodes: Iterable[Follower]) -> Iterator[_PairOffset]:
    for node in nodes:
        known = [each for source in node.sources if (each := _source_offset(source, node, grandmasters)) is not None]
        for one, other in combinations(known, 2):
            if one.grandmaster != other.grandmaster and one.utc_seconds_removed == other.utc_seconds_removed:
                evidence = f"{node.node} by {one.source} and {other.source}"
                yield _PairOffset(one.grandmaster, other.grandmaster, *_apart(one, other), evidence)


def _by_utc(grandmasters: ByIdentity, nodes: Iterable[Follower]) -> Iterator[_PairOffset]:
    """
    Each grandmaster against UTC by the follower with the smallest bound, and two grandmasters by their difference.
    """
    best: dict[tuple[str, int], _PairOffset] = {}
    for node in nodes:
        utc = [each for source in node.sources if (each := _utc_offset(source)) is not None]
        known = [
            each for source in node.sources if utc and (each := _source_offset(source, node, grandmasters)) is not None
        ]
        for one, other in product(known, utc):
            measured = _PairOffset(one.grandmaster, "UTC", *_apart(one, other), node.node)
            key = one.grandmaster, one.utc_seconds_removed
            best[key] = min(best.get(key, measured), measured, key=lambda each: each.bound_ns)
    for (key, first), (other_key, second) in combinations(best.items(), 2):
        if key[0] != other_key[0] and key[1] == other_key[1]:
            evidence = f"{first.evidence} and {second.evidence} by UTC"
            apart_ns, bound_ns = first.offset_ns - second.offset_ns, first.bound_ns + second.bound_ns
            yield _PairOffset(first.grandmaster, second.grandmaster, apart_ns, bound_ns, evidence)


def _utc_offset(source: FollowerSource) -> _SourceOffset | None:
    """The clock against UTC by NTP; None without a recent bound."""
    utc, age_ns = source.utc, source.age_ns
    if source.kind != "utc" or source.reason_code != OK or source.offset_ns is None:
        return None
    if utc is None or utc.bound_ns is None or age_ns is None or age_ns >= NTP_FRESH_NS:
        return None
    error = Bound(max(0, utc.bound_ns - abs(source.offset_ns)), utc.growth_ppb)
    return _SourceOffset("UTC", source.name, source.offset_ns, error, age_ns, 0)


def _source_offset(source: FollowerSource, node: Follower, grandmasters: ByIdentity) -> _SourceOffset | None:
    """
    None where the source has no recent bound of the clock on a known timescale. All sources with one measure the same
    clock, since only one clock of a node is bounded. The error of an offset is the part of the bound beyond it.
    """
    grandmaster, gm, age_ns = grandmasters.get(source.grandmaster_identity or ""), source.gm, source.age_ns
    if grandmaster is None or gm is None or gm.bound_ns is None or source.offset_ns is None:
        return None
    if age_ns is None or age_ns >= node.holdover_after_ns or source.utc_seconds_removed is None:
        return None
    if node.published_realtime_ns - age_ns < (grandmaster.invalid_before_realtime_ns or 0):
        return None
    error = Bound(gm.bound_ns - abs(source.offset_ns), gm.growth_ppb)
    return _SourceOffset(grandmaster.name, source.name, source.offset_ns, error, age_ns, source.utc_seconds_removed)


def _apart(one: _SourceOffset, other: _SourceOffset) -> tuple[int, int]:
    """
    (A - B, its bound) now, where `one` measured clock - A and `other` clock - B: the second less the first.

    The clock joins both at the later sample: until then the older one's error grows by its own growth; from then on
    only the grandmasters move.
    """
    newer_ns = min(one.age_ns, other.age_ns)
    joined_ns = sum(each.error.at(each.age_ns - newer_ns) or 0 for each in (one, other))
    return other.offset_ns - one.offset_ns, Bound(joined_ns, 2 * RATE_PPB).at(newer_ns) or 0


def _by_inputs(grandmasters: Sequence[GrandmasterState], inputs: Inputs) -> Iterator[_PairOffset]:
    """A channel that is ahead of the grandmaster's own time shows that the grandmaster behind it is ahead."""
    known = {grandmaster.name for grandmaster in grandmasters}
    for grandmaster in grandmasters:
        for channel, feed in inputs.get(grandmaster.name, {}).items():
            error = _newest(grandmaster, channel)
            if error is not None and feed.grandmaster in known:
                age_ns = max(0, grandmaster.published_realtime_ns - error.at_realtime_ns)
                bound_ns = Bound(feed.uncertainty_ns, 2 * RATE_PPB).at(age_ns) or 0
                yield _PairOffset(
                    grandmaster.name, feed.grandmaster, -error.value_ns, bound_ns, f"{grandmaster.name} by {channel}"
                )


def _newest(grandmaster: GrandmasterState, channel: str) -> TimeError | None:
    """
    The channel's time error against the grandmaster's own time: against GNSS only while the grandmaster is locked to
    it.
    """
    for error in grandmaster.time_errors or []:
        is_fresh = grandmaster.published_realtime_ns - error.at_realtime_ns < FRESH_NS
        is_own = is_locked(grandmaster) or "GNSS" not in (error.reference or "").upper()
        if (error.channel.upper(), error.metric) == (channel.upper(), "te") and is_fresh and is_own:
            return error
    return None
