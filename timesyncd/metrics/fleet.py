"""The metrics of a hub: its fleet, the way of the messages. Never a series for every node."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import get_args

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from timesyncd.messages.fleet import AlignmentState, FleetSummary, HubState
from timesyncd.messages.node import FindingMessage, Severity, Status
from timesyncd.metrics.parts import bound_seconds_at, gauge, seconds

#: Of the fleet's nodes so many have a series on the hub, the worst; each node exports its own.
WORST_NODES = 10

#: Grandmasters that nodes say that they follow: the most followed have a series.
MAX_FOLLOWED = 32

LAG_LIMITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """What a hub makes of its fleet, as of now."""

    hub: HubState
    summary: FleetSummary
    alignment: AlignmentState | None = None


class MessageLag:
    """
    How long live messages took, from their sender's CLOCK_REALTIME to ours. A message that came before it was sent says that the
    two clocks disagree by more than the way takes: it is counted apart, in `ahead`.
    """

    def __init__(self) -> None:
        self.ahead = 0
        self._counts = [0] * (len(LAG_LIMITS_S) + 1)
        self._sum_ns = 0

    def note(self, published_realtime_ns: int, received_realtime_ns: int) -> None:
        lag_ns = received_realtime_ns - published_realtime_ns
        if lag_ns < 0:
            self.ahead += 1
            return
        self._counts[bisect_left(LAG_LIMITS_S, lag_ns / 1e9)] += 1
        self._sum_ns += lag_ns

    def families(self) -> Iterator[Metric]:
        names = [*(str(limit) for limit in LAG_LIMITS_S), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        text = "From a message's publication to its receipt, by the two clocks."
        yield HistogramMetricFamily("timesyncd_message_lag_seconds", text, buckets, self._sum_ns / 1e9)
        text = "Messages that came before they were sent, by the two clocks: these disagree."
        yield CounterMetricFamily("timesyncd_messages_ahead_total", text, self.ahead)


def fleet(snapshot: FleetSnapshot, realtime_ns: int) -> Iterator[Metric]:
    hub = snapshot.hub
    own = (hub.node,)
    yield gauge("hub_primary", "1 while this hub speaks for the fleet; the others compute and keep silent.", ("hub",),
                [(own, float(hub.primary))])  # fmt: skip
    yield gauge("fleet_nodes", "Nodes known by the status that is told first.", ("hub", "status"),
                [((hub.node, name), snapshot.summary.statuses.get(name, 0)) for name in get_args(Status)])  # fmt: skip
    for name, text, count in (
        ("expected", "Nodes that the configuration names.", hub.nodes_expected),
        ("known", "Nodes ever heard of that have a clock source.", hub.nodes_known),
        ("live", "Nodes heard of just now.", hub.nodes_live),
        ("missing", "Expected nodes that are not heard of.", len(hub.missing)),
    ):
        yield gauge(f"fleet_nodes_{name}", text, ("hub",), [(own, count)])
    followed = Tally(snapshot.summary.grandmasters).most_common(MAX_FOLLOWED)
    yield gauge("fleet_nodes_following", "Nodes by the grandmaster that they follow: its name, or its identity where no unit has that; empty: none.", ("hub", "grandmaster"),
                [((hub.node, name), count) for name, count in followed])  # fmt: skip
    yield gauge("fleet_jobs", "Jobs that it follows.", ("hub",), [(own, hub.jobs)])
    if snapshot.alignment is not None:
        yield from _alignment(hub.node, snapshot.alignment, realtime_ns)


def _alignment(hub: str, state: AlignmentState, realtime_ns: int) -> Iterator[Metric]:
    age_ns = max(0, realtime_ns - state.published_realtime_ns)
    now = bound_seconds_at(state.alignment_ns, state.growth_ppb, state.holds_for_ns, age_ns)
    yield gauge("fleet_alignment_seconds", "Bound on how far any two clocks of the fleet are apart, now; absent when unknown.",
                ("hub",), [((hub,), now)])  # fmt: skip
    left_ns = None if state.holds_for_ns is None else max(0, state.holds_for_ns - age_ns)
    yield gauge("fleet_alignment_holds_seconds", "For how long there will be an alignment if nothing more is heard.",
                ("hub",), [((hub,), seconds(left_ns))])  # fmt: skip
    known = islice((node for node in state.nodes if node.bound_ns is not None), WORST_NODES)
    yield gauge("fleet_worst_bound_seconds", f"The largest bounds of nodes, {WORST_NODES} at most, as of the alignment.",
                ("hub", "node"), [((hub, node.node), seconds(node.bound_ns)) for node in known])  # fmt: skip


def findings(messages: Sequence[FindingMessage]) -> Iterator[Metric]:
    """By id there is a series only for what stands; of each severity always one."""
    standing = [f for f in messages if f.until_realtime_ns is None]
    severities = Tally(f.severity for f in standing)
    yield gauge("findings", "Standing findings.", ("severity",),
                [((severity,), severities[severity]) for severity in get_args(Severity)])  # fmt: skip
    ids = Tally((f.id, f.severity) for f in standing)
    yield gauge("findings_standing", "Standing findings of one id: how many subjects have it.", ("id", "severity"),
                ids.items())  # fmt: skip
