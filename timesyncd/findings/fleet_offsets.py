"""
A node whose offset jumps alone: its siblings' offsets separate a jump of the grandmaster from one of the node. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judgement
from timesyncd.findings.fleet_nodes import SIGMA_PER_MAD, NodeRecord
from timesyncd.units import duration_text

ID = "node-offset-alone"
Key = tuple[str, str]
Group = tuple[str, str]
"""How siblings belong together ("behind", "under", "in"), and the name of what they share."""

#: With fewer siblings it is undecidable which node moved.
MIN_NODES = 5

SIGMAS = 8

#: More nodes than this at once, and more than a tenth of the group, have a common cause.
MAX_AT_ONCE = 3
AT_ONCE_NS = 60 * NS_PER_S

#: After a common cause each node's servo settles at its own pace.
SETTLES_WITHIN_NS = 120 * NS_PER_S


@dataclass(frozen=True, slots=True)
class _Usual:
    """A group's median offset and median error; half of the offsets are within `spread_ns` of the median."""

    offset_ns: int
    spread_ns: int
    error_ns: int
    nodes: int

    def allowed_ns(self, node: NodeRecord) -> int:
        """What noise and the bounds of both sides explain."""
        return max(int(SIGMAS * SIGMA_PER_MAD * self.spread_ns), node.error_ns + self.error_ns)


class LoneOffsets:
    """Judges the reporting nodes once a round; each offset counts once."""

    def __init__(self) -> None:
        self._unsettled: dict[Group, int] = {}

    def judge(self, nodes: Iterable[NodeRecord], now_ns: int) -> dict[Key, Judgement]:
        self._unsettled = {group: until_ns for group, until_ns in self._unsettled.items() if now_ns < until_ns}
        judged: dict[Key, Judgement] = {}
        for group, members in _groups(nodes).items():
            usual = _usual(members)
            suspects = list(self._suspects(group, members, usual, now_ns))
            recent = [node for node in suspects if now_ns - node.offsets.since_ns < AT_ONCE_NS]
            if sum(node.offsets.is_beyond_chance for node in recent) > max(1, min(MAX_AT_ONCE, len(members) // 10)):
                self._unsettled[group] = now_ns + SETTLES_WITHIN_NS
                for node in recent:
                    node.offsets.clear()
            judged |= {
                (ID, node.node): _judgement(node, usual, group) for node in suspects if node.offsets.is_alone(now_ns)
            }
        return judged

    def _suspects(
        self, group: Group, members: Sequence[NodeRecord], usual: _Usual, now_ns: int
    ) -> Iterator[NodeRecord]:
        is_settled = group not in self._unsettled
        for node in members:
            if node.is_new and node.offset_ns is not None and is_settled:
                node.offsets.update(node.offset_ns - usual.offset_ns, usual.allowed_ns(node), now_ns)
            node.is_new = False
            if node.offsets.suspect:
                yield node


def _groups(nodes: Iterable[NodeRecord]) -> dict[Group, list[NodeRecord]]:
    """By parent clock where it has enough nodes, else by grandmaster, else by rack; a node is in at most one group."""
    measured = [node for node in nodes if node.offset_ns is not None]
    parents = Counter(node.parent for node in measured)
    grandmasters = Counter(node.grandmaster for node in measured)
    found: dict[Group, list[NodeRecord]] = {}
    for node in measured:
        if node.parent and parents[node.parent] >= MIN_NODES:
            group = ("behind", node.parent)
        elif node.grandmaster and grandmasters[node.grandmaster] >= MIN_NODES:
            group = ("under", node.grandmaster)
        else:
            group = ("in", node.topology)
        found.setdefault(group, []).append(node)
    return {group: members for group, members in found.items() if len(members) >= MIN_NODES and group[1]}


def _usual(members: Sequence[NodeRecord]) -> _Usual:
    offsets = [node.offset_ns for node in members if node.offset_ns is not None]
    offset_ns = int(median(offsets))
    spread_ns = int(median([abs(each - offset_ns) for each in offsets]))
    return _Usual(offset_ns, spread_ns, int(median([node.error_ns for node in members])), len(members))


def _judgement(node: NodeRecord, usual: _Usual, group: Group) -> Judgement:
    history, (where, name) = node.offsets, group
    direction = "ahead of" if history.least_ns > 0 else "behind"
    return Judgement(
        f"at least {duration_text(abs(history.least_ns))} {direction} the median of {usual.nodes} nodes {where} "
        f"{name} in each of "
        f"{history.suspect} readings; half of these nodes are within {duration_text(usual.spread_ns)} of it, "
        f"the node was within {duration_text(history.usual_ns)}, and the bounds explain "
        f"{duration_text(usual.allowed_ns(node))}"
    )
