"""
A grandmaster that all its followers contradict by what else they know: UTC from NTP, other grandmasters. Pure.

Nodes that listen to what hardly anybody else listens to: another PTP domain, a grandmaster that nobody knows. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from timesyncd.findings.catalogue import Judgement, Step
from timesyncd.findings.fleet_nodes import UTC, NodeRecord
from timesyncd.findings.text import names_text
from timesyncd.units import duration_text

ID = "grandmaster-outvoted"
Key = tuple[str, str]

#: Two nodes may share a fault; of many a few may have one of their own.
MIN_WITNESSES = 3
NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class _Vote:
    """What `witnesses` nodes say of a grandmaster against one other reference: the medians; `beyond` of them are beyond their error."""

    other: str
    offset_ns: int
    error_ns: int
    witnesses: int
    beyond: int

    @property
    def contradicts(self) -> bool:
        return self.beyond >= NEARLY_ALL * self.witnesses

    def agrees(self, error_ns: int) -> bool:
        """It would have seen this error, and sees none."""
        return self.beyond == 0 and abs(self.offset_ns) + self.error_ns < error_ns


Votes = Mapping[str, Sequence[_Vote]]
"""By a grandmaster's identity."""


def judge(nodes: Sequence[NodeRecord], name_of: Callable[[str], str]) -> dict[Key, Judgement]:
    """`name_of` gives a grandmaster's name for an identity that it has, else the identity."""
    if sum(node.contradicts for node in nodes) < MIN_WITNESSES:
        return {}
    votes = _votes(nodes)
    outvoted = {identity: against for identity in votes if (against := _against(identity, votes))}
    followers: dict[str, list[str]] = {identity: [] for identity in outvoted}
    for node in nodes if outvoted else []:
        if node.grandmaster in followers:
            followers[node.grandmaster].append(node.node)
    return {
        (ID, name_of(identity)): _judged(against, followers[identity], name_of)
        for identity, against in outvoted.items()
    }


def _votes(nodes: Iterable[NodeRecord]) -> Votes:
    claims: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for node in nodes:
        for grandmaster, other, offset_ns, error_ns in node.witnesses:
            claims.setdefault((grandmaster, other), []).append((offset_ns, error_ns))
    votes: dict[str, list[_Vote]] = {}
    for (grandmaster, other), each in claims.items():
        if len(each) >= MIN_WITNESSES:
            votes.setdefault(grandmaster, []).append(_vote(other, each))
    return votes


def _vote(other: str, claims: Sequence[tuple[int, int]]) -> _Vote:
    ahead = sum(offset_ns > error_ns for offset_ns, error_ns in claims)
    behind = sum(offset_ns < -error_ns for offset_ns, error_ns in claims)
    offset_ns = median_low([offset_ns for offset_ns, _ in claims])
    return _Vote(other, offset_ns, median_low([error_ns for _, error_ns in claims]), len(claims), max(ahead, behind))


def _against(identity: str, votes: Votes) -> list[_Vote]:
    """
    The votes against a grandmaster; none where they prove nothing: one other grandmaster against it is a disagreement of two, and UTC
    against all grandmasters is NTP's error as well as theirs.
    """
    against = [vote for vote in votes[identity] if vote.contradicts]
    if not against:
        return []
    error_ns = min(abs(vote.offset_ns) for vote in against)
    if any(vote.agrees(error_ns) for vote in votes[identity]):
        return []
    others = [vote for vote in against if vote.other != UTC]
    if len(others) >= 2 or (others and len(against) > len(others)):
        return against
    return against if not others and not _is_ntp_alone(identity, votes) else []


def _is_ntp_alone(identity: str, votes: Votes) -> bool:
    """Every other grandmaster of which is parts is contradicted by UTC as well, and in the same way."""
    own = next(vote for vote in votes[identity] if vote.other == UTC)
    by_utc = [vote for other, each in votes.items() if other != identity for vote in each if vote.other == UTC]
    return bool(by_utc) and all(vote.contradicts and vote.offset_ns * own.offset_ns > 0 for vote in by_utc)


def _judged(against: Sequence[_Vote], followers: Sequence[str], name_of: Callable[[str], str]) -> Judgement:
    parts = []
    for vote in against:
        way = "ahead of" if vote.offset_ns > 0 else "behind"
        other = UTC if vote.other == UTC else name_of(vote.other)
        parts.append(
            f"{duration_text(abs(vote.offset_ns))} {way} {other} by {vote.beyond} of {vote.witnesses} nodes, whose bounds explain "
            f"{duration_text(vote.error_ns)}"
        )
    evidence = "; ".join(parts)
    if not followers:
        return Judgement(evidence)
    consequence = f"{names_text(followers)}: their clocks follow it, and their UTC bound does not hold"
    return Judgement(evidence, (Step(ID, evidence), Step("utc-bound-broken", consequence)))


DOMAIN = "node-other-domain"
GRANDMASTER = "node-other-grandmaster"

#: With fewer nodes nothing is the usual thing.
MIN_NODES = 5
MOST = 0.8
FEW_SHARE = 0.1
FEW_NODES = 3


def few(nodes: int) -> int:
    """So many of so many nodes are hardly any."""
    return max(1, min(FEW_NODES, nodes // 5))


def other_domains(nodes: Sequence[NodeRecord]) -> dict[Key, Judgement]:
    """Against the nodes under one grandmaster, in one rack, and against the whole fleet."""
    if len({node.domains for node in nodes if node.domains}) < 2:
        return {}
    groups: dict[str, list[NodeRecord]] = {}
    for node in nodes:
        if node.domains:
            groups.setdefault("the fleet", []).append(node)
            if node.topology:
                groups.setdefault(node.topology, []).append(node)
            for grandmaster in node.grandmasters:
                groups.setdefault(f"the followers of {grandmaster}", []).append(node)
    found: dict[Key, Judgement] = {}
    for name, members in groups.items():
        if len(members) >= MIN_NODES:
            for node, domain, usual, count in _outsiders(members):
                found.setdefault(
                    (DOMAIN, node.node), _of_domain(node, domain, usual, f"{count} of {len(members)} nodes of {name}")
                )
    return found


def _outsiders(members: Sequence[NodeRecord]) -> Iterator[tuple[NodeRecord, int, int, int]]:
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


def _of_domain(node: NodeRecord, domain: int, usual: int, others: str) -> Judgement:
    received = f", where it receives {names_text(node.grandmasters)}" if node.grandmasters else ""
    return Judgement(f"in PTP domain {domain}{received}; {others} are in {usual}")


class OtherGrandmasters:
    """Remembers which grandmasters many nodes followed: one of these is no stranger when few still do."""

    def __init__(self) -> None:
        self._usual: set[str] = set()

    def judge(self, nodes: Sequence[NodeRecord], known: Collection[str]) -> dict[Key, Judgement]:
        """`known` are the identities of the grandmasters; who listens to a stranger is parts by the stranger's identity."""
        counts = Counter(identity for node in nodes for identity in node.grandmasters)
        listening = sum(1 for node in nodes if node.grandmasters)
        # Without a grandmaster to go by one or two nodes on a spare grandmaster are all that can be parts from a design.
        most = max(few(listening), int(FEW_SHARE * listening)) if known else few(listening)
        self._usual |= {identity for identity, count in counts.items() if count > most}
        if listening < MIN_NODES:
            return {}
        unknown_ids = {identity for identity in counts if identity not in known and identity not in self._usual}
        if not unknown_ids:
            return {}
        followers: dict[str, list[str]] = {identity: [] for identity in unknown_ids}
        for node in nodes:
            for identity in unknown_ids.intersection(node.grandmasters):
                followers[identity].append(node.node)
        return {
            (GRANDMASTER, identity): Judgement(
                f"followed by {names_text(names)}: {len(names)} of {listening} nodes; no [[grandmaster]] has this identity"
            )
            for identity, names in followers.items()
        }
