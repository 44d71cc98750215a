"""Nodes that listen to what hardly anybody else listens to: another PTP domain, a grandmaster that nobody knows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from timesyncd.findings.catalogue import Judged
from timesyncd.findings.fleet_nodes import NodeRecord
from timesyncd.findings.text import names_text

DOMAIN = "node-other-domain"
GRANDMASTER = "node-other-grandmaster"
Key = tuple[str, str]

#: With fewer nodes nothing is the usual thing.
MIN_NODES = 5
MOST = 0.8
FEW_SHARE = 0.1
FEW_NODES = 3


def few(nodes: int) -> int:
    """So many of so many nodes are hardly any."""
    return max(1, min(FEW_NODES, nodes // 5))


def other_domains(nodes: Sequence[NodeRecord]) -> dict[Key, Judged]:
    """Against the nodes under one grandmaster, in one rack, and against the whole fleet."""
    if len({node.domains for node in nodes if node.domains}) < 2:
        return {}
    groups: dict[str, list[NodeRecord]] = {}
    for node in nodes:
        if node.domains:
            groups.setdefault("the fleet", []).append(node)
            if node.topology:
                groups.setdefault(node.topology, []).append(node)
            for grandmaster in node.heard:
                groups.setdefault(f"those under {grandmaster}", []).append(node)
    found: dict[Key, Judged] = {}
    for name, members in groups.items():
        if len(members) >= MIN_NODES:
            for node, domain, usual, count in _strangers(members):
                found.setdefault(
                    (DOMAIN, node.node), _of_domain(node, domain, usual, f"{count} of {len(members)} nodes of {name}")
                )
    return found


def _strangers(members: Sequence[NodeRecord]) -> Iterator[tuple[NodeRecord, int, int, int]]:
    """Who is in a domain of hardly anybody where most have one in common: (node, its domain, the common one, of how many)."""
    counts = Counter(domain for node in members for domain in node.domains)
    if len(counts) < 2:
        return
    usual, count = counts.most_common(1)[0]
    odd = {domain for domain, nodes in counts.items() if nodes <= few(len(members))}
    if count < MOST * len(members) or not odd:
        return
    for node in members:
        for domain in node.domains:
            if domain in odd:
                yield node, domain, usual, count


def _of_domain(node: NodeRecord, domain: int, usual: int, others: str) -> Judged:
    heard = f", and hears {names_text(node.heard)} there" if node.heard else ""
    return Judged(f"in PTP domain {domain}{heard}; {others} are in {usual}")


class OtherGrandmasters:
    """Remembers which grandmasters many nodes followed: one of these is no stranger when few still do."""

    def __init__(self) -> None:
        self._usual: set[str] = set()

    def judge(self, nodes: Sequence[NodeRecord], known: Collection[str]) -> dict[Key, Judged]:
        """`known` are the identities of the units; who listens to a stranger is told by the stranger's identity."""
        counts = Counter(identity for node in nodes for identity in node.heard)
        listening = sum(1 for node in nodes if node.heard)
        # Without a unit to go by one or two nodes on a spare grandmaster are all that can be told from a design.
        most = max(few(listening), int(FEW_SHARE * listening)) if known else few(listening)
        self._usual |= {identity for identity, count in counts.items() if count > most}
        if listening < MIN_NODES:
            return {}
        strangers = {identity for identity in counts if identity not in known and identity not in self._usual}
        if not strangers:
            return {}
        followers: dict[str, list[str]] = {identity: [] for identity in strangers}
        for node in nodes:
            for identity in strangers.intersection(node.heard):
                followers[identity].append(node.node)
        return {
            (GRANDMASTER, identity): Judged(
                f"followed by {names_text(names)}: {len(names)} of {listening} nodes; no [[grandmaster]] has this identity"
            )
            for identity, names in followers.items()
        }
