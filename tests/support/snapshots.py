"""What a scrape of a daemon that has everything shows: a node, a hub, a store, a broker, from recorded states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from timesyncd.clocks import NS_PER_S
from timesyncd.driver import PollReport
from timesyncd.messages.cost import DaemonCost, SourceCost
from timesyncd.messages.fleet import AlignmentState, FleetSummary, HubState, NodeAlignment
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import BoundMessage, FindingMessage, GrandmasterState, NodeState
from timesyncd.messages.overview import ConfiguredLimits, Headline
from timesyncd.metrics.exposition import Counters, MetricsSnapshot
from timesyncd.metrics.hub import FleetSnapshot, MessageLag

RECORDED: dict[str, list[Any]] = json.loads((Path(__file__).parents[1] / "recordings" / "view.json").read_text())
NODE = NodeState.model_validate(RECORDED["nodes"][0])
NOW_NS = NODE.published_realtime_ns

HUB = HubState(
    node="hub-a", incarnation=1, sequence=9, published_realtime_ns=NOW_NS, started_realtime_ns=NOW_NS - NS_PER_S, primary=True,
    nodes_live=9_998, nodes_known=9_999, nodes_expected=10_000, missing=["trainer-31", "trainer-32"], jobs=1,
)  # fmt: skip
SUMMARY = FleetSummary(
    published_realtime_ns=NOW_NS, nodes=9_999, statuses={"SYNCHRONIZED": 9_990, "HOLDOVER": 7, "UNKNOWN": 2},
    grandmasters={"001122.fffe.334455": 9_000, "001122.fffe.334466": 997, "": 2}, worst=[],
)  # fmt: skip
ALIGNMENT = AlignmentState(
    published_realtime_ns=NOW_NS, alignment_ns=48_636, growth_ppb=100_200, holds_for_ns=600 * NS_PER_S,
    pair=["trainer-01", "trainer-02"], reason="",
    nodes=[
        NodeAlignment(node="trainer-31", status="UNKNOWN", bound_ns=None, reason="silent"),
        *(NodeAlignment(node=f"trainer-{n:02}", status="SYNCHRONIZED", bound_ns=24_318 - n, reason="") for n in range(30)),
    ],
)  # fmt: skip


HEADLINE = Headline(
    as_of_realtime_ns=NOW_NS, text="9,997 of 10,000 clocks agree within 48.7 us", verdict="exceeded",
    limits=ConfiguredLimits(fleet_alignment_ns=10_000, job_alignment_ns=1_000, node_bound_ns=20_000), nodes=10_000,
    compared=9_997, without_bound=2, not_compared=1, wide=5, alignment_ns=48_636, growth_ppb=100_200,
    holds_for_ns=600 * NS_PER_S, pair=["trainer-01", "trainer-02"], reason="", p50_bound_ns=1, p99_bound_ns=2,
    worst_bound_ns=3, causes=[], jobs=[], findings={}, actions=[],
)  # fmt: skip


def lag() -> MessageLag:
    measured = MessageLag()
    for lag_ns in (2_000_000, 2_000_000, 70_000_000, 90 * NS_PER_S, -1):
        measured.observe(NOW_NS, NOW_NS + lag_ns)
    return measured


def counted() -> Counters:
    """Every counter at another number."""
    return Counters(**{name: 17 + at for at, name in enumerate(Counters.__dataclass_fields__)})


def full_grandmaster() -> GrandmasterState:
    """The recorded grandmaster, and what the recording leaves out."""
    state = GrandmasterState.model_validate(RECORDED["grandmasters"][0])
    return state.model_copy(update={"phase_offset_ns": -12, "name": "gm-b"})


def full_node() -> NodeState:
    """The recorded node where UTC is known too."""
    utc = BoundMessage(bound_ns=25_558, growth_ppb=50_186, reason="")
    return NODE.model_copy(
        update={"utc_status": "SYNCHRONIZED", "utc": utc, "utc_stat": utc, "topology": "hall-1/rack-12"}
    )


FULL = MetricsSnapshot(
    node=NODE,
    polls=[PollReport("ptp", 0, 310_000, None, 0), PollReport("gm-a", 0, 2 * NS_PER_S, "no answer", 3)],
    grandmasters=[GrandmasterState.model_validate(item) for item in RECORDED["grandmasters"]],
    jobs=[JobState.model_validate(item) for item in RECORDED["jobs"]],
    findings=[FindingMessage.model_validate(item) for item in RECORDED["findings"]],
    mqtt_connected=True,
    counters=Counters(samples_total=17),
)

COST = DaemonCost(
    node=NODE.node, as_of_realtime_ns=NOW_NS, cpu_ns=7 * NS_PER_S, cpu_share=0.013, window_ns=60 * NS_PER_S, memory_bytes=90_000_000,
    cpu_budget_share=0.05, memory_budget_bytes=None, poll_factor=2,
    sources=[
        SourceCost(source="ptp", polls=480, polls_per_s=8.0, packets_sent=3_360, packets_received=3_360, bytes_sent=9, bytes_received=9),
        SourceCost(source="broker", polls=0, polls_per_s=0.0, packets_sent=5, packets_received=0, bytes_sent=9, bytes_received=0),
    ],
)  # fmt: skip

#: A value for every metric that there is.
EVERYTHING = MetricsSnapshot(
    node=full_node(),
    polls=FULL.polls,
    grandmasters=[*FULL.grandmasters, full_grandmaster()],
    jobs=[FULL.jobs[0].model_copy(update={"alignment_holds_for_ns": 600 * NS_PER_S})],
    findings=FULL.findings,
    mqtt_connected=True,
    counters=counted(),
    fleet=FleetSnapshot(HUB, SUMMARY, ALIGNMENT, HEADLINE),
    lag=lag(),
    outbox_waiting=120,
    store_waiting=40,
    cost=COST,
)
