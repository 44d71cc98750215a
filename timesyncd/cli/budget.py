"""
A node's error budget: the terms of its bounds, their growth, and a forecast without new samples. Pure.

Bounds and terms are in nanoseconds, growth is in nanoseconds a second (1 ppb). `timesyncd explain` prints the budget as
tables and as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from timesyncd.bound import Bound, Rate, Term
from timesyncd.messages.node import OK, BoundMessage, NodeState, SourceState, Status
from timesyncd.units import countdown_text, limit_text

LIMITS_NS = (1_000, 10_000, 100_000, 1_000_000)


class LimitCrossing(NamedTuple):
    """The bound stays within `limit_ns` for another `in_ns`, then exceeds it."""

    limit_ns: int
    in_ns: int


class Forecast(NamedTuple):
    """
    What happens without new samples. `exceeds`: the nearest limit first, only those that the bound exceeds before it
    expires.

    The bound expires in `expires_in_ns`.
    """

    exceeds: tuple[LimitCrossing, ...]
    expires_in_ns: int


def forecast(bound: Bound, age_ns: int, void_after_ns: int, limits_ns: Sequence[int] = LIMITS_NS) -> Forecast | None:
    """The forecast as of `age_ns` after the bound's `as_of_ns`. None: the bound is unknown or has expired."""
    now_ns, expires_in_ns = bound.at(age_ns), void_after_ns - age_ns
    if bound.bound_ns is None or now_ns is None or expires_in_ns <= 0:
        return None
    crossings = []
    for limit_ns in sorted(limits_ns):
        reached_ns = bound.age_at(limit_ns)
        if limit_ns < now_ns or reached_ns is None:
            continue
        in_ns = reached_ns - age_ns
        if in_ns < expires_in_ns:
            crossings.append(LimitCrossing(limit_ns, in_ns))
    return Forecast(tuple(crossings), expires_in_ns)


def forecast_text(expected: Forecast, limits: int = 1) -> str:
    """The next limits, at most so many, and the end: "exceeds 100 us in 4 min 10 s, expires in 16 min"."""
    crossings = [f"{limit_text(each.limit_ns)} in {countdown_text(each.in_ns)}" for each in expected.exceeds[:limits]]
    end = f"expires in {countdown_text(expected.expires_in_ns)}"
    return f"exceeds {', '.join(crossings)}, {end}" if crossings else end


#: The names of the bounds, which are sums of the other lines.
REFERENCES = ("parent", "grandmaster", "UTC")

#: The description of a term that a daemon of a later version publishes.
UNKNOWN_TERM = "term unknown to this version"


class BudgetLine(NamedTuple):
    """
    A term or a sum of the hard and the statistical bound, in ns (growth: ns a second). None: the bound has no such
    term, or the sum is unknown: then `what` is the reason and `reason_code` its code. Otherwise `what` describes the
    line.
    """

    name: str
    what: str
    hard_ns: int | None
    stat_ns: int | None
    reason_code: str = OK


class Selection(StrEnum):
    """
    How a source that knows UTC relates to the others (RFC 5905, section 11.2.1); CONTRADICTED: no majority agrees.
    DEPENDENT: it may share a cause of error with the deciding source, so it narrows nothing.
    """

    TRUECHIMER = "truechimer"
    FALSETICKER = "falseticker"
    CONTRADICTED = "contradicted"
    DEPENDENT = "dependent"


Pair = tuple[BoundMessage | None, BoundMessage | None]
"""The hard and the statistical bound against one reference."""


def term_lines(node: NodeState) -> list[BudgetLine]:
    """The terms that add up to the bounds against the parent, as of the sample."""
    return _lines(node.terms, node.stat_terms, {term: term.description for term in Term})


def growth_lines(node: NodeState) -> list[BudgetLine]:
    """The rates that add up to the growth of the hard parent bound, then the growth of each known bound."""
    sums = []
    for name, (hard, stat) in zip(REFERENCES, _pairs(node), strict=True):
        sums.append(BudgetLine(name, "sum", _growth_ppb(hard), _growth_ppb(stat)))
    return [
        *_lines(node.rates, {}, {rate: rate.description for rate in Rate}),
        *(line for line in sums if line.hard_ns is not None),
    ]


def reference_lines(node: NodeState) -> list[BudgetLine]:
    """
    The bounds against parent, grandmaster and UTC as of the sample, and the terms between one and the next.

    Where several sources make the UTC bound together, it is no sum, so it is omitted.
    If another source than the deciding one knows UTC, the bound is that source's, and no term leads to it.
    """
    parent, gm, utc = _pairs(node)
    clocks, own = _width_beyond(gm, parent), _width_beyond(utc, gm)
    lines = [_sum("parent", parent), _sum("grandmaster", gm)]
    if clocks[0]:
        lines.insert(1, BudgetLine("boundary clocks", _boundary_clocks_from(node), *clocks))
    if len(sources_of_utc(node)) > 1 and (node.utc_narrowed_by or node.sources_contradict or node.falsetickers):
        return lines
    if _deciding(node) in sources_of_utc(node) and own[0] is not None and own[0] >= 0:
        lines.append(BudgetLine("grandmaster's own", "its error against UTC", *own))
    return [*lines, _sum("UTC", utc, _utc_from(node))]


def _boundary_clocks_from(node: NodeState) -> str:
    """One path to the grandmaster shows nothing of the boundary clocks on it; a second one may have refuted the file."""
    views = [each for each in node.sources if each.kind == "ptp" and each.age_ns is not None]
    views = [each for each in views if each.grandmaster_identity == node.grandmaster_identity]
    return "as configured, or as observed" if len(views) > 1 else "as configured; nothing checks it"


def current_bound_lines(node: NodeState) -> list[BudgetLine]:
    """
    The bounds against parent, grandmaster and UTC at this moment; unknown where the status is UNKNOWN or DISRUPTED.
    """
    parent, gm, utc = _pairs(node)
    return [
        _now("parent", parent, _parent_status(node), node.age_ns),
        _now("grandmaster", gm, node.status, node.age_ns),
        _now("UTC", utc, node.utc_status, node.age_ns, _utc_from(node)),
    ]


def _now(name: str, pair: Pair, status: Status, age_ns: int | None, what: str = "") -> BudgetLine:
    hard_ns, stat_ns = (current_bound_ns(message, status, age_ns) for message in pair)
    return _bound_line(name, pair, hard_ns, stat_ns, what)


def _parent_status(node: NodeState) -> Status:
    """The status against the parent: `node.status` is that against the grandmaster, which may be unknown alone."""
    if node.status != "UNKNOWN" or node.gm is None or node.gm.bound_ns is not None:
        return node.status
    return "HOLDOVER" if (node.age_ns or 0) < node.void_after_ns else "UNKNOWN"


def _utc_from(node: NodeState) -> str:
    """The sources of the UTC bound, unless it is the deciding source alone."""
    sources = sources_of_utc(node)
    if len(sources) > 1 and node.sources_contradict:
        return "whichever source is right"
    if names := ", ".join(node.utc_narrowed_by):
        return f"narrowed by {names}" if knows_own_utc(node) else f"from {names}"
    return f"from {sources[0].name}" if len(sources) == 1 and sources[0] is not _deciding(node) else ""


def knows_own_utc(node: NodeState) -> bool:
    """Whether the source that decides against the grandmaster bounds UTC by itself."""
    return _deciding(node) in sources_of_utc(node)


def _deciding(node: NodeState) -> SourceState | None:
    """
    The PTP source whose bounds against parent and grandmaster are the node's: the first whose sample has not expired.
    """
    measured = (source for source in node.sources if source.kind == "ptp" and source.age_ns is not None)
    return next((source for source in measured if (source.age_ns or 0) < node.void_after_ns), None)


def sources_of_utc(node: NodeState) -> list[SourceState]:
    """Those that bound UTC by themselves, by samples that have not expired."""
    return [source for source in node.sources if knows_utc(source, node)]


def knows_utc(source: SourceState, node: NodeState) -> bool:
    """Whether this source bounds UTC by itself, by a sample that has not expired."""
    if source.utc is None or source.utc.bound_ns is None or source.age_ns is None:
        return False
    return source.age_ns < node.void_after_ns


def current_bound_ns(message: BoundMessage | None, status: Status, age_ns: int | None) -> int | None:
    """The bound at this age, in ns; None if it is unknown, or if the status is UNKNOWN or DISRUPTED."""
    if message is None or age_ns is None or status in ("UNKNOWN", "DISRUPTED"):
        return None
    return _bound(message).at(age_ns)


def node_forecast(node: NodeState, limits_ns: Sequence[int] = LIMITS_NS) -> Forecast | None:
    """The forecast of the node's main bound."""
    message = node.main_bound
    if message is None or node.age_ns is None or current_bound_ns(message, node.main_status, node.age_ns) is None:
        return None
    return forecast(_bound(message), node.age_ns, node.void_after_ns, limits_ns)


def node_forecast_text(node: NodeState, limit_ns: int | None) -> str | None:
    """The next limit and the end in words, as the page has them. `limit_ns` None: no limit is configured, so the next power of ten."""
    expected = node_forecast(node, LIMITS_NS if limit_ns is None else (limit_ns,))
    if expected is None or limit_ns is None:
        return None if expected is None else forecast_text(expected)
    now_ns = current_bound_ns(node.main_bound, node.main_status, node.age_ns)
    if now_ns is not None and now_ns > limit_ns:
        return f"above the limit of {limit_text(limit_ns)}, {forecast_text(expected)}"
    return forecast_text(expected).replace("exceeds ", "exceeds the limit of ", 1)


def selection_of(source: SourceState, node: NodeState) -> Selection | None:
    """None: the source does not know UTC, or no other source does."""
    if source.name in node.falsetickers:
        return Selection.FALSETICKER
    if not knows_utc(source, node) or len(sources_of_utc(node)) < 2:
        return None
    if node.sources_contradict:
        return Selection.CONTRADICTED
    return Selection.DEPENDENT if source.name in node.utc_dependent else Selection.TRUECHIMER


def as_json(node: NodeState) -> dict[str, object]:
    """Integer nanoseconds, under the names of the node's message."""
    expected = node_forecast(node)
    return {
        "node": node.node,
        "status": node.status,
        "utc_status": node.utc_status,
        "reason": node.reason,
        "reason_code": node.reason_code,
        "age_ns": node.age_ns,
        "terms": _by_name(term_lines(node)),
        "references": _by_name(reference_lines(node)),
        "growth_each_second": _by_name(growth_lines(node)),
        "now": _by_name(current_bound_lines(node)),
        "forecast": None
        if expected is None
        else {"exceeds": [each._asdict() for each in expected.exceeds], "expires_in_ns": expected.expires_in_ns},
        "falsetickers": node.falsetickers,
        "sources_contradict": node.sources_contradict,
        "utc_narrowed_by": node.utc_narrowed_by,
        "utc_dependent": node.utc_dependent,
        "sources": [source.model_dump(mode="json") for source in node.sources],
    }


def _pairs(node: NodeState) -> tuple[Pair, Pair, Pair]:
    """The pairs for parent, grandmaster and UTC."""
    return (node.parent, node.parent_stat), (node.gm, node.gm_stat), (node.utc, node.utc_stat)


def _lines(hard: Mapping[str, int], stat: Mapping[str, int], descriptions: Mapping[str, str]) -> list[BudgetLine]:
    """Terms in the order of their descriptions, then those that have none."""
    names = [name for name in dict.fromkeys((*descriptions, *hard, *stat)) if name in hard or name in stat]
    return [BudgetLine(name, descriptions.get(name, UNKNOWN_TERM), hard.get(name), stat.get(name)) for name in names]


def _sum(name: str, pair: Pair, what: str = "") -> BudgetLine:
    hard_ns, stat_ns = (None if message is None else message.bound_ns for message in pair)
    return _bound_line(name, pair, hard_ns, stat_ns, what)


def _bound_line(name: str, pair: Pair, hard_ns: int | None, stat_ns: int | None, what: str) -> BudgetLine:
    """The reason of an unknown bound takes the place of `what`."""
    hard, _ = pair
    if hard is None or hard.bound_ns is not None:
        return BudgetLine(name, what, hard_ns, stat_ns)
    return BudgetLine(name, hard.reason or what, hard_ns, stat_ns, hard.reason_code)


def _growth_ppb(message: BoundMessage | None) -> int | None:
    return None if message is None or message.bound_ns is None else message.growth_ppb


def _width_beyond(outer: Pair, inner: Pair) -> tuple[int | None, int | None]:
    """By how many ns the bounds of `outer` exceed those of `inner`; None where one of them is unknown."""
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
