"""What an audit says: the models of report.json, whose schema is schemas/audit_report.json."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from timesyncd.ipc.job_segment import Method
from timesyncd.messages.node import Int64, Message

Share = float


class EstimateReport(Message):
    """A value and its 95 % confidence interval; both ends null: too few steps to tell one."""

    value: float
    low: float | None = None
    high: float | None = None


class RankWait(Message):
    """
    One rank's waits for the last arrival, a step's longest each; total over the steps. `exposed_ns`: all its time in
    synchronization that was not hidden behind compute. Null: nothing could be compared.
    """

    rank: Int64
    node: str
    p50: Int64 | None
    p99: Int64 | None
    total: Int64 | None
    exposed_ns: Int64


class StragglerReport(Message):
    """
    A rank that is late persistently: in `last_share` of the compared steps it was the last, by `lateness_p50_ns` against the
    median rank, at `where`; the others waited `exposed_ns` for it over all steps (0: its lateness was hidden).
    """

    rank: Int64
    node: str
    last_share: Share
    lateness_p50_ns: Int64
    exposed_ns: Int64
    where: str
    verdict: Literal["straggler", "inconclusive"]


class OverheadSourceReport(Message):
    """
    What time in synchronization went to: `wait` for `rank` (null: which one is inconclusive), `transfer` once all were
    there, `request`: `rank`'s own to a parameter server, `undivided`: the clocks do not tell waiting from transfer. `share`
    of all exposed time; `overhead` is its part of `sync_overhead`.
    """

    cause: Literal["wait", "transfer", "undivided", "request"]
    rank: Int64 | None
    node: str | None
    where: str
    exposed_ns: Int64
    share: Share
    overhead: Share


class StageReport(Message):
    """
    One stage of a step: the ranks compute until they wait at `where`, or are in it ("synchronize"), or do what comes after the
    last one ("update", `where` empty). `cost_ns` is what it adds to a step, in the mean, `share` of its length: exposed, since
    what others hide adds nothing. `rank` is the slowest there, in `lead_share` of the steps; null: nobody, or by chance. No two clocks are compared.
    """

    where: str
    stage: Literal["compute", "synchronize", "update"]
    cost_ns: Int64
    share: Share
    rank: Int64 | None
    node: str | None
    lead_share: Share | None


class RemedyReport(Message):
    """
    What replaying the recorded steps under a remedy gives: `gain` is the share of the time that the same work takes less;
    null: it does not apply, for `reason`. What it stands on is in `assumption`.
    """

    name: str
    title: str
    gain: float | None
    step_saved_ns: Int64 | None
    sync_overhead: Share | None
    assumption: str
    reason: str


class BucketReport(Message):
    """
    The gradient buckets of most steps, `bytes` in the order of their reduction. Behind its last gradient a step waited `exposed_ns` for them. A reduction was
    fitted to take `latency_ns` and the time that its bytes take at `bytes_per_s`.

    `caps_mib`: the sizes that are suggested to DistributedDataParallel, in MiB, the last one for all further buckets; null: none, for `reason`. The best that were tried
    would save `saved_ns` of a step, right within +-`error_ns`. `order`: which buckets may have waited for another one, for people.
    """

    bytes: list[Int64]
    exposed_ns: Int64 | None
    latency_ns: Int64 | None
    bytes_per_s: Int64 | None
    caps_mib: list[float] | None
    saved_ns: Int64 | None
    error_ns: Int64 | None
    reason: str
    order: str | None


class BeforeAfter(Message):
    """Before and after a change: `step_ratio` is the time of a step after over before, `overhead_change` after minus before."""

    job: str
    steps: Int64
    step_ns_before: EstimateReport
    step_ns_after: EstimateReport
    step_ratio: EstimateReport
    sync_overhead_before: EstimateReport
    sync_overhead_after: EstimateReport
    overhead_change: EstimateReport
    verdict: Literal["faster", "slower", "no_difference", "too_few_steps"]
    sentence: str


class AuditReport(Message):
    """
    An audit of one job. Nanoseconds, ratios from 0 to 1; null = not known.

    `headline` is what matters most, in one sentence. `sync_overhead` is exposed synchronization time over step time, both summed
    over ranks and steps. `wait_ns` is in the order of the ranks, `stragglers` the worst first, `sources` the costliest
    first, `stages` in the order of a step, `remedies` the most gainful first. `buckets` null: none are recorded that compare. `method`: how ranks were compared (null: they could not be), right within
    +-`clock_bound_ns`. `own_overhead`: what metering cost, over the ranks' time.
    """

    version: Int64 = 1
    job: str
    attempt: Int64
    world_size: Int64
    nodes: list[str]
    headline: str
    steps: Int64
    step_ns: EstimateReport | None
    sync_overhead: Share | None
    sync_overhead_interval: EstimateReport | None
    wait_ns: list[RankWait]
    stragglers: list[StragglerReport]
    sources: list[OverheadSourceReport]
    stages: list[StageReport]
    remedies: list[RemedyReport]
    buckets: BucketReport | None
    before_after: BeforeAfter | None
    method: Method | None
    clock_bound_ns: Int64 | None
    own_overhead: float | None
    marks_lost: Int64
    notes: list[str] = Field(default_factory=list)
