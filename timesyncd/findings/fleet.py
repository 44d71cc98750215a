"""Findings that need the states of many nodes. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.clocks import NS_PER_S
from timesyncd.findings import fleet_delays, fleet_outliers
from timesyncd.findings.catalogue import Judgement, chain_step
from timesyncd.findings.fleet_nodes import NodeRecord
from timesyncd.findings.fleet_offsets import ID as ALONE
from timesyncd.findings.fleet_offsets import LoneOffsets
from timesyncd.findings.fleet_outliers import DOMAIN, GRANDMASTER, OtherGrandmasters, other_domains
from timesyncd.findings.text import identities, names_text, utc_text
from timesyncd.fleet.node_clock import SILENT_AFTER_NS, silent_after_ns
from timesyncd.messages.node import GrandmasterState, NodeState
from timesyncd.units import span_text

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
    """`expected` are the nodes in hub.nodes; `own` is the hub's own node, whose state needs no broker."""

    def __init__(self, expected: Collection[str] = (), own: str = "") -> None:
        self._expected = frozenset(expected)
        self._own = own
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
        found |= fleet_delays.judge(live, now_ns)
        found |= fleet_outliers.judge(live, lambda identity: names.get(identity, identity))
        found |= other_domains(live)
        return found | self._other_grandmasters.judge(live, names.keys())

    def _missing(self, now_ns: int) -> dict[Key, Judgement]:
        """The expected nodes that never reported, or stopped reporting, since this hub receives states."""
        if now_ns - self._receiving_since_ns <= SILENT_AFTER_NS:
            return {}
        missing = sorted(name for name in self._expected if name != self._own and self._is_silent(name, now_ns))
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
        evidence = f"{len(missing)} of {len(self._expected)} expected nodes: {'; '.join(parts)}{all_silent}"
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
