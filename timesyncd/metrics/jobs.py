"""
The metrics of training jobs, from a hub's states. There is never one series per rank, only for the worst stragglers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from timesyncd.ipc.job_segment import Method
from timesyncd.messages.jobs import JobState, StragglerMessage
from timesyncd.metrics.parts import bound_seconds_at, gauge, seconds, state_rows

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
