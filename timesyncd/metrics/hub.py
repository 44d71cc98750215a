"""
The metrics of a hub: its fleet, its training jobs, and the lag of messages.

There is never one series per node or per rank, only for the largest bounds and the worst stragglers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import get_args

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from timesyncd.ipc.job_segment import Method
from timesyncd.messages.fleet import AlignmentState, FleetSummary, HubState
from timesyncd.messages.jobs import JobState, StragglerMessage
from timesyncd.messages.node import FindingMessage, Severity, Status
from timesyncd.messages.overview import Headline
from timesyncd.metrics.parts import bound_seconds_at, gauge, seconds, state_rows

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
    headline: Headline | None = None


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
    yield gauge("hub_shares", "1 while this hub owns a share of the fleet and counts that alone, beside other hubs.", ("hub",),
                [(own, float(hub.shares))])  # fmt: skip
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
    if snapshot.headline is not None:
        yield from _headline(hub.node, snapshot.headline, realtime_ns)
    if snapshot.alignment is not None:
        yield from _worst(hub.node, snapshot.alignment)


def _headline(hub: str, state: Headline, realtime_ns: int) -> Iterator[Metric]:
    own = (hub,)
    age_ns = max(0, realtime_ns - state.as_of_realtime_ns)
    now = bound_seconds_at(state.alignment_ns, state.growth_ppb, state.holds_for_ns, age_ns)
    yield gauge("fleet_alignment_seconds", "Bound on the difference between any two of the compared clocks, now; absent if unknown.",
                ("hub",), [(own, now)])  # fmt: skip
    for name, text, count in (
        ("compared", "Nodes whose clocks the fleet's alignment covers.", state.compared),
        ("without_bound", "Nodes without a bound, or that do not report; the alignment covers none of them.", state.without_bound),
        ("not_compared", "Nodes with a bound that share no reference with the compared ones.", state.not_compared),
        ("wide", "Nodes whose bound exceeds limits.node_bound_ns; absent without that limit.", state.wide),
    ):  # fmt: skip
        yield gauge(f"fleet_nodes_{name}", text, ("hub",), [(own, count)])
    yield gauge("limit_seconds", "The operator's limits, of [limits].", ("hub", "limit"),
                [((hub, name.removesuffix("_ns")), seconds(ns)) for name, ns in state.limits])  # fmt: skip
    left_ns = None if state.holds_for_ns is None else max(0, state.holds_for_ns - age_ns)
    yield gauge("fleet_alignment_holds_seconds", "Time until the alignment expires without new states.",
                ("hub",), [(own, seconds(left_ns))])  # fmt: skip


def _worst(hub: str, state: AlignmentState) -> Iterator[Metric]:
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


#: The worst stragglers of a job have a series.
WORST_STRAGGLERS = 10

LABELS = ("job_id", "job", "attempt")

Read = Callable[[JobState], float | None]

_RATIOS: tuple[tuple[str, str, Read], ...] = (
    ("sync_overhead_ratio", "Exposed synchronization time over elapsed time, in the window.", lambda j: j.sync_overhead),
    ("sync_overhead_step_ratio", "Synchronization overhead of the newest measured step.", lambda j: j.sync_overhead_step),
    ("sync_overhead_epoch_ratio", "Synchronization overhead of the current epoch.", lambda j: j.sync_overhead_epoch),
    ("comm_compute_ratio", "Exposed communication time over the rest of the time.", lambda j: j.comm_compute),
    ("own_overhead_ratio", "Share of the ranks' time that metering takes.", lambda j: j.own_overhead),
)  # fmt: skip
_SPANS: tuple[tuple[str, str, Callable[[JobState], int | None]], ...] = (
    ("arrival_skew_seconds", "Time between the first and the last arrival in the newest complete step.", lambda j: j.arrival_skew_ns),
    ("arrival_skew_p50_seconds", "Arrival skew, median over the window.", lambda j: j.arrival_skew_p50_ns),
    ("arrival_skew_p99_seconds", "Arrival skew, 99th percentile over the window.", lambda j: j.arrival_skew_p99_ns),
    ("arrival_skew_error_seconds", "Error of the newest arrival skew.", lambda j: j.arrival_skew_error_ns),
    ("clock_bound_seconds", "Error of the comparison of two arrivals by the method in use, median.", lambda j: j.clock_bound_ns),
    ("transfer_p50_seconds", "Time from the last arrival to the last end of a collective, median.", lambda j: j.transfer_p50_ns),
    ("transfer_p99_seconds", "Time from the last arrival to the last end of a collective, 99th percentile.", lambda j: j.transfer_p99_ns),
    ("barrier_wait_p50_seconds", "Time that ranks wait in a barrier for the last rank, median.", lambda j: j.barrier_wait_p50_ns),
    ("barrier_wait_p99_seconds", "Time that ranks wait in a barrier for the last rank, 99th percentile.", lambda j: j.barrier_wait_p99_ns),
    ("update_latency_p50_seconds", "Time from a rank's last gradient to its updated parameters, median.",
     lambda j: j.update_latency_p50_ns),
    ("response_p50_seconds", "Response time of the parameter server, median.", lambda j: j.response_p50_ns),
    ("response_p99_seconds", "Response time of the parameter server, 99th percentile.", lambda j: j.response_p99_ns),
)  # fmt: skip
_NUMBERS: tuple[tuple[str, str, Read], ...] = (
    ("arrival_variance_seconds2", "Variance of the ranks' arrivals, mean over the steps.",
     lambda j: _squared(j.arrival_variance_ns2)),
    ("end_variance_seconds2", "Variance of the ranks' ends of a collective, mean over the steps.", lambda j: _squared(j.end_variance_ns2)),
    ("staleness_p50", "Updates by which the used parameters were behind, median.", lambda j: j.staleness_p50),
    ("staleness_max", "Updates by which the used parameters were behind, maximum.", lambda j: j.staleness_max),
    ("trusted", "1 if the arrival skew exceeds the error of the method in use.", lambda j: float(j.trusted)),
    ("straggler_rank", "Rank of the worst straggler; absent without a conclusive one.", lambda j: j.straggler_rank),
    ("stragglers", "Ranks that are persistently late, conclusively.",
     lambda j: sum(each.verdict == "straggler" for each in j.stragglers)),
    ("steps_complete", "Synchronizations with the marks of every rank.", lambda j: j.steps_complete),
    ("steps_incomplete", "Synchronizations closed without the marks of every rank.", lambda j: j.steps_incomplete),
    ("marks_repeated", "Marks that a rank sent twice with different content.", lambda j: j.marks_repeated),
    ("marks_refused", "Marks that the hub dropped because its window was full.", lambda j: j.marks_refused),
)  # fmt: skip


def jobs(states: Sequence[JobState], realtime_ns: int) -> Iterator[Metric]:
    spans: list[tuple[str, str, Read]] = [(name, text, _in_seconds(read)) for name, text, read in _SPANS]
    aligned: tuple[tuple[str, str, Read], ...] = (
        ("alignment_seconds", "Bound on the difference between any two clocks of the job's nodes, now.",
         lambda j: _alignment_now(j, realtime_ns)),
        ("alignment_holds_seconds", "Time until the alignment expires without new states.",
         lambda j: _holds_now(j, realtime_ns)),
    )  # fmt: skip
    for name, text, read in (*_RATIOS, *aligned, *spans, *_NUMBERS):
        yield gauge(f"job_{name}", text, LABELS, [(_labels(j), read(j)) for j in states])
    yield gauge("job_method", "1 for the method by which arrivals are compared.", (*LABELS, "method"),
                [((*_labels(j), name), value) for j in states for name, value in state_rows(Method, j.method)])  # fmt: skip
    yield from _stragglers(states)


def _stragglers(states: Sequence[JobState]) -> Iterator[Metric]:
    conclusive = [(j, each) for j in states for each in j.stragglers if each.verdict == "straggler"]
    worst = [(j, each) for j, each in conclusive if each in j.stragglers[:WORST_STRAGGLERS]]
    figures: tuple[tuple[str, str, Callable[[StragglerMessage], int]], ...] = (
        ("lateness", "Lateness of a straggler against the median rank, median.", lambda s: s.lateness_p50_ns),
        ("exposed", "Time that the other ranks waited for a straggler, over the window.", lambda s: s.exposed_ns),
    )
    for name, text, read in figures:
        rows = [((*_labels(j), str(s.rank), s.node, s.where), seconds(read(s))) for j, s in worst]
        yield gauge(f"job_straggler_{name}_seconds", text, (*LABELS, "rank", "node", "where"), rows)


def _labels(job: JobState) -> tuple[str, ...]:
    return job.job_id, job.job, str(job.attempt)


def _in_seconds(read: Callable[[JobState], int | None]) -> Read:
    return lambda job: seconds(read(job))


def _squared(ns2: float | None) -> float | None:
    return None if ns2 is None else ns2 / 1e18


def _age_ns(job: JobState, realtime_ns: int) -> int:
    return max(0, realtime_ns - job.published_realtime_ns)


def _alignment_now(job: JobState, realtime_ns: int) -> float | None:
    return bound_seconds_at(
        job.alignment_ns, job.alignment_growth_ppb, job.alignment_holds_for_ns, _age_ns(job, realtime_ns)
    )


def _holds_now(job: JobState, realtime_ns: int) -> float | None:
    holds_ns = job.alignment_holds_for_ns
    return None if holds_ns is None else max(0, holds_ns - _age_ns(job, realtime_ns)) / 1e9
