"""Wire messages of the fleet at a glance: one sentence with its numbers, and the timing chain as groups of nodes."""

from __future__ import annotations

from typing import Literal

from timesyncd.ipc.wire_types import Count64, Int64, RealtimeNs
from timesyncd.messages.fleet import HubState, NodeAlignment
from timesyncd.messages.jobs import VerdictCode
from timesyncd.messages.node import OK, FindingMessage, Message, ReasonCode, Severity, Status
from timesyncd.messages.simulation import SimulationState

#: A value against the operator's limit. "unlimited": no limit is configured; "unknown": there is no value to judge.
Verdict = Literal["within", "exceeded", "unlimited", "unknown"]


class BuildInfo(Message):
    """Which timesyncd the daemon of `node` is. `commit`: 12 hexadecimal digits of its source; null: not known."""

    version: str
    commit: str | None
    python: str
    node: str


class ConfiguredLimits(Message):
    """The operator's limits, as `[limits]` configures them; null: no limit."""

    fleet_alignment_ns: Count64 | None = None
    job_alignment_ns: Count64 | None = None
    node_bound_ns: Count64 | None = None


class UnboundedCause(Message):
    """
    What `nodes` of the clocks without a bound share: `of` nodes have it in all. All of them lack a bound since
    `since_realtime_ns` (null: not known), most of them for `reason_code`.
    """

    kind: Literal["place", "parent", "grandmaster", "reason"]
    name: str
    nodes: Int64
    of: Int64
    since_realtime_ns: Int64 | None
    reason: str
    reason_code: ReasonCode = OK


class AffectedJob(Message):
    """A job whose clocks are not known to keep the limit. `without_bound` are its nodes that report no bound."""

    job_id: str
    job: str
    alignment_ns: Count64 | None
    verdict: Verdict
    reason: str
    reason_code: ReasonCode = OK
    without_bound: list[str] = []


class PossibleAction(Message):
    """
    What an operator can do. "drain": take these nodes out of the scheduler; "inspect": look at this subject;
    "acknowledge": take this finding.
    """

    kind: Literal["drain", "inspect", "acknowledge"]
    text: str
    nodes: list[str] = []
    subject: str | None = None
    finding: str | None = None


class Headline(Message):
    """
    The fleet's clocks in one sentence, with its numbers, as of `as_of_realtime_ns`.

    No two of the `compared` clocks differ by more than `alignment_ns`, growing by `growth_ppb`; without new states this
    holds for `holds_for_ns`. It states nothing of the other clocks: `without_bound` report no bound or did not report,
    and `not_compared` have a bound, but share no reference with the compared ones. The three add up to `nodes`.
    `alignment_ns` null: unknown, for `reason_code` and `reason`. `wide` nodes have a bound above the limit. `scope`
    "share": all of it is of this hub's share alone, where hubs share the fleet.
    """

    as_of_realtime_ns: RealtimeNs
    scope: Literal["fleet", "share"] = "fleet"
    text: str
    verdict: Verdict
    limits: ConfiguredLimits
    nodes: Int64
    compared: Int64
    without_bound: Int64
    not_compared: Int64
    wide: Int64 | None
    alignment_ns: Count64 | None
    growth_ppb: Count64 | None
    holds_for_ns: Count64 | None
    pair: list[str] | None
    reason: str
    reason_code: ReasonCode = OK
    p50_bound_ns: Count64 | None
    p99_bound_ns: Count64 | None
    worst_bound_ns: Count64 | None
    causes: list[UnboundedCause]
    jobs: list[AffectedJob]
    findings: dict[Severity, Int64]
    actions: list[PossibleAction]


class ChainGroup(Message):
    """
    Nodes of one place behind one parent clock of one grandmaster ("": none, or not known), counted by main status.
    `bound_ns` is the widest main bound of those that have one.
    """

    grandmaster: str
    grandmaster_identity: str
    parent_identity: str
    place: str
    nodes: Int64
    without_bound: Int64
    statuses: dict[Status, Int64]
    bound_ns: Count64 | None


class GrandmasterBrief(Message):
    """A grandmaster in one line. `followers` are the nodes that follow it."""

    name: str
    identities: list[str]
    reachable: bool
    clock_state: str | None
    gnss_state: str | None
    antenna: str | None
    alarms: Int64 | None
    utc_bound_ns: Count64 | None
    holdover_left_ns: Int64 | None
    followers: Int64


class JobBrief(Message):
    """A job in one line. `places` are its ranks by their nodes' place."""

    job_id: str
    job: str
    attempt: Int64
    world_size: Int64
    alignment_ns: Count64 | None
    alignment_verdict: Verdict
    straggler_rank: Int64 | None
    verdict: str
    verdict_code: VerdictCode
    sync_overhead: float | None
    places: dict[str, Int64]


class Overview(Message):
    """
    All that a first look at the fleet needs, computed at one moment. `lag_ns` is the age of the oldest state of a
    reporting node that it rests on; null: no node reports. `findings` are the active ones, the most severe first, at most
    100; `worst` are a few nodes, those without a bound first, then the widest. `simulation` null: nothing is known to be simulated.
    """

    as_of_realtime_ns: RealtimeNs
    lag_ns: Int64 | None
    node: str
    headline: Headline
    statuses: dict[Status, Int64]
    chain: list[ChainGroup]
    grandmasters: list[GrandmasterBrief]
    jobs: list[JobBrief]
    findings: list[FindingMessage]
    hubs: list[HubState]
    worst: list[NodeAlignment] = []
    simulation: SimulationState | None = None
