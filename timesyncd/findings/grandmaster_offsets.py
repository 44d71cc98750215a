"""
How far two grandmasters are apart, wherever somebody measures it: a node that hears both, an input of one, or followers of each
that know UTC. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.config import MeasuredInput
from timesyncd.findings.followers import Follower, HeardBy
from timesyncd.findings.text import by_identity, is_locked
from timesyncd.messages.node import OK, GrandmasterOffset, GrandmasterState
from timesyncd.model.grandmaster_events import RATE_PPB
from timesyncd.sample import TimeError

#: A channel's newest value is a minute old where it is read once a minute.
FRESH_NS = 180 * NS_PER_S

#: chronyd is asked once a second, and what it tells is as of then.
NTP_FRESH_NS = 5 * NS_PER_S

#: Half of what a message can hold, 146 years: the numbers of a node that is that wrong compare nothing.
TOO_FAR_NS = 2**62

Inputs = Mapping[str, Mapping[str, MeasuredInput]]
"""By the unit and by its channel: which other unit feeds it."""

Announced = Mapping[str, GrandmasterState]
"""The unit that announces an identity."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """`unit`'s time minus that of `other`, within `bound_ns`."""

    unit: str
    other: str
    offset_ns: int
    bound_ns: int
    evidence: str


@dataclass(frozen=True, slots=True)
class _Heard:
    """A node's clock minus the time of `unit`, within `error`, `age_ns` ago."""

    unit: str
    source: str
    offset_ns: int
    error: Bound
    age_ns: int
    utc_seconds_removed: int


def offsets(
    units: Sequence[GrandmasterState], nodes: Iterable[Follower], inputs: Inputs
) -> dict[str, list[GrandmasterOffset]]:
    """Of each unit against every other that anything measures it against, by the tightest evidence there is."""
    nodes = [node for node in nodes if len(node.sources) > 1 and node.status in ("SYNCHRONIZED", "HOLDOVER")]
    announced = by_identity(units)
    measured = [*_by_nodes(announced, nodes), *_by_utc(announced, nodes), *_by_inputs(units, inputs)]
    sane = [each for each in measured if max(abs(each.offset_ns), each.bound_ns) < TOO_FAR_NS]
    best: dict[tuple[str, str], GrandmasterOffset] = {}
    for each in sorted(sane, key=lambda each: each.bound_ns):
        for unit, other, sign in ((each.unit, each.other, 1), (each.other, each.unit, -1)):
            offset = GrandmasterOffset(
                other=other, offset_ns=sign * each.offset_ns, bound_ns=each.bound_ns, evidence=each.evidence
            )
            best.setdefault((unit, other), offset)
    return {unit.name: [offset for (name, _), offset in sorted(best.items()) if name == unit.name] for unit in units}


def _by_nodes(units: Announced, nodes: Iterable[Follower]) -> Iterator[_Measured]:
    for node in nodes:
        heard = [each for source in node.sources if (each := _heard(source, node, units)) is not None]
        for one, other in combinations(heard, 2):
            if one.unit != other.unit and one.utc_seconds_removed == other.utc_seconds_removed:
                evidence = f"{node.node} by {one.source} and {other.source}"
                yield _Measured(one.unit, other.unit, *_apart(one, other), evidence)


def _by_utc(units: Announced, nodes: Iterable[Follower]) -> Iterator[_Measured]:
    """Each unit against UTC by the follower that knows it best, and two units by what that makes of both."""
    best: dict[tuple[str, int], _Measured] = {}
    for node in nodes:
        utc = [each for source in node.sources if (each := _utc(source)) is not None]
        heard = [each for source in node.sources if utc and (each := _heard(source, node, units)) is not None]
        for one, other in product(heard, utc):
            measured = _Measured(one.unit, "UTC", *_apart(one, other), node.node)
            key = one.unit, one.utc_seconds_removed
            best[key] = min(best.get(key, measured), measured, key=lambda each: each.bound_ns)
    for (key, first), (other_key, second) in combinations(best.items(), 2):
        if key[0] != other_key[0] and key[1] == other_key[1]:
            evidence = f"{first.evidence} and {second.evidence} by UTC"
            apart_ns, bound_ns = first.offset_ns - second.offset_ns, first.bound_ns + second.bound_ns
            yield _Measured(first.unit, second.unit, apart_ns, bound_ns, evidence)


def _utc(source: HeardBy) -> _Heard | None:
    """The clock against UTC by NTP; None where it is not bounded lately."""
    utc, age_ns = source.utc, source.age_ns
    if source.kind != "utc" or source.reason_code != OK or source.offset_ns is None:
        return None
    if utc is None or utc.bound_ns is None or age_ns is None or age_ns >= NTP_FRESH_NS:
        return None
    error = Bound(max(0, utc.bound_ns - abs(source.offset_ns)), utc.growth_ppb)
    return _Heard("UTC", source.name, source.offset_ns, error, age_ns, 0)


def _heard(source: HeardBy, node: Follower, units: Announced) -> _Heard | None:
    """
    None where the source does not bound the clock lately and on a known scale. All that do so measure one clock, since of a
    node only one is bounded. The error of an offset is what the bound holds beyond it.
    """
    unit, gm, age_ns = units.get(source.grandmaster_identity or ""), source.gm, source.age_ns
    if unit is None or gm is None or gm.bound_ns is None or source.offset_ns is None:
        return None
    if age_ns is None or age_ns >= node.holdover_after_ns or source.utc_seconds_removed is None:
        return None
    if node.published_realtime_ns - age_ns < (unit.void_before_realtime_ns or 0):
        return None
    error = Bound(gm.bound_ns - abs(source.offset_ns), gm.growth_ppb)
    return _Heard(unit.name, source.name, source.offset_ns, error, age_ns, source.utc_seconds_removed)


def _apart(one: _Heard, other: _Heard) -> tuple[int, int]:
    """
    (A - B, its bound) now, where `one` measured clock - A and `other` clock - B: the second less the first.

    The clock joins both at the later sample: until then the older one's error grows by its own growth; from then on only
    the grandmasters move.
    """
    newer_ns = min(one.age_ns, other.age_ns)
    joined_ns = sum(each.error.at(each.age_ns - newer_ns) or 0 for each in (one, other))
    return other.offset_ns - one.offset_ns, Bound(joined_ns, 2 * RATE_PPB).at(newer_ns) or 0


def _by_inputs(units: Sequence[GrandmasterState], inputs: Inputs) -> Iterator[_Measured]:
    """A channel that is ahead of the unit's own time is another unit that is ahead of it."""
    known = {unit.name for unit in units}
    for unit in units:
        for channel, feed in inputs.get(unit.name, {}).items():
            error = _newest(unit, channel)
            if error is not None and feed.unit in known:
                age_ns = max(0, unit.published_realtime_ns - error.at_realtime_ns)
                bound_ns = Bound(feed.uncertainty_ns, 2 * RATE_PPB).at(age_ns) or 0
                yield _Measured(unit.name, feed.unit, -error.value_ns, bound_ns, f"{unit.name} by {channel}")


def _newest(unit: GrandmasterState, channel: str) -> TimeError | None:
    """The channel's time error against the unit's own time: against GNSS only while the unit is locked to it."""
    for error in unit.time_errors or []:
        is_fresh = unit.published_realtime_ns - error.at_realtime_ns < FRESH_NS
        is_own = is_locked(unit) or "GNSS" not in (error.reference or "").upper()
        if (error.channel.upper(), error.metric) == (channel.upper(), "te") and is_fresh and is_own:
            return error
    return None
