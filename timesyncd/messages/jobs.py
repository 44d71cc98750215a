"""Wire messages about training jobs: the ranks' marks, policy requests, and the state that a hub computes of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from timesyncd.bound import UNKNOWN_PAST_PPB
from timesyncd.config import canonical_policy
from timesyncd.ipc.job_datagram import Header, Mark
from timesyncd.ipc.job_segment import Method, Plan, PolicyText
from timesyncd.ipc.wire_types import Code, Int64, Ratio, RealtimeNs, VarianceNs2
from timesyncd.messages.node import OK, Message, Ordered, ReasonCode, Status, status_name

#: "straggler": late beyond the clocks' error; "inconclusive": seems late, but within it.
StragglerVerdict = Literal["straggler", "inconclusive"]


class VerdictCode(Code):
    """What the verdict on a job's newest steps is."""

    UNKNOWN = "unknown"
    NO_COMPLETE_STEP = "no_complete_step"
    STRAGGLER = "straggler"
    STRAGGLER_WITHIN_CLOCK_ERROR = "straggler_within_clock_error"
    NO_STRAGGLER = "no_straggler"
    LATENESS_MAY_BE_CHANCE = "lateness_may_be_chance"
    SKEW_WITHIN_CLOCK_ERROR = "skew_within_clock_error"
    NO_WAIT_FOR_ALL_RANKS = "no_wait_for_all_ranks"
    CLOCK_STEPPED = "clock_stepped"
    CLOCK_ERROR_UNKNOWN = "clock_error_unknown"
    SLOW_TOGETHER = "slow_together"
    NOTHING_ALIKE = "nothing_alike"
    CALLS_NOT_METERED = "calls_not_metered"


class PhaseReason(Code):
    """How the plan of a job's link came about, or why there is none."""

    UNKNOWN = "unknown"
    NOT_ON_A_LINK = "not_on_a_link"
    NOT_PLANNED = "not_planned"
    NO_OTHER_JOB = "no_other_job"
    TOO_MANY_JOBS = "too_many_jobs"
    INTERLEAVED = "interleaved"
    ADOPTED = "adopted"
    CLOCKS_UNKNOWN = "clocks_unknown"
    JOB_ARRIVED = "job_arrived"
    JOB_LEFT = "job_left"
    STEPS_NOT_FASTER = "steps_not_faster"
    NO_STABLE_PERIOD = "no_stable_period"
    NO_COMMON_PERIOD = "no_common_period"
    NO_GAIN = "no_gain"


class GroupsReason(Code):
    """What the groups of a job's ranks are made of, or why there are none."""

    UNKNOWN = "unknown"
    BY_TOPOLOGY = "by_topology"
    BY_DELAY = "by_delay"
    ADOPTED = "adopted"
    NO_GROUPS = "no_groups"
    TOO_MANY_RANKS = "too_many_ranks"
    RANKS_MISSING = "ranks_missing"
    NODE_UNKNOWN = "node_unknown"


class MarkBatch(Ordered):
    """A datagram of the job link as the node's daemon received it; the daemon adds the sender's uid and pid."""

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
    own_overhead_ns: Int64 = 0
    joined_ns: Int64 = 0
    past_growth_ppb: Int64 = UNKNOWN_PAST_PPB
    marks: list[Mark]

    @classmethod
    def of(
        cls,
        header: Header,
        marks: Iterable[Mark],
        *,
        node: str,
        incarnation: int,
        sequence: int,
        uid: int,
        pid: int,
    ) -> MarkBatch:
        """
        `node`, `incarnation`, `sequence`, `uid` and `pid` are not in the datagram: the receiving daemon adds them.
        """
        return cls(
            node=node,
            incarnation=incarnation,
            sequence=sequence,
            uid=uid,
            pid=pid,
            job=header.job,
            attempt=header.attempt,
            rank=header.rank,
            world_size=header.world_size,
            boot_id=f"{header.boot_id:032x}",
            time_namespace=header.time_namespace,
            real_minus_boot_ns=header.real_minus_boot_ns,
            gm_bound_ns=header.gm_bound_ns,
            utc_bound_ns=header.utc_bound_ns,
            status=status_name(header.status),
            grandmaster_identity=header.grandmaster_identity,
            utc_seconds_removed=header.utc_seconds_removed,
            lost=header.lost,
            own_overhead_ns=header.own_overhead_ns,
            joined_ns=header.joined_ns,
            past_growth_ppb=header.past_growth_ppb,
            marks=list(marks),
        )


class RankState(Message):
    """
    One rank over the job's window. `last_share` is the share of conclusive steps in which it arrived last; null: there
    are none. `idle_share` is the share of its time in which it only waited for synchronizations, `exposed_p50_ns` that
    time a step. `joined_ns` identifies the process that the hub counts as this rank.
    """

    rank: Int64
    node: str
    wait_p50_ns: Int64 | None
    wait_total_ns: Int64 | None
    last_share: Ratio | None
    lateness_p50_ns: Int64 | None
    marks_lost: Int64
    clock_status: Status
    joined_ns: Int64 | None = None
    wait_p99_ns: Int64 | None = None
    idle_share: Ratio | None = None
    exposed_p50_ns: Int64 | None = None
    staleness_p50: Int64 | None = None


class StragglerMessage(Message):
    """
    A rank that is persistently late, by `lateness_p50_ns` after the median rank, at `where` of the step ("bucket 2").
    `exposed_ns` is the time over the window that the other ranks waited for this one only. "inconclusive": the lateness
    is within the clocks' error. `place`: which work of the worst one takes the time ("in the backward pass"); null: not
    known, for `place_reason`, or it is another one.
    """

    rank: Int64
    node: str
    last_share: Ratio
    lateness_p50_ns: Int64
    exposed_ns: Int64
    where: str
    verdict: StragglerVerdict
    place: str | None = None
    place_reason: str | None = None
    place_reason_code: Literal["no_parts", "spread"] | None = None


class DelayState(Message):
    """The one-way delay of messages from one rank to another, correct within +-`error_ns`: the two clocks' bounds."""

    from_rank: Int64
    to_rank: Int64
    p50_ns: Int64
    error_ns: Int64


class PolicyRequest(Ordered):
    """
    A user on this node requests a policy for a job; the daemon adds uid. Only the job's own user and root may do so.
    """

    uid: Int64
    job_id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    policy: Annotated[PolicyText, AfterValidator(canonical_policy)]


class JobState(Ordered):
    """
    A job's two signals: how well the clocks of its nodes agree, and what synchronization costs the job. docs/signals.md
    defines each number. Steps are keys, epoch x 2^32 + step.

    `sync_overhead` is the ratio of exposed synchronization time to elapsed time, over the window, in the newest step
    and in this epoch; `comm_compute` that of exposed communication to the rest. `last_rank` arrived last in the newest
    complete step, null while *inconclusive*; `straggler_rank` is the worst of the `stragglers`, null where none is
    certain. `method` is how arrivals were compared: by one clock, by the clocks' bounds, or (without trusted clocks) by
    the ends of the job's own collectives. Differences are correct within +-`clock_bound_ns`; `trusted`: the skew is
    larger than that. `alignment_pair` are the nodes whose clocks may be the furthest apart; without new states the
    alignment holds for `alignment_holds_for_ns`. `arrival_skew_error_ns` is the error of the newest skew (null: clocks
    not comparable). `run` counts the restarts of the attempt.
    """

    job_id: str
    job: str
    attempt: Int64
    uid: Int64
    world_size: Int64
    run: Int64 = 0
    published_realtime_ns: RealtimeNs
    step: Int64 | None
    steps_complete: Int64
    steps_incomplete: Int64
    marks_repeated: Int64 = 0
    marks_refused: Int64 = 0
    sync_overhead: Ratio | None
    sync_overhead_step: Ratio | None = None
    sync_overhead_epoch: Ratio | None = None
    comm_compute: Ratio | None = None
    own_overhead: Ratio | None = None
    arrival_skew_ns: Int64 | None
    arrival_skew_p50_ns: Int64 | None
    arrival_skew_p99_ns: Int64 | None = None
    arrival_skew_error_ns: Int64 | None
    arrival_variance_ns2: VarianceNs2 | None = None
    end_variance_ns2: VarianceNs2 | None = None
    transfer_p50_ns: Int64 | None = None
    transfer_p99_ns: Int64 | None = None
    barrier_wait_p50_ns: Int64 | None = None
    barrier_wait_p99_ns: Int64 | None = None
    update_latency_p50_ns: Int64 | None = None
    response_p50_ns: Int64 | None = None
    response_p99_ns: Int64 | None = None
    staleness_p50: Int64 | None = None
    staleness_max: Int64 | None = None
    last_rank: Int64 | None
    straggler_rank: Int64 | None
    stragglers: list[StragglerMessage] = []
    method: Method | None = None
    clock_bound_ns: Int64 | None = None
    trusted: bool = False
    verdict: str
    verdict_code: VerdictCode = VerdictCode.UNKNOWN
    alignment_ns: Int64 | None
    alignment_growth_ppb: Int64 | None
    alignment_reason: str
    alignment_reason_code: ReasonCode = OK
    alignment_pair: list[str] | None = None
    alignment_holds_for_ns: Int64 | None = None
    delays: list[DelayState] = []
    link: str | None = None
    phase_reason: str = ""
    phase_reason_code: PhaseReason = PhaseReason.UNKNOWN
    groups_reason: str = ""
    groups_reason_code: GroupsReason = GroupsReason.UNKNOWN
    ranks: list[RankState]
    plan: Plan
