"""The metrics of a hub: its fleet and the lag of messages. There is never one series per node."""

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

#: The nodes with the largest bounds have a series on the hub; every node exports its own.
WORST_NODES = 10

#: The grandmasters that most nodes follow have a series.
MAX_FOLLOWED = 32

LAG_LIMITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """A hub's states of its fleet at the scrape."""

    hub: HubState
    summary: FleetSummary
    alignment: AlignmentState | None = None


class MessageLag:
    """
    A histogram of message lags: CLOCK_REALTIME at the receiver minus that at the sender.

    `ahead` counts messages with a negative lag: the two clocks disagree by more than the message took.
    """

    def __init__(self) -> None:
        self.ahead = 0
        self._counts = [0] * (len(LAG_LIMITS_S) + 1)
        self._sum_ns = 0

    def observe(self, published_realtime_ns: int, received_realtime_ns: int) -> None:
        lag_ns = received_realtime_ns - published_realtime_ns
        if lag_ns < 0:
            self.ahead += 1
            return
        self._counts[bisect_left(LAG_LIMITS_S, lag_ns / 1e9)] += 1
        self._sum_ns += lag_ns

    def families(self) -> Iterator[Metric]:
        names = [*(str(limit) for limit in LAG_LIMITS_S), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        text = "Time from the publication of a message to its receipt, by the two nodes' clocks."
        yield HistogramMetricFamily("timesyncd_message_lag_seconds", text, buckets, self._sum_ns / 1e9)
        text = "Messages received before they were sent by the two nodes' clocks, which therefore disagree."
        yield CounterMetricFamily("timesyncd_messages_ahead_total", text, self.ahead)


def fleet(snapshot: FleetSnapshot, realtime_ns: int) -> Iterator[Metric]:
    hub = snapshot.hub
    own = (hub.node,)
    yield gauge("hub_primary", "1 while this hub is the primary, which publishes for the fleet; standby hubs publish nothing.", ("hub",),
                [(own, float(hub.primary))])  # fmt: skip
    yield gauge("fleet_nodes", "Known nodes by the status of their main bound.", ("hub", "status"),
                [((hub.node, name), snapshot.summary.statuses.get(name, 0)) for name in get_args(Status)])  # fmt: skip
    for name, text, count in (
        ("expected", "Nodes that the configuration names.", hub.nodes_expected),
        ("known", "Nodes with a clock source that have ever reported.", hub.nodes_known),
        ("live", "Nodes that report now.", hub.nodes_live),
        ("missing", "Expected nodes that do not report.", len(hub.missing)),
    ):
        yield gauge(f"fleet_nodes_{name}", text, ("hub",), [(own, count)])
    followed = Tally(snapshot.summary.grandmasters).most_common(MAX_FOLLOWED)
    yield gauge("fleet_nodes_following", "Nodes by the grandmaster that they follow: its name, its identity if no configured grandmaster has that, or empty if they follow none.", ("hub", "grandmaster"),
                [((hub.node, name), count) for name, count in followed])  # fmt: skip
    yield gauge("fleet_jobs", "Jobs that this hub aggregates.", ("hub",), [(own, hub.jobs)])
    if snapshot.alignment is not None:
        yield from _alignment(hub.node, snapshot.alignment, realtime_ns)


def _alignment(hub: str, state: AlignmentState, realtime_ns: int) -> Iterator[Metric]:
    age_ns = max(0, realtime_ns - state.published_realtime_ns)
    now = bound_seconds_at(state.alignment_ns, state.growth_ppb, state.holds_for_ns, age_ns)
    yield gauge("fleet_alignment_seconds", "Bound on the difference between any two clocks of the fleet, now; absent if unknown.",
                ("hub",), [((hub,), now)])  # fmt: skip
    left_ns = None if state.holds_for_ns is None else max(0, state.holds_for_ns - age_ns)
    yield gauge("fleet_alignment_holds_seconds", "Time until the alignment expires without new states.",
                ("hub",), [((hub,), seconds(left_ns))])  # fmt: skip
    known = islice((node for node in state.nodes if node.bound_ns is not None), WORST_NODES)
    yield gauge("fleet_worst_bound_seconds", f"The {WORST_NODES} largest bounds of nodes, at the time of the alignment.",
                ("hub", "node"), [((hub, node.node), seconds(node.bound_ns)) for node in known])  # fmt: skip


def findings(messages: Sequence[FindingMessage]) -> Iterator[Metric]:
    """One series per severity, and one per id of an active finding."""
    active = [f for f in messages if f.until_realtime_ns is None]
    severities = Tally(f.severity for f in active)
    yield gauge("findings", "Active findings by severity.", ("severity",),
                [((severity,), severities[severity]) for severity in get_args(Severity)])  # fmt: skip
    ids = Tally((f.id, f.severity) for f in active)
    yield gauge("findings_active", "Subjects that have an active finding, by its id.", ("id", "severity"),
                ids.items())  # fmt: skip
