"""
What a node's bound is made of, term by term, and what becomes of it: for people and scripts alike. Pure.

What becomes of a bound if no further sample comes: when it leaves a limit, and when nothing holds any more. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from timesyncd.bound import Bound, Rate, Term
from timesyncd.messages.node import BoundMessage, NodeState, SourceState, Status
from timesyncd.units import countdown_text, limit_text

LIMITS_NS = (1_000, 10_000, 100_000, 1_000_000)


class LimitCrossing(NamedTuple):
    """The bound is within `limit_ns` for another `in_ns`."""

    limit_ns: int
    in_ns: int


class Forecast(NamedTuple):
    """`leaves`: the nearest limit first, only those that are left before the bound is void."""

    leaves: tuple[LimitCrossing, ...]
    void_in_ns: int


def forecast(bound: Bound, age_ns: int, void_after_ns: int, limits_ns: Sequence[int] = LIMITS_NS) -> Forecast | None:
    """As of `age_ns` after the bound's as_of, if samples stop. None: nothing holds now."""
    now_ns, void_in_ns = bound.at(age_ns), void_after_ns - age_ns
    if bound.bound_ns is None or now_ns is None or void_in_ns <= 0:
        return None
    leaves = []
    for limit_ns in sorted(limits_ns):
        reached_ns = bound.age_at(limit_ns)
        if limit_ns < now_ns or reached_ns is None:
            continue
        in_ns = reached_ns - age_ns
        if in_ns < void_in_ns:
            leaves.append(LimitCrossing(limit_ns, in_ns))
    return Forecast(tuple(leaves), void_in_ns)


def forecast_text(expected: Forecast, limits: int = 1) -> str:
    """The next so many limits, and the end: "leaves 100 us in 4 min 10 s; void in 16 min"."""
    told = [f"{limit_text(each.limit_ns)} in {countdown_text(each.in_ns)}" for each in expected.leaves[:limits]]
    end = f"void in {countdown_text(expected.void_in_ns)}"
    return f"leaves {', '.join(told)}; {end}" if told else end


#: The names of the sums.
REFERENCES = ("parent", "grandmaster", "UTC")

#: What a daemon of a later version publishes, by its name alone.
UNKNOWN_TERM = "term unknown to this version"


class BudgetLine(NamedTuple):
    """A part or a sum, in ns or ns a second; None: it has no place in that bound, or is unknown, for what `what` says."""

    name: str
    what: str
    hard_ns: int | None
    stat_ns: int | None


Pair = tuple[BoundMessage | None, BoundMessage | None]
"""Hard and statistical."""


def term_lines(node: NodeState) -> list[BudgetLine]:
    """What adds up to the bounds against the parent, as of the sample."""
    return _lines(node.terms, node.stat_terms, {term: term.description for term in Term})


def growth_lines(node: NodeState) -> list[BudgetLine]:
    """What adds up to the growth of the hard parent bound, and the growth of each sum; 1 ppb is 1 ns a second."""
    sums = [
        BudgetLine(name, "in all", *map(_growth_ppb, pair)) for name, pair in zip(REFERENCES, _pairs(node), strict=True)
    ]
    return [
        *_lines(node.rates, {}, {rate: rate.description for rate in Rate}),
        *(line for line in sums if line.hard_ns is not None),
    ]


def reference_lines(node: NodeState) -> list[BudgetLine]:
    """
    The sums for parent, grandmaster and UTC as of the sample, and what lies between one and the next. Where several sources
    know UTC, no sum makes what they share; where the one that does is not the one that decides, its bound is no sum either.
    """
    parent, gm, utc = _pairs(node)
    clocks, own = _beyond(gm, parent), _beyond(utc, gm)
    lines = [_sum("parent", parent), _sum("grandmaster", gm)]
    if clocks[0]:
        lines.insert(1, BudgetLine("boundary clocks", "as configured", *clocks))
    if len(_knowing_utc(node)) > 1:
        return lines
    if _knowing_utc(node) == [_deciding(node)] and own[0] is not None and own[0] >= 0:
        lines.append(BudgetLine("grandmaster's own", "its error against UTC", *own))
    return [*lines, _sum("UTC", utc, _utc_from(node))]


def current_bound_lines(node: NodeState) -> list[BudgetLine]:
    """The three as they have grown since the sample, where the status leaves any."""
    parent, gm, utc = _pairs(node)
    return [
        _now("parent", parent, _parent_status(node), node.age_ns),
        _now("grandmaster", gm, node.status, node.age_ns),
        _now("UTC", utc, node.utc_status, node.age_ns, _utc_from(node)),
    ]


def _now(name: str, pair: Pair, status: Status, age_ns: int | None, what: str = "") -> BudgetLine:
    return BudgetLine(name, _why(pair[0]) or what, *(current_bound_ns(message, status, age_ns) for message in pair))


def _parent_status(node: NodeState) -> Status:
    """The status is that against the grandmaster, of which nothing may be known although the parent is."""
    if node.status != "UNKNOWN" or node.gm is None or node.gm.bound_ns is not None:
        return node.status
    return "HOLDOVER" if (node.age_ns or 0) < node.void_after_ns else "UNKNOWN"


def _utc_from(node: NodeState) -> str:
    """Whose word the UTC bound is, where that is not plainly the deciding source's."""
    knowing = _knowing_utc(node)
    if len(knowing) > 1:
        return f"what {len(knowing)} sources leave"
    return f"from {knowing[0].name}" if knowing and knowing[0] is not _deciding(node) else ""


def _deciding(node: NodeState) -> SourceState | None:
    """The PTP source whose bounds against parent and grandmaster are the node's: the first that is not void."""
    measured = (source for source in node.sources if source.kind == "ptp" and source.age_ns is not None)
    return next((source for source in measured if (source.age_ns or 0) < node.void_after_ns), None)


def _knowing_utc(node: NodeState) -> list[SourceState]:
    return [source for source in node.sources if _knows_utc(source, node)]


def _knows_utc(source: SourceState, node: NodeState) -> bool:
    if source.utc is None or source.utc.bound_ns is None or source.age_ns is None:
        return False
    return source.age_ns < node.void_after_ns


def current_bound_ns(message: BoundMessage | None, status: Status, age_ns: int | None) -> int | None:
    """The bound at this age; None where the status leaves none to rely on."""
    if message is None or age_ns is None or status in ("UNKNOWN", "DISRUPTED"):
        return None
    return _bound(message).at(age_ns)


def node_forecast(node: NodeState) -> Forecast | None:
    """Of the bound that is told first, if samples stop."""
    message = node.main_bound
    if message is None or node.age_ns is None or current_bound_ns(message, node.main_status, node.age_ns) is None:
        return None
    return forecast(_bound(message), node.age_ns, node.void_after_ns)


def selection_of(source: SourceState, node: NodeState) -> str:
    """How it stands to the others, where several know UTC."""
    if source.name in node.falsetickers:
        return "FALSETICKER"
    if not _knows_utc(source, node) or len(_knowing_utc(node)) < 2:
        return ""
    return "CONTRADICTED" if node.sources_contradict else "takes part"


def as_json(node: NodeState) -> dict[str, object]:
    """Raw numbers under the names of the message."""
    expected = node_forecast(node)
    return {
        "node": node.node,
        "status": node.status,
        "utc_status": node.utc_status,
        "reason": node.reason,
        "age_ns": node.age_ns,
        "terms": _by_name(term_lines(node)),
        "references": _by_name(reference_lines(node)),
        "growth_each_second": _by_name(growth_lines(node)),
        "now": _by_name(current_bound_lines(node)),
        "forecast": None
        if expected is None
        else {"leaves": [each._asdict() for each in expected.leaves], "void_in_ns": expected.void_in_ns},
        "falsetickers": node.falsetickers,
        "sources_contradict": node.sources_contradict,
        "sources": [source.model_dump(mode="json") for source in node.sources],
    }


def _pairs(node: NodeState) -> tuple[Pair, Pair, Pair]:
    """(hard, statistical) of parent, grandmaster and UTC."""
    return (node.parent, node.parent_stat), (node.gm, node.gm_stat), (node.utc, node.utc_stat)


def _lines(hard: Mapping[str, int], stat: Mapping[str, int], words: Mapping[str, str]) -> list[BudgetLine]:
    names = [*words, *(name for name in (*hard, *stat) if name not in words)]
    told = [name for name in dict.fromkeys(names) if name in hard or name in stat]
    return [BudgetLine(name, words.get(name, UNKNOWN_TERM), hard.get(name), stat.get(name)) for name in told]


def _sum(name: str, pair: Pair, what: str = "") -> BudgetLine:
    return BudgetLine(name, _why(pair[0]) or what, *(None if message is None else message.bound_ns for message in pair))


def _growth_ppb(message: BoundMessage | None) -> int | None:
    return None if message is None or message.bound_ns is None else message.growth_ppb


def _why(message: BoundMessage | None) -> str:
    return message.reason if message is not None and message.bound_ns is None else ""


def _beyond(outer: Pair, inner: Pair) -> tuple[int | None, int | None]:
    """By how much the bounds of `outer` are wider than those of `inner`."""
    hard_ns, stat_ns = (_difference(*both) for both in zip(outer, inner, strict=True))
    return hard_ns, stat_ns


def _difference(outer: BoundMessage | None, inner: BoundMessage | None) -> int | None:
    if outer is None or inner is None or outer.bound_ns is None or inner.bound_ns is None:
        return None
    return outer.bound_ns - inner.bound_ns


def _bound(message: BoundMessage) -> Bound:
    return Bound(message.bound_ns, message.growth_ppb)


def _by_name(lines: list[BudgetLine]) -> dict[str, dict[str, object]]:
    return {line.name: {"what": line.what, "hard_ns": line.hard_ns, "stat_ns": line.stat_ns} for line in lines}
