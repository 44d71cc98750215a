"""From a grandmaster's trouble to what it does to whom: the steps of one finding's chain. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from timesyncd.bound import Reason
from timesyncd.findings.followers import Follower
from timesyncd.findings.text import identities, is_locked, names_text, utc_text
from timesyncd.messages.node import GrandmasterState
from timesyncd.units import duration_text

#: Why a node may have no bound against UTC whatever its grandmaster does.
_OWN_REASONS = (Reason.ARBITRARY_TIMESCALE.text, Reason.UTC_OFFSET_DIFFERS.text)

_S_PER_HOUR = 3_600


def chain(causes: Sequence[str], unit: GrandmasterState, nodes: Iterable[Follower], now_ns: int) -> tuple[str, ...]:
    """`causes` in order, then what follows from them; () where they are all there is to say."""
    steps = tuple(dict.fromkeys(causes))
    if not is_locked(unit):
        steps += (*_of_unit(unit, now_ns), *_of_nodes(unit, _followers(unit, nodes), _growth(unit)))
    return steps if len(steps) > 1 else ()


def doubt(causes: Sequence[str], unit: GrandmasterState, nodes: Iterable[Follower]) -> tuple[str, ...]:
    """The chain of a unit whose word is in doubt."""
    steps = (*causes, *_of_nodes(unit, _followers(unit, nodes), "the UTC bound rests on what this unit says"))
    return steps if len(steps) > 1 else ()


def _followers(unit: GrandmasterState, nodes: Iterable[Follower]) -> list[Follower]:
    """Those whose clock is known against it: of the others its trouble is not the reason."""
    announced = identities(unit)
    return [n for n in nodes if n.status in ("SYNCHRONIZED", "HOLDOVER") and n.grandmaster_identity in announced]


def _of_unit(unit: GrandmasterState, now_ns: int) -> list[str]:
    steps = [] if unit.clock_class is None else [f"it announces clock class {unit.clock_class}"]
    if unit.holdover_left_ns is not None:
        left_ns = unit.holdover_left_ns - (unit.age_ns or 0)
        lasts = f"lasts until {utc_text(now_ns + left_ns, now_ns)}" if left_ns > 0 else "is spent"
        steps.append(f"its holdover budget {lasts}")
    if unit.utc is not None and unit.utc.bound_ns is None:
        steps.append(f"its error against UTC is not bounded: {unit.utc.reason}")
    return steps


def _of_nodes(unit: GrandmasterState, followers: Iterable[Follower], bounded: str) -> list[str]:
    """One step for all nodes that fare alike; `bounded` is how those with a bound against UTC do."""
    fares: dict[str, list[str]] = {}
    for node in followers:
        if node.utc is not None and node.utc.reason not in _OWN_REASONS:
            fare = bounded if node.utc.bound_ns is not None else f"no bound against UTC: {node.utc.reason}"
            fares.setdefault(fare, []).append(node.node)
    return [f"{names_text(names)}: {fare}" for fare, names in fares.items()]


def _growth(unit: GrandmasterState) -> str:
    growth_ppb = unit.utc.growth_ppb if unit.utc else 0
    if growth_ppb == 0:
        return "UTC bound is wider while this lasts"
    return f"UTC bound grows by {duration_text(growth_ppb * _S_PER_HOUR)} an hour"
