"""
Racks, halls and parent clocks whose nodes' path delays changed together: a link was rerouted or is congested. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judgement, chain_step
from timesyncd.findings.fleet_nodes import NodeRecord
from timesyncd.units import duration_text

ID = "rack-path-delay-moved"
Key = tuple[str, str]

#: Nearly all of at least so many nodes; fewer may change by chance.
MIN_NODES = 5
NEARLY_ALL = 0.9

#: A change reaches the hub after each node's delay filter and state interval.
TOGETHER_NS = 15 * NS_PER_S
LASTS_NS = 8 * NS_PER_S

#: While such a share of a larger group has changed, its other nodes may follow: its parts are published only after
#: this.
GROWING = 0.6
GROWS_FOR_NS = 15 * NS_PER_S


@dataclass(frozen=True, slots=True)
class _Moved:
    """
    A group whose path delay changed: the nodes that changed together, since when, from which median and by how much.
    """

    name: str
    nodes: frozenset[str]
    members: int
    since_ns: int
    before_ns: int
    by_ns: int

    @property
    def is_whole(self) -> bool:
        return len(self.nodes) >= NEARLY_ALL * self.members


def judge(nodes: Sequence[NodeRecord], now_ns: int) -> dict[Key, Judgement]:
    """One finding for the largest group, and none for the groups within it; `nodes` are the reporting ones."""
    found: list[_Moved] = []
    growing: list[_Moved] = []
    for moved in sorted(_candidates(nodes), key=lambda moved: -moved.members):
        lasted_ns = now_ns - moved.since_ns
        if any(moved.nodes <= larger.nodes for larger in found):
            continue
        if not moved.is_whole:
            growing.append(moved)
        elif lasted_ns >= LASTS_NS and (lasted_ns >= GROWS_FOR_NS or not _is_within(moved, growing)):
            found.append(moved)
        else:
            growing.append(moved)
    return {(ID, moved.name): _judged(moved) for moved in found}


def _is_within(moved: _Moved, growing: Iterable[_Moved]) -> bool:
    return any(moved.nodes <= larger.nodes for larger in growing)


def _candidates(nodes: Sequence[NodeRecord]) -> list[_Moved]:
    """Groups of which GROWING or more changed in one direction at about one time."""
    known = [node for node in nodes if node.delays.is_known]
    moved = [node for node in known if node.delays.direction]
    if len(moved) < MIN_NODES:
        return []
    by_group: dict[tuple[str, int], list[NodeRecord]] = {}
    for node in moved:
        for group in _groups(node):
            by_group.setdefault((group, node.delays.direction), []).append(node)
    members = Counter(group for node in known for group in _groups(node))
    found = (_together(name, members[name], each) for (name, _), each in by_group.items())
    return [each for each in found if len(each.nodes) >= max(MIN_NODES, GROWING * each.members)]


def _together(name: str, members: int, moved: Sequence[NodeRecord]) -> _Moved:
    since_ns = median_low([node.delays.since_ns for node in moved])
    together = [node for node in moved if abs(node.delays.since_ns - since_ns) <= TOGETHER_NS]
    before_ns = median_low([node.delays.median_ns for node in together])
    by_ns = median_low([node.delays.moved_ns for node in together])
    return _Moved(name, frozenset(node.node for node in together), members, since_ns, before_ns, by_ns)


def _groups(node: NodeRecord) -> list[str]:
    """
    Its rack, the hall around it and so on, and its parent clock. The rack comes first where both have the same nodes.
    """
    places = node.topology.split("/") if node.topology else []
    groups = ["/".join(places[:depth]) for depth in range(len(places), 0, -1)]
    return [*groups, node.parent] if node.parent else groups


def _judged(moved: _Moved) -> Judgement:
    direction, by_ns = ("longer" if moved.by_ns > 0 else "shorter"), duration_text(abs(moved.by_ns))
    after_ns = moved.before_ns + moved.by_ns
    evidence = (
        f"the path delay of {len(moved.nodes)} of {moved.members} nodes became {by_ns} {direction} within "
        f"{2 * TOGETHER_NS // NS_PER_S} s: from {duration_text(moved.before_ns)} "
        f"to {duration_text(after_ns)} (medians)"
    )
    path = chain_step("path-delay-moved", f"the path to {moved.name} is {by_ns} {direction}")
    return Judgement(
        evidence, (path, chain_step("clock-error", f"if only one direction changed, its clocks err by {by_ns}"))
    )
