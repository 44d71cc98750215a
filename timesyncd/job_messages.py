"""What crosses a wire about training jobs: the ranks' marks, and what a hub makes of them."""

from __future__ import annotations

from typing import Literal

from timesyncd.messages import Int64, Message, Ordered, Status


class Mark(Message):
    """One synchronization of one rank, CLOCK_REALTIME nanoseconds: arrived, began, ended."""

    step: Int64
    sync: Int64
    kind: Int64
    arrival_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    bytes: Int64


class MarkBatch(Ordered):
    """A datagram of the job link as the node's daemon received it; the daemon adds uid and pid."""

    uid: Int64
    pid: Int64
    job: str
    attempt: Int64
    rank: Int64
    world_size: Int64
    boot_id: str
    time_namespace: Int64
    real_minus_boot_ns: Int64
    gm_bound_ns: Int64 | None
    utc_bound_ns: Int64 | None
    status: Status
    grandmaster_identity: str | None
    utc_seconds_removed: Int64 | None
    lost: Int64
    marks: list[Mark]


class RankState(Message):
    """One rank over the job's window: `last_share` is the share of conclusive steps in which it arrived last; null = none."""

    rank: Int64
    node: str
    wait_p50_ns: Int64 | None
    wait_total_ns: Int64 | None
    last_share: float | None
    lateness_p50_ns: Int64 | None
    marks_lost: Int64
    clock_status: Status


class Plan(Message):
    """How the barrier is to be run, for steps from `from_step` on; immutable for (attempt, version)."""

    version: Int64 = 0
    from_step: Int64 = 0
    mode: Literal["timed", "plain"] = "plain"
    slack_ns: Int64 = 0
    guard_ns: Int64 = 0
    reason: str = ""


class JobState(Ordered):
    """
    A job's two signals: how well the clocks of its nodes agree, and what synchronization costs it.

    `sync_overhead` is the ratio of time spent in synchronization to elapsed time, over the window. `last_rank` is the last
    to arrive in the newest complete step, null while *inconclusive*; `slow_rank` the rank that is last persistently.
    `alignment_pair` are the nodes whose clocks may be the furthest apart; `alignment_holds_for_ns` is how long there will be an alignment
    if nothing more is heard. `arrival_skew_error_ns` is the error bar of the skew (null: clocks not comparable).
    """

    job_id: str
    job: str
    attempt: Int64
    uid: Int64
    world_size: Int64
    published_realtime_ns: Int64
    step: Int64 | None
    steps_complete: Int64
    steps_incomplete: Int64
    sync_overhead: float | None
    arrival_skew_ns: Int64 | None
    arrival_skew_p50_ns: Int64 | None
    arrival_skew_error_ns: Int64 | None
    transfer_p50_ns: Int64 | None = None
    last_rank: Int64 | None
    slow_rank: Int64 | None
    verdict: str
    alignment_ns: Int64 | None
    alignment_growth_ppb: Int64 | None
    alignment_reason: str
    alignment_pair: list[str] | None = None
    alignment_holds_for_ns: Int64 | None = None
    ranks: list[RankState]
    plan: Plan
