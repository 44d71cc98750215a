"""
Findings that need the states of many nodes. Pure: time is an argument.

A node's offset may jump alone: its siblings' offsets separate a jump of the grandmaster from one of the node. The path
delays of a rack, a hall or a parent clock may change together: a link was rerouted or is congested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from timesyncd.clocks import NS_PER_S
from timesyncd.findings import fleet_outliers
from timesyncd.findings.catalogue import Judgement, chain_step
from timesyncd.findings.fleet_nodes import NodeRecord
from timesyncd.findings.fleet_outliers import DOMAIN, GRANDMASTER, OtherGrandmasters, other_domains
from timesyncd.findings.followers import identities
from timesyncd.findings.text import names_text, utc_text
from timesyncd.fleet.node_clock import SILENT_AFTER_NS, silent_after_ns
from timesyncd.messages.node import GrandmasterState, NodeState, RepeatedState
from timesyncd.units import SIGMA_PER_MAD, duration_text, span_text

MISSING = "hub-nodes-missing"
#: The subject of findings that concern the whole fleet.
FLEET = "fleet"

Key = tuple[str, str]

#: A finding must hold for so long before it is published: nodes change over one after the other.
AFTER_NS = {fleet_outliers.ID: 10 * NS_PER_S, DOMAIN: 15 * NS_PER_S, GRANDMASTER: 15 * NS_PER_S}

#: A published finding ends when it has not held for so long.
ENDS_AFTER_NS = 10 * NS_PER_S

#: When no node is reporting, the hub or its broker is cut off; that has its own finding for this long.
CUT_OFF_FOR_NS = 60 * NS_PER_S

#: A node that is not in hub.nodes is removed so long after its last state.
EXPIRES_AFTER_NS = 3_600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class _Lasting:
    """A judgement that held in each round from `since_ns` to `seen_ns`."""

    since_ns: int
    seen_ns: int
    judgement: Judgement

    def is_published(self, id: str) -> bool:
        return self.seen_ns - self.since_ns >= AFTER_NS.get(id, 0)


class FleetFindings:
    """
    `expected` are the nodes in hub.nodes; `own` is the hub's own node, whose state needs no broker. `owns` tells the nodes
    of this hub's share; None: all.
    """

    def __init__(self, expected: Collection[str] = (), own: str = "") -> None:
        self._expected = frozenset(expected)
        self._own = own
        self.owns: Callable[[str], bool] | None = None
        self._nodes: dict[str, NodeRecord] = {}
        self._silent_after_ns: dict[str, int] = {}
        self._lone_offsets = LoneOffsets()
        self._other_grandmasters = OtherGrandmasters()
        self._lasting: dict[Key, _Lasting] = {}
        self._receiving_since_ns = 0
        self._judged_ns: int | None = None

    def add(self, state: NodeState, received_boottime_ns: int) -> None:
        """Take in a live state that is newer than all earlier ones of its node."""
        record = self._nodes.get(state.node)
        if record is None:
            record = self._nodes[state.node] = NodeRecord(state.node)
        record.update(state, received_boottime_ns)

    def repeat(self, state: RepeatedState, received_boottime_ns: int) -> None:
        """The next state of a node, which differs from its last one in these numbers alone."""
        self._nodes[state.node].repeat(state.published_realtime_ns, received_boottime_ns)

    def forget(self, node: str) -> None:
        """Another hub judges this node from now on."""
        self._nodes.pop(node, None)

    def compact(self) -> None:
        """After many nodes were removed: a dict keeps the room of its most entries."""
        self._nodes = dict(self._nodes)

    def __contains__(self, node: str) -> bool:
        """Whether the node has a live state."""
        return node in self._nodes

    def add_last_known(self, state: NodeState) -> None:
        """Take in a retained copy: its state interval decides how long to wait for the node's first live state."""
        if state.node in self._expected:
            self._silent_after_ns[state.node] = silent_after_ns(state)

    def judge(
        self, grandmasters: Sequence[GrandmasterState], now_boottime_ns: int, now_realtime_ns: int
    ) -> dict[Key, Judgement]:
        """
        What holds now, by (id, subject). To be called every few seconds. `grandmasters` are those that any daemon
        polls.
        """
        self._begin_round(now_boottime_ns)
        live = [node for node in self._nodes.values() if not node.is_silent(now_boottime_ns)]
        found = self._folded(self._found(live, grandmasters, now_boottime_ns) | self._missing(now_boottime_ns))
        self._update_lasting(found, now_boottime_ns)
        return {
            key: _dated(lasting.judgement, now_realtime_ns - (now_boottime_ns - lasting.since_ns), now_realtime_ns)
            for key, lasting in self._lasting.items()
            if lasting.is_published(key[0])
        }

    def _begin_round(self, now_ns: int) -> None:
        """After a pause of the hub itself, nodes have the same time to report as after its start."""
        if self._judged_ns is None or now_ns - self._judged_ns > SILENT_AFTER_NS:
            self._receiving_since_ns = now_ns
        self._judged_ns = now_ns
        gone = [
            n.node for n in self._nodes.values() if n.is_silent(now_ns) and now_ns - n.received_ns > EXPIRES_AFTER_NS
        ]
        for name in set(gone) - self._expected:
            del self._nodes[name]

    def _found(
        self, live: Sequence[NodeRecord], grandmasters: Sequence[GrandmasterState], now_ns: int
    ) -> dict[Key, Judgement]:
        names = {identity: grandmaster.name for grandmaster in grandmasters for identity in identities(grandmaster)}
        found = self._lone_offsets.judge(live, now_ns)
        found |= moved_together(live, now_ns)
        found |= fleet_outliers.judge(live, lambda identity: names.get(identity, identity))
        found |= other_domains(live)
        return found | self._other_grandmasters.judge(live, names.keys())

    def _missing(self, now_ns: int) -> dict[Key, Judgement]:
        """The expected nodes that never reported, or stopped reporting, since this hub receives states."""
        if now_ns - self._receiving_since_ns <= SILENT_AFTER_NS:
            return {}
        expected = [name for name in self._expected if self.owns is None or self.owns(name)]
        missing = sorted(name for name in expected if name != self._own and self._is_silent(name, now_ns))
        if not missing:
            return {}
        received = {name: node.received_ns for name, node in self._nodes.items() if name != self._own}
        newest_ns = max(received.values(), default=self._receiving_since_ns)
        is_cut_off = now_ns - newest_ns > SILENT_AFTER_NS
        if is_cut_off and now_ns - max(newest_ns, self._receiving_since_ns) < CUT_OFF_FOR_NS:
            return {}
        never = [name for name in missing if name not in received]
        silent = [f"{name} for {span_text(now_ns - received[name])}" for name in missing if name in received]
        parts = [f"never reported: {names_text(never)}"] if never else []
        parts += [f"silent: {names_text(silent)}"] if silent else []
        all_silent = "; no node is reporting" if is_cut_off else ""
        evidence = f"{len(missing)} of {len(expected)} expected nodes: {'; '.join(parts)}{all_silent}"
        return {(MISSING, FLEET): Judgement(evidence)}

    def _is_silent(self, name: str, now_ns: int) -> bool:
        node = self._nodes.get(name)
        if node is None:
            return now_ns - self._receiving_since_ns > self._silent_after_ns.get(name, SILENT_AFTER_NS)
        return now_ns - max(node.received_ns, self._receiving_since_ns) > node.silent_after_ns

    def _folded(self, found: dict[Key, Judgement]) -> dict[Key, Judgement]:
        """
        One cause is one finding: in another domain, or under an unknown grandmaster, a node's other findings follow
        from that.
        """
        apart = {subject for id, subject in found if id == DOMAIN}
        unconfigured = [subject for id, subject in found if id == GRANDMASTER]
        for identity in unconfigured:
            followers = {node.node for node in self._nodes.values() if identity in node.grandmasters}
            judgement, outvoted = found[GRANDMASTER, identity], found.pop((fleet_outliers.ID, identity), None)
            if followers <= apart:
                del found[GRANDMASTER, identity]
            elif outvoted:
                steps = (
                    chain_step(GRANDMASTER, judgement.evidence),
                    chain_step(fleet_outliers.ID, f"it is {outvoted.evidence}"),
                )
                found[GRANDMASTER, identity] = replace(judgement, chain=steps)
            apart |= followers
        return {key: judgement for key, judgement in found.items() if key[0] != ALONE or key[1] not in apart}

    def _update_lasting(self, found: dict[Key, Judgement], now_ns: int) -> None:
        """One round in which a published finding does not hold does not end it."""
        lingering = {
            key: lasting
            for key, lasting in self._lasting.items()
            if key not in found and lasting.is_published(key[0]) and now_ns - lasting.seen_ns < ENDS_AFTER_NS
        }
        begun = {key: self._lasting[key].since_ns if key in self._lasting else now_ns for key in found}
        self._lasting = lingering | {key: _Lasting(begun[key], now_ns, judgement) for key, judgement in found.items()}


def _dated(judgement: Judgement, since_ns: int, now_ns: int) -> Judgement:
    return replace(judgement, evidence=f"{judgement.evidence}; since {utc_text(since_ns, now_ns)}")


def without_duplicates(
    of_grandmasters: Mapping[Key, Judgement], of_fleet: Mapping[Key, Judgement]
) -> dict[Key, Judgement]:
    """Both together, without a disagreement of two grandmasters where the fleet's findings name the wrong one."""
    wrong = {subject for id, subject in of_fleet if id == fleet_outliers.ID}
    return {
        key: judgement
        for key, judgement in of_grandmasters.items()
        if key[0] != "grandmasters-disagree" or wrong.isdisjoint(key[1].split(", "))
    } | dict(of_fleet)


DELAYS_MOVED = "rack-path-delay-moved"

#: Nearly all of at least so many nodes; fewer may change by chance.
MIN_MOVED_NODES = 5
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


def moved_together(nodes: Sequence[NodeRecord], now_ns: int) -> dict[Key, Judgement]:
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
    return {(DELAYS_MOVED, moved.name): _moved_judgement(moved) for moved in found}


def _is_within(moved: _Moved, growing: Iterable[_Moved]) -> bool:
    return any(moved.nodes <= larger.nodes for larger in growing)


def _candidates(nodes: Sequence[NodeRecord]) -> list[_Moved]:
    """Groups of which GROWING or more changed in one direction at about one time."""
    known = [node for node in nodes if node.delays.is_known]
    moved = [node for node in known if node.delays.direction]
    if len(moved) < MIN_MOVED_NODES:
        return []
    by_group: dict[tuple[str, int], list[NodeRecord]] = {}
    for node in moved:
        for group in _places(node):
            by_group.setdefault((group, node.delays.direction), []).append(node)
    members = Counter(group for node in known for group in _places(node))
    found = (_together(name, members[name], each) for (name, _), each in by_group.items())
    return [each for each in found if len(each.nodes) >= max(MIN_MOVED_NODES, GROWING * each.members)]


def _together(name: str, members: int, moved: Sequence[NodeRecord]) -> _Moved:
    since_ns = median_low([node.delays.since_ns for node in moved])
    together = [node for node in moved if abs(node.delays.since_ns - since_ns) <= TOGETHER_NS]
    before_ns = median_low([node.delays.median_ns for node in together])
    by_ns = median_low([node.delays.moved_ns for node in together])
    return _Moved(name, frozenset(node.node for node in together), members, since_ns, before_ns, by_ns)


def _places(node: NodeRecord) -> list[str]:
    """
    Its rack, the hall around it and so on, and its parent clock. The rack comes first where both have the same nodes.
    """
    places = node.topology.split("/") if node.topology else []
    groups = ["/".join(places[:depth]) for depth in range(len(places), 0, -1)]
    return [*groups, node.parent] if node.parent else groups


def _moved_judgement(moved: _Moved) -> Judgement:
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


ALONE = "node-offset-alone"
Group = tuple[str, str]
"""How siblings belong together ("behind", "under", "in"), and the name of what they share."""

#: With fewer siblings it is undecidable which node moved.
MIN_SIBLINGS = 5

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
        for group, members in _sibling_groups(nodes).items():
            usual = _usual(members)
            suspects = list(self._suspects(group, members, usual, now_ns))
            recent = [node for node in suspects if now_ns - node.offsets.since_ns < AT_ONCE_NS]
            if sum(node.offsets.is_beyond_chance for node in recent) > max(1, min(MAX_AT_ONCE, len(members) // 10)):
                self._unsettled[group] = now_ns + SETTLES_WITHIN_NS
                for node in recent:
                    node.offsets.clear()
            judged |= {
                (ALONE, node.node): _judgement(node, usual, group) for node in suspects if node.offsets.is_alone(now_ns)
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


def _sibling_groups(nodes: Iterable[NodeRecord]) -> dict[Group, list[NodeRecord]]:
    """By parent clock where it has enough nodes, else by grandmaster, else by rack; a node is in at most one group."""
    measured = [node for node in nodes if node.offset_ns is not None]
    parents = Counter(node.parent for node in measured)
    grandmasters = Counter(node.grandmaster for node in measured)
    found: dict[Group, list[NodeRecord]] = {}
    for node in measured:
        if node.parent and parents[node.parent] >= MIN_SIBLINGS:
            group = ("behind", node.parent)
        elif node.grandmaster and grandmasters[node.grandmaster] >= MIN_SIBLINGS:
            group = ("under", node.grandmaster)
        else:
            group = ("in", node.topology)
        found.setdefault(group, []).append(node)
    return {group: members for group, members in found.items() if len(members) >= MIN_SIBLINGS and group[1]}


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
