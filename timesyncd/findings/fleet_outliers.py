"""
Outliers of the fleet. Pure.

`judge` finds a grandmaster that its followers' other references (UTC by NTP, other grandmasters) contradict.
`other_domains` and `OtherGrandmasters` find the few nodes that are in another PTP domain, or follow a grandmaster that
is not configured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from timesyncd.findings.catalogue import Judgement, chain_step
from timesyncd.findings.fleet_nodes import UTC, NodeRecord
from timesyncd.findings.text import names_text
from timesyncd.units import duration_text

ID = "grandmaster-outvoted"
Key = tuple[str, str]

#: Two nodes may share a fault; of many nodes a few may each have one.
MIN_WITNESSES = 3
NEARLY_ALL = 0.9


@dataclass(frozen=True, slots=True)
class _Vote:
    """
    A grandmaster against one other reference, by the medians of `witnesses` nodes; `beyond` of them contradict beyond
    their error.
    """

    other: str
    offset_ns: int
    error_ns: int
    witnesses: int
    beyond: int

    @property
    def contradicts(self) -> bool:
        return self.beyond >= NEARLY_ALL * self.witnesses

    def agrees(self, error_ns: int) -> bool:
        """Its error is small enough to show this error, and it shows none."""
        return self.beyond == 0 and abs(self.offset_ns) + self.error_ns < error_ns


Votes = Mapping[str, Sequence[_Vote]]
"""By a grandmaster's identity."""


def judge(nodes: Sequence[NodeRecord], name_of: Callable[[str], str]) -> dict[Key, Judgement]:
    """`name_of` gives the configured name of an identity, else the identity."""
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
    The votes that contradict a grandmaster; [] where they prove nothing: with one other grandmaster, either of the two
    may be wrong, and UTC against all grandmasters may be NTP's error.
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
    """UTC contradicts every other known grandmaster too, in the same direction."""
    own = next(vote for vote in votes[identity] if vote.other == UTC)
    by_utc = [vote for other, each in votes.items() if other != identity for vote in each if vote.other == UTC]
    return bool(by_utc) and all(vote.contradicts and vote.offset_ns * own.offset_ns > 0 for vote in by_utc)


def _judged(against: Sequence[_Vote], followers: Sequence[str], name_of: Callable[[str], str]) -> Judgement:
    parts = []
    for vote in against:
        direction = "ahead of" if vote.offset_ns > 0 else "behind"
        other = UTC if vote.other == UTC else name_of(vote.other)
        parts.append(
            f"{duration_text(abs(vote.offset_ns))} {direction} {other} by {vote.beyond} of {vote.witnesses} "
            f"nodes, whose bounds explain "
            f"{duration_text(vote.error_ns)}"
        )
    evidence = "; ".join(parts)
    if not followers:
        return Judgement(evidence)
    consequence = f"{names_text(followers)}: their clocks follow it, and their UTC bound does not hold"
    return Judgement(evidence, (chain_step(ID, evidence), chain_step("utc-bound-broken", consequence)))


DOMAIN = "node-other-domain"
GRANDMASTER = "node-other-grandmaster"

#: With fewer nodes there is no majority to compare with.
MIN_NODES = 5
MOST = 0.8
FEW_SHARE = 0.1
FEW_NODES = 3


def max_outliers(nodes: int) -> int:
    """The largest number of nodes, of so many, that counts as outliers."""
    return max(1, min(FEW_NODES, nodes // 5))


def other_domains(nodes: Sequence[NodeRecord]) -> dict[Key, Judgement]:
    """Compares the nodes that follow one grandmaster, those in one rack, and the whole fleet."""
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
    """Nodes in a domain of few nodes where most share another: (node, its domain, the common domain, nodes in it)."""
    counts = Counter(domain for node in members for domain in node.domains)
    if len(counts) < 2:
        return
    usual, count = counts.most_common(1)[0]
    odd = {domain for domain, nodes in counts.items() if nodes <= max_outliers(len(members))}
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
    """Remembers the grandmasters that many nodes followed: they are no outliers when few nodes still follow them."""

    def __init__(self) -> None:
        self._usual: set[str] = set()

    def judge(self, nodes: Sequence[NodeRecord], known: Collection[str]) -> dict[Key, Judgement]:
        """`known` are the configured identities. The subject of a finding is the identity that is not configured."""
        counts = Counter(identity for node in nodes for identity in node.grandmasters)
        following = sum(1 for node in nodes if node.grandmasters)
        # Without a configured grandmaster only one or two nodes differ from a deliberate design.
        most = max(max_outliers(following), int(FEW_SHARE * following)) if known else max_outliers(following)
        self._usual |= {identity for identity, count in counts.items() if count > most}
        if following < MIN_NODES:
            return {}
        unconfigured = {identity for identity in counts if identity not in known and identity not in self._usual}
        if not unconfigured:
            return {}
        followers: dict[str, list[str]] = {identity: [] for identity in unconfigured}
        for node in nodes:
            for identity in unconfigured.intersection(node.grandmasters):
                followers[identity].append(node.node)
        return {
            (GRANDMASTER, identity): Judgement(
                f"followed by {names_text(names)}: {len(names)} of {following} nodes; no [[grandmaster]] has this "
                f"identity"
            )
            for identity, names in followers.items()
        }
