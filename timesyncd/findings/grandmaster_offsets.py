"""
How far two grandmasters are apart, by every measurement there is: a node with both as sources, an input of one of them,
or followers of each that know UTC. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.config import MeasuredInput
from timesyncd.findings.followers import Follower, FollowerSource
from timesyncd.findings.text import by_identity, is_locked
from timesyncd.messages.node import OK, GrandmasterOffset, GrandmasterState
from timesyncd.model.grandmaster_events import RATE_PPB
from timesyncd.sample import TimeError

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
