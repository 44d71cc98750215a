"""A fleet to look at: any number of nodes in racks, some of them not well, two hubs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from fake_view import RECORDED, FakeView

from timesyncd.messages.fleet import AlignmentState, FleetSummary, HubState, NodeAlignment
from timesyncd.messages.node import BoundMessage, FindingMessage, NodeState

A_RACK = 40


def fleet_node(number: int) -> NodeState:
    """The 7th of a hundred is in holdover, the 50th of each 997 unknown, the 3rd of each 2000 disrupted."""
    state = NodeState.model_validate(RECORDED["nodes"][0])
    status = (
        "DISRUPTED"
        if number % 2000 == 3
        else "UNKNOWN"
        if number % 997 == 50
        else "HOLDOVER"
        if number % 100 == 7
        else "SYNCHRONIZED"
    )
    width_ns = 700 + 37 * (number % 23) + (20_000 if number // A_RACK == 5 else 0)
    rack = number // A_RACK
    changes: dict[str, Any] = {
        "node": f"trainer-{number:05}", "status": status, "topology": f"hall-{rack // 50 + 1}/rack-{rack % 50 + 1:02}",
        "gm": BoundMessage(bound_ns=width_ns, growth_ppb=1_100, reason=""), "grandmaster": "gm-a" if number % 3 else "gm-b",
        "grandmaster_identity": "001122.fffe.334455" if number % 3 else "001122.fffe.334466",
        "age_ns": 20_000_000_000 if status == "HOLDOVER" else 80_000_000,
        "reason": "" if status == "SYNCHRONIZED" else "no fresh sample: port LISTENING",
        "reason_code": "ok" if status == "SYNCHRONIZED" else "stale",
    }  # fmt: skip
    return state.model_copy(update=changes)


@dataclass
class FleetView(FakeView):
    """`count` nodes, of which the first is this hub's own."""

    count: int = 12
    unaligned: str = ""

    def __post_init__(self) -> None:
        self.states = [fleet_node(number) for number in range(self.count)]

    def fleet(self) -> FleetSummary:
        worst = sorted(
            self.states, key=lambda s: (s.main_status == "SYNCHRONIZED", -(s.gm.bound_ns or 0) if s.gm else 0)
        )
        return FleetSummary(
            published_realtime_ns=self.states[0].published_realtime_ns,
            nodes=len(self.states),
            statuses=Counter(state.main_status for state in self.states),
            grandmasters=Counter(state.grandmaster_identity or "" for state in self.states),
            worst=[part(state) for state in worst[:10]],
        )

    def alignment(self, names: object, job: str | None) -> AlignmentState | None:
        if self.unaligned:
            return AlignmentState(
                published_realtime_ns=self.states[0].published_realtime_ns, alignment_ns=None, growth_ppb=None,
                holds_for_ns=None, pair=None, reason=self.unaligned, nodes=[],
            )  # fmt: skip
        return AlignmentState(
            published_realtime_ns=self.states[0].published_realtime_ns, alignment_ns=42_600, growth_ppb=2_200,
            holds_for_ns=980_000_000_000, pair=["trainer-00007", "trainer-00011"], reason="",
            nodes=[part(state) for state in self.states[:20]],
        )  # fmt: skip

    def hubs(self) -> list[HubState]:
        hub = FakeView.hubs(self)[0].model_copy(
            update={"nodes_live": self.count - 1, "nodes_known": self.count, "nodes_expected": self.count + 1,
                    "missing": ["trainer-99998", "trainer-99999"], "node": "hub-a", "url": "https://hub-a.example:8319/"}
        )  # fmt: skip
        return [hub, hub.model_copy(update={"node": "hub-b", "primary": False, "url": "javascript:alert(1)"})]

    def findings(self) -> list[FindingMessage]:
        first = FakeView.findings(self)
        unknown = [state.node for state in self.states if state.main_status != "SYNCHRONIZED"]
        return first + [
            first[0].model_copy(update={"id": "clock-holdover", "subject": node, "chain": []}) for node in unknown
        ]


def part(state: NodeState) -> NodeAlignment:
    bound_ns = state.gm.bound_ns if state.gm is not None and state.status in ("SYNCHRONIZED", "HOLDOVER") else None
    return NodeAlignment(node=state.node, status=state.status, bound_ns=bound_ns, reason=state.reason)
