"""The models of report.json; schemas/audit_report.json is its schema."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from timesyncd.ipc.job_segment import Method
from timesyncd.ipc.wire_types import Int64
from timesyncd.jobs.missing_ranks import HangCause
from timesyncd.jobs.own_place import PlaceUnknown
from timesyncd.messages.node import Message
from timesyncd.training.policy.learning import LearningVerdict, NoComparison

Share = float


class EstimateReport(Message):
    """A value and its 95 % confidence interval; both ends null: too few steps for one."""

    value: float
    low: float | None = None
    high: float | None = None


class AbsentRankReport(Message):
    """A rank that others waited for. `cause` "no_sign": nothing is known of it since its `last_step`, so it may be there."""

    rank: Int64
    node: str
    last_step: Int64 | None
    cause: HangCause


class HangReport(Message):
    """
    The recording ends in a hang: `waiting` ranks were inside `where` of the step for `waited_ns`, without the `absent`.
    `elsewhere`: ranks that waited in another synchronization.
    """

    sentence: str
    step: Int64
    where: str
    waiting: list[Int64]
    waited_ns: Int64
    absent: list[AbsentRankReport]
    elsewhere: list[Int64]


class RankWait(Message):
    """
    One rank's waits for the last arrival: the longest of each step, in ns; null: not comparable.

    `exposed_ns`: its time in synchronization that compute did not hide, over all steps.
    """

    rank: Int64
    node: str
    p50: Int64 | None
    p99: Int64 | None
    total: Int64 | None
    exposed_ns: Int64


class StragglerReport(Message):
    """
    A persistently late rank: it was the last at `where` in `last_share` of the compared steps, `lateness_p50_ns` after
    the median rank in the median of `late_share` of the steps, and hardly late in the others. The others waited
    `exposed_ns` for it over all steps (0: their compute hid its lateness).

    `place` says which work is late, as far as the marks separate it: "at bucket 1", "before bucket 0" (all that a rank
    does between two steps and up to its first synchronization), "in the update before bucket 0".

    `group`, `dimension`: of a job that synchronizes in groups, the ranks of the group in which the others waited for it
    most, and its dimension of the mesh; null: unknown, or all ranks.
    """

    rank: Int64
    node: str
    last_share: Share
    lateness_p50_ns: Int64
    exposed_ns: Int64
    where: str
    place: str
    verdict: Literal["straggler", "inconclusive"]
    group: list[Int64] | None = None
    dimension: str | None = None
    late_share: Share = 1.0


class RareReport(Message):
    """
    A few steps that hold most of the waiting: `steps` (keys, the first 100) are `count` of `compared_steps`, with
    `share` of the waiting, `wait_ns` each in the median, for `rank` if one is named.

    In `rank_steps` of them the others waited for `rank`; null: equal ranks come so by chance too often. `every`: so
    many steps apart; null: irregular. `overhead_elsewhere`: the overhead of all other steps.
    """

    sentence: str
    steps: list[Int64]
    count: Int64
    compared_steps: Int64
    share: Share
    wait_ns: Int64
    rank: Int64 | None
    node: str | None
    rank_steps: Int64
    every: Int64 | None
    overhead_elsewhere: Share | None


class LateSpanReport(Message):
    """
    A rank that is late in a part of the steps, or increasingly. `from_step` null: from the begin of the recording;
    `to_step` null: to its end. `lateness_p50_ns` and `exposed_ns` are of these steps. `first_ns` and `last_ns`: the
    lateness at both ends, where it grows or shrinks steadily; null: it does not.
    """

    rank: Int64
    node: str
    from_step: Int64 | None
    to_step: Int64 | None
    lateness_p50_ns: Int64
    exposed_ns: Int64
    where: str
    place: str
    first_ns: Int64 | None
    last_ns: Int64 | None


class OverheadSourceReport(Message):
    """
    A cause of exposed synchronization time. `wait`: for `rank` (null: inconclusive which one); `transfer`: after the
    last arrival; `request`: of `rank` to a parameter server; `undivided`: the clocks cannot separate waiting and
    transfer.

    `share` is of all exposed time; `overhead` is the cause's part of `sync_overhead`.
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
    One stage of a step. "compute": until the wait at `where`; "synchronize": in it; "update": after the last one
    (`where` empty). Of a job that synchronizes in groups these are the parts of each rank's own time: "compute" in the
    part `where`, "update" in the optimizer, "synchronize" what a rank only waited; the means of all ranks, without `rank`.

    `cost_ns` is the mean time that the stage adds to a step, `share` its part of the step's length; what another rank
    hides adds nothing. `rank` is the slowest one in `lead_share` of the steps; null: none, or by chance. No two clocks
    are compared.
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
    The result of replaying the recorded steps with a remedy. `gain` is the share of the time that it would save; null:
    it does not apply, for `reason`. The gain depends on `assumption`.
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
    The gradient buckets of most steps, `bytes` in the order of their reduction. After its last gradient a step waited
    `exposed_ns` for them. A reduction takes `latency_ns` plus the transfer of its bytes at `bytes_per_s`, both fitted.

    `caps_mib`: the sizes in MiB that are suggested for DistributedDataParallel, the last one for all further buckets;
    null: none, for `reason`. The best tried sizes would save `saved_ns` +- `error_ns` per step. `order`: which buckets
    may have waited for another one, as a sentence.
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


class AdviceKind(StrEnum):
    """What could be changed about a job."""

    SWAP_NODE = "swap_node"
    MOVE_RANK = "move_rank"
    BATCH_SHARES = "batch_shares"
    GROUPS = "groups"
    BUCKETS = "buckets"
    HALF_PRECISION = "half_precision"
    LOCAL_STEPS = "local_steps"


class NoPrice(StrEnum):
    """Why an advice has no price. Programs decide by it; the sentence beside it is for people."""

    NOT_COMPARABLE = "not_comparable"  #: the ranks' steps cannot be replayed
    TOO_FEW_STEPS = "too_few_steps"  #: for an error of the gain
    NO_STRAGGLER = "no_straggler"  #: there is nothing to change
    NO_OTHER_NODE = "no_other_node"  #: nothing shows how fast another place is
    NOT_RECORDED = "not_recorded"  #: the recording lacks what the price depends on
    NOT_WORTH_IT = "not_worth_it"  #: the gain is not above its error, or too small


class AdviceReport(Message):
    """
    A change, and what it would gain: `gain` is the share of the time that it would save, with its 95 % interval over
    the steps; null: there is no price, for `reason_code` and `reason`. A gain depends on `assumption`, which no
    recording can test.

    `action` says how to make the change. `ranks`: whom it concerns. `shares`: by rank, the share of the global batch;
    their sum is 1; null: another change.
    """

    kind: AdviceKind
    title: str
    action: str
    ranks: list[Int64]
    gain: EstimateReport | None
    step_saved_ns: Int64 | None
    shares: list[Share] | None
    reason_code: NoPrice | None
    reason: str
    assumption: str


class JobAdvice(Message):
    """`timesyncd advise --json`: what could be changed about a job, the largest gain first, then what has no price."""

    version: Int64 = 1
    job: str
    steps: Int64
    step_ns: EstimateReport | None
    advice: list[AdviceReport]


class DurationReport(Message):
    """A time in ns, and half of its 95 % interval."""

    ns: Int64
    error_ns: Int64


class TransferCostReport(Message):
    """
    What a synchronization of `kind` takes, fitted to transfers of `sizes` different sizes: `latency`, and its bytes at
    `bytes_per_s`, of which the 95 % interval is from `bytes_per_s_low` to `bytes_per_s_high` (null: without a limit).
    """

    kind: str
    sizes: Int64
    latency: DurationReport
    bytes_per_s: Int64
    bytes_per_s_low: Int64
    bytes_per_s_high: Int64 | None


class ExposedShareReport(Message):
    """A part of the exposed time as a share of it, and half of its 95 % interval; "unknown" is the rest."""

    part: Literal["waiting", "latency", "serialization", "bandwidth", "unknown"]
    value: float
    error: float


class ExposedPartsReport(Message):
    """
    The parts of a step's exposed time, in the mean of the ranks: `waiting`, `latency`, `serialization`, `bandwidth` and
    `rest` add up to `exposed`. The rest is what the fitted `costs` do not explain. `serialization`: the CPU time of
    packing and compressing, at least; null: not recorded, and a part of `bandwidth`. `shares`: the same as shares of
    `exposed`, with errors of their own.

    `limit`: the part that has more than half of it; "loss": that is the rest, and TCP sent so much again that it can
    explain it; "unknown": none for sure, for `reason`. A step would be `saved_by_bandwidth` shorter if each link were
    twice as fast, `saved_by_latency` if each latency were half as long, `saved_by_serialization` without any packing.
    """

    exposed: DurationReport
    waiting: DurationReport
    latency: DurationReport
    serialization: DurationReport | None = None
    bandwidth: DurationReport
    rest: DurationReport
    saved_by_bandwidth: DurationReport
    saved_by_latency: DurationReport
    saved_by_serialization: DurationReport | None = None
    shares: list[ExposedShareReport] = Field(default_factory=list)
    costs: list[TransferCostReport]
    limit: Literal["waiting", "latency", "serialization", "bandwidth", "loss", "unknown"]
    reason: str


class LinkReport(Message):
    """
    What `rank` sent to `peer` at `address` by TCP, since the connections were opened; null: the kernel does not give it.
    `interface` null: both ranks are on one host.

    `retransmitted` of `segments` were sent again. `rtt_ns`: smoothed, as of the last reading; `min_rtt_ns`: the smallest
    of the last minutes. `busy_ns`: data was under way; of it, the receiver's window held the rank back for
    `rwnd_limited_ns`, its own send buffer for `sndbuf_limited_ns`.
    """

    rank: Int64
    peer: Int64
    address: str
    interface: str | None
    sent_bytes: Int64 | None
    retransmitted: Int64
    segments: Int64 | None
    rtt_ns: Int64 | None
    min_rtt_ns: Int64 | None
    delivery_bytes_per_s: Int64 | None
    busy_ns: Int64 | None
    rwnd_limited_ns: Int64 | None
    sndbuf_limited_ns: Int64 | None


class InterfaceReport(Message):
    """
    An interface that carries the job, over `elapsed_ns` of it: all traffic counts, and packets that it `dropped` or that
    had `errors`.
    """

    node: str
    name: str
    elapsed_ns: Int64
    sent_bytes: Int64
    received_bytes: Int64
    dropped: Int64
    errors: Int64


class NetworkReport(Message):
    """
    What the ranks saw of the network: facts, from which alone no cause follows. `evidence`: the worst of them as
    sentences. `links`: the worst first, at most 1,000. `packing_ns`: the CPU time of packing and compressing in the whole recording, in the mean of the ranks.
    """

    evidence: list[str]
    links: list[LinkReport]
    interfaces: list[InterfaceReport]
    packing_ns: Int64


class LearningReport(Message):
    """
    How two recordings learn: the mean `loss` of both where both have it, `at` equal steps or equally long after the
    first step, and `change`, their difference as a share of the loss before, with its 95 % interval; null: unknown.

    `verdict`: "worse" where the loss is higher by more than 1 %, which is said by chance of at most one run in 100 for
    which it is not so; "keeps_up" where it surely is not; "undecided": it scatters too much; "unknown", for `reason_code`
    and `reason`. `values`: how many losses were compared.
    """

    loss: Literal["training", "validation"]
    at: Literal["steps", "time"]
    values: Int64
    before: float | None
    after: float | None
    change: EstimateReport | None
    verdict: LearningVerdict
    reason_code: NoComparison | None
    reason: str
    sentence: str


class BeforeAfter(Message):
    """
    Two recordings compared: `step_ratio` is the step time after over before, `overhead_change` is after minus before.
    `learning`: their losses, where the ranks recorded any.
    """

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
    learning: list[LearningReport] = Field(default_factory=list)


class UnmeteredCallsReport(Message):
    """
    `calls` of the collective or message `name` in groups of `group_size` ranks have no mark, over all ranks, from
    the third step on. `dimension`: that of the device mesh that the groups are of; null: none.
    """

    name: str
    group_size: Int64
    dimension: str | None
    calls: Int64


class GroupReport(Message):
    """
    One communicator: a process group of `ranks`, of a dimension of the device mesh (null: of none). `syncs` of its
    synchronizations have the marks of all its ranks. `skew_p50_ns`: last arrival minus first one, the median; null: the
    clocks do not compare. `waited_ns`: for so long its ranks were inside, where compute did not hide it.
    """

    name: str
    dimension: str | None
    ranks: list[Int64]
    syncs: Int64
    skew_p50_ns: Int64 | None
    waited_ns: Int64


class MessageReport(Message):
    """
    The messages from `sender` to `receiver` in a group of this dimension: `count` are paired, and the receiver surely
    waited when `waited` of them were sent, so that their arrival is known.

    `delay_p50_ns`, `delay_min_ns`: from the call that sent it to its arrival, right within +-`error_ns`; null: unknown
    for `reason`.
    """

    sender: Int64
    receiver: Int64
    dimension: str | None
    count: Int64
    waited: Int64
    delay_p50_ns: Int64 | None
    delay_min_ns: Int64 | None
    error_ns: Int64 | None
    reason: str


class WithheldReport(Message):
    """
    All `ranks` of a group are late, at least by `lateness_ns`: more work and slow ranks look the same, so none is named.
    """

    ranks: list[Int64]
    dimension: str | None
    lateness_ns: Int64


class OwnWaitsReport(Message):
    """
    The ranks of a running job by their own times. `together`: ranks that are slow together, so none is named.
    `unknown`: ranks with calls that have no mark, so for how long they waited is unknown. `place_unknown`: why it is
    unknown in which part of a step the slow rank loses its time; null: it is known, or no rank is named.
    """

    together: list[Int64]
    unknown: list[Int64]
    place_unknown_code: PlaceUnknown | None = None
    place_unknown: str | None = None


class AuditReport(Message):
    """
    An audit of one job. Times are in ns, ratios from 0 to 1; null: unknown.

    `headline` is the main result in one or two sentences. `sync_overhead` is exposed synchronization time over step
    time, both summed over ranks and steps. `wait_ns` is in the order of the ranks, `stragglers` the worst first,
    `late_spans` in the order of time, `sources` the costliest first, `stages` in the order of a step, `remedies` in the
    order of gain (empty: the ranks are not comparable, or train apart), `advice` too, and last what has no price. `lateness_may_be_chance`: a rank that is not
    among the stragglers is late in most steps, but lateness that wanders looks the same in so few. `hang` null: the recording ends in none. `rare`
    null: no few steps hold most of the waiting. `unreduced_steps`: the steps in which no reduction is recorded. `buckets` null: no comparable ones are
    recorded. `exposed_parts` null: there are none, because of `no_exposed_parts`. `network` null: no rank recorded its connections. `method`: how ranks were compared (null: they could not be), within
    +-`clock_bound_ns`. `own_overhead`: the share of the ranks' time that metering took.

    `groups` (the costliest first), `messages`: of a job that synchronizes in groups. Then the ranks are compared by
    their own time, without their waits, each on its own clock, and `method` is null. `withheld`: late ranks of which
    none is named. `alone`: the ranks that have no other rank with the same work, so their lateness is unknown.
    `own_waits`: of such a job only each rank's waits by step are known, as a hub has them; null: it is none, or all
    marks are known.
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
    lateness_may_be_chance: bool = False
    hang: HangReport | None
    rare: RareReport | None
    late_spans: list[LateSpanReport]
    unreduced_steps: Int64
    sources: list[OverheadSourceReport]
    stages: list[StageReport]
    remedies: list[RemedyReport]
    advice: list[AdviceReport]
    buckets: BucketReport | None
    exposed_parts: ExposedPartsReport | None = None
    no_exposed_parts: str = ""
    network: NetworkReport | None = None
    before_after: BeforeAfter | None
    method: Method | None
    clock_bound_ns: Int64 | None
    own_overhead: float | None
    marks_lost: Int64
    metered_calls: Int64 | None
    unmetered: list[UnmeteredCallsReport]
    groups: list[GroupReport] = Field(default_factory=list)
    messages: list[MessageReport] = Field(default_factory=list)
    withheld: list[WithheldReport] = Field(default_factory=list)
    alone: list[Int64] = Field(default_factory=list)
    own_waits: OwnWaitsReport | None = None
    notes: list[str] = Field(default_factory=list)
