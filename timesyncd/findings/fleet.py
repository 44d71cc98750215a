"""What only who hears all nodes can see: findings of the fleet. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.clocks import NS_PER_S
from timesyncd.findings import fleet_delays, fleet_outliers
from timesyncd.findings.catalogue import Judgement, Step
from timesyncd.findings.fleet_nodes import NodeRecord
from timesyncd.findings.fleet_offsets import ID as ALONE
from timesyncd.findings.fleet_offsets import LoneOffsets
from timesyncd.findings.fleet_outliers import DOMAIN, GRANDMASTER, OtherGrandmasters, other_domains
from timesyncd.findings.text import identities, names_text, utc_text
from timesyncd.fleet.node_clock import SILENT_AFTER_NS, silent_after_ns
from timesyncd.messages.node import GrandmasterState, NodeState
from timesyncd.units import span_text

MISSING = "hub-nodes-missing"
#: The subject of what concerns no one node.
FLEET = "fleet"

Key = tuple[str, str]

#: What must hold for so long before it is told: nodes change over one after the other.
AFTER_NS = {fleet_outliers.ID: 10 * NS_PER_S, DOMAIN: 15 * NS_PER_S, GRANDMASTER: 15 * NS_PER_S}

#: What was told ends when it has not lasting for so long.
ENDS_AFTER_NS = 10 * NS_PER_S

#: When not one node is heard it is the hub or its broker that is cut off, and that has a finding of its own for a while.
CUT_OFF_FOR_NS = 60 * NS_PER_S

#: A node that is not expected is forgotten so long after its end.
FORGET_AFTER_NS = 3_600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class _Lasting:
    """A verdict that was given in each round from `since_ns` to `seen_ns`."""

    since_ns: int
    seen_ns: int
    judged: Judgement

    def is_published(self, id: str) -> bool:
        return self.seen_ns - self.since_ns >= AFTER_NS.get(id, 0)


class FleetFindings:
    """`expected` are the nodes that the hub's configuration names, `own` is its own node, which it hears whatever happens."""

    def __init__(self, expected: Collection[str] = (), own: str = "") -> None:
        self._expected = frozenset(expected)
        self._own = own
        self._nodes: dict[str, NodeRecord] = {}
        self._silent_after_ns: dict[str, int] = {}
        self._lone_offsets = LoneOffsets()
        self._other_grandmasters = OtherGrandmasters()
        self._lasting: dict[Key, _Lasting] = {}
        self._listening_ns = 0
        self._judged_ns: int | None = None

    def add(self, state: NodeState, received_boottime_ns: int) -> None:
        """Take a live state that is newer than all of this node before."""
        record = self._nodes.get(state.node)
        if record is None:
            record = self._nodes[state.node] = NodeRecord(state.node)
        record.update(state, received_boottime_ns)

    def add_last_known(self, state: NodeState) -> None:
        """Take a retained copy of a node that is not heard yet: it tells how long to wait for a live state."""
        if state.node in self._expected:
            self._silent_after_ns[state.node] = silent_after_ns(state)

    def judge(
        self, grandmasters: Sequence[GrandmasterState], now_boottime_ns: int, now_realtime_ns: int
    ) -> dict[Key, Judgement]:
        """What holds now, by (id, subject). To be called every few seconds. `grandmasters` are all grandmasters that anybody polls."""
        self._begin(now_boottime_ns)
        live = [node for node in self._nodes.values() if not node.is_silent(now_boottime_ns)]
        found = self._folded(self._found(live, grandmasters, now_boottime_ns) | self._missing(now_boottime_ns))
        self._update_lasting(found, now_boottime_ns)
        return {
            key: _dated(lasting.judged, now_realtime_ns - (now_boottime_ns - lasting.since_ns), now_realtime_ns)
            for key, lasting in self._lasting.items()
            if lasting.is_published(key[0])
        }

    def _begin(self, now_ns: int) -> None:
        """After a pause of the hub itself everybody may take the time to be heard that they have at its start."""
        if self._judged_ns is None or now_ns - self._judged_ns > SILENT_AFTER_NS:
            self._listening_ns = now_ns
        self._judged_ns = now_ns
        gone = [
            n.node for n in self._nodes.values() if n.is_silent(now_ns) and now_ns - n.received_ns > FORGET_AFTER_NS
        ]
        for name in set(gone) - self._expected:
            del self._nodes[name]

    def _found(
        self, live: Sequence[NodeRecord], grandmasters: Sequence[GrandmasterState], now_ns: int
    ) -> dict[Key, Judgement]:
        names = {identity: grandmaster.name for grandmaster in grandmasters for identity in identities(grandmaster)}
        found = self._lone_offsets.judge(live, now_ns)
        found |= fleet_delays.judge(live, now_ns)
        found |= fleet_outliers.judge(live, lambda identity: names.get(identity, identity))
        found |= other_domains(live)
        return found | self._other_grandmasters.judge(live, names.keys())

    def _missing(self, now_ns: int) -> dict[Key, Judgement]:
        """The expected nodes that never spoke, or fell silent, since this hub listens."""
        if now_ns - self._listening_ns <= SILENT_AFTER_NS:
            return {}
        missing = sorted(name for name in self._expected if name != self._own and self._is_silent(name, now_ns))
        if not missing:
            return {}
        heard = {name: node.received_ns for name, node in self._nodes.items() if name != self._own}
        newest_ns = max(heard.values(), default=self._listening_ns)
        is_cut_off = now_ns - newest_ns > SILENT_AFTER_NS
        if is_cut_off and now_ns - max(newest_ns, self._listening_ns) < CUT_OFF_FOR_NS:
            return {}
        never = [name for name in missing if name not in heard]
        silent = [f"{name} for {span_text(now_ns - heard[name])}" for name in missing if name in heard]
        parts = [f"never reported: {names_text(never)}"] if never else []
        parts += [f"silent: {names_text(silent)}"] if silent else []
        all_silent = "; no node is reporting" if is_cut_off else ""
        evidence = f"{len(missing)} of {len(self._expected)} expected nodes: {'; '.join(parts)}{all_silent}"
        return {(MISSING, FLEET): Judgement(evidence)}

    def _is_silent(self, name: str, now_ns: int) -> bool:
        node = self._nodes.get(name)
        if node is None:
            return now_ns - self._listening_ns > self._silent_after_ns.get(name, SILENT_AFTER_NS)
        return now_ns - max(node.received_ns, self._listening_ns) > node.silent_after_ns

    def _folded(self, found: dict[Key, Judgement]) -> dict[Key, Judgement]:
        """One cause is one finding: what a node does in another domain, or under a unknown_id, follows from that."""
        apart = {subject for id, subject in found if id == DOMAIN}
        unknown_ids = [subject for id, subject in found if id == GRANDMASTER]
        for unknown_id in unknown_ids:
            followers = {node.node for node in self._nodes.values() if unknown_id in node.grandmasters}
            judged, outvoted = found[GRANDMASTER, unknown_id], found.pop((fleet_outliers.ID, unknown_id), None)
            if followers <= apart:
                del found[GRANDMASTER, unknown_id]
            elif outvoted:
                steps = (Step(GRANDMASTER, judged.evidence), Step(fleet_outliers.ID, f"it is {outvoted.evidence}"))
                found[GRANDMASTER, unknown_id] = replace(judged, chain=steps)
            apart |= followers
        return {key: judged for key, judged in found.items() if key[0] != ALONE or key[1] not in apart}

    def _update_lasting(self, found: dict[Key, Judgement], now_ns: int) -> None:
        """A round in which what was told does not hold, ends nothing yet."""
        lingering = {
            key: lasting
            for key, lasting in self._lasting.items()
            if key not in found and lasting.is_published(key[0]) and now_ns - lasting.seen_ns < ENDS_AFTER_NS
        }
        begun = {key: self._lasting[key].since_ns if key in self._lasting else now_ns for key in found}
        self._lasting = lingering | {key: _Lasting(begun[key], now_ns, judged) for key, judged in found.items()}


def _dated(judged: Judgement, since_ns: int, now_ns: int) -> Judgement:
    return replace(judged, evidence=f"{judged.evidence}; since {utc_text(since_ns, now_ns)}")


def without_duplicates(of_units: Mapping[Key, Judgement], of_fleet: Mapping[Key, Judgement]) -> dict[Key, Judgement]:
    """Both together: that two grandmasters disagree is not told where the fleet knows which of them is wrong."""
    wrong = {subject for id, subject in of_fleet if id == fleet_outliers.ID}
    return {
        key: judged
        for key, judged in of_units.items()
        if key[0] != "grandmasters-disagree" or wrong.isdisjoint(key[1].split(", "))
    } | dict(of_fleet)
