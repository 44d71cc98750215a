"""
Wire messages about nodes, grandmasters, alarms and findings, on MQTT, HTTP and server-sent events; schemas/ is exported
from here.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

from timesyncd.bound import (
    DEFAULT_HOLDOVER_AFTER_NS,
    DEFAULT_VOID_AFTER_NS,
    GRANDMASTER_EXPIRES_AFTER_NS,
    Bound,
    ClockStatus,
    ErrorBound,
    Reason,
)
from timesyncd.config import Name
from timesyncd.ipc.wire_types import Age, Int64, RealtimeNs
from timesyncd.sample import (
    Alarm,
    GrandmasterSample,
    InputReference,
    Interface,
    NoSampleCause,
    Position,
    PtpPort,
    Satellite,
    Sensor,
    TimeError,
)

Status = Literal["UNKNOWN", "SYNCHRONIZED", "HOLDOVER", "DISRUPTED"]
Severity = Literal["info", "warning", "critical"]
LeapName = Literal["none", "insert", "delete", "both"]
Sequence64 = Field(ge=0, lt=2**63)


class StateReason(StrEnum):
    """
    Codes of a state's reason that are not a bound's own (`bound.Reason`) nor a failed reading's
    (`sample.NoSampleCause`).
    """

    NO_SOURCE = "no_source"
    LAST_KNOWN = "last_known"
    NODE_SILENT = "node_silent"
    NODE_NEVER_REPORTED = "node_never_reported"
    NO_NODE_REPORTS = "no_node_reports"
    NO_BOUND = "no_bound"
    RANKS_MISSING = "ranks_missing"
    OTHER_BOOT_OF_RANK = "other_boot_of_rank"
    TOO_FAR_APART = "too_far_apart"
    SHARE_UNAVAILABLE = "share_unavailable"


OK = Reason.OK.code
"""The code of a state without a reason."""

REASON_CODES = tuple(dict.fromkeys((*(reason.code for reason in Reason), *NoSampleCause, *StateReason)))

#: A named type, so that the schemas list the codes once.
ReasonCode = TypeAliasType(
    "ReasonCode",
    Annotated[
        str,
        Field(
            pattern=r"^[a-z0-9_]{1,64}$",
            description='The machine-readable form of the reason beside it; "ok": there is none. Programs decide by it alone, '
            "and treat a code that they do not know as a failure.",
            examples=list(REASON_CODES),
        ),
    ],
)


class Message(BaseModel):
    """Unknown keys are ignored, so that an older reader understands a newer writer."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, cache_strings="keys")

    def lasting_json(self) -> str:
        """The message without its ageing fields: equal for two readings of a state between which nothing changed."""
        return self.model_dump_json(exclude=ageing_fields(type(self)))


#: Fields that differ at every reading of a state.
_AGEING = frozenset({"age_ns", "since_poll_ns", "sequence", "published_realtime_ns", "as_of_realtime_ns", "lag_ns"})


@cache
def ageing_fields(message_type: type[BaseModel]) -> dict[str, Any]:
    """The ageing fields of a message and of the messages in it, as pydantic's `exclude`; {} where there are none."""
    found: dict[str, Any] = {}
    for name, field in message_type.model_fields.items():
        if name in _AGEING:
            found[name] = True
        elif nested := _nested(field.annotation):
            found[name] = nested
    return found


def _nested(annotation: Any) -> dict[str, Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ageing_fields(annotation)
    inner = next((found for part in get_args(annotation) if (found := _nested(part))), {})
    return {"__all__": inner} if inner and get_origin(annotation) is list else inner


class Ordered(Message):
    """Order is (node, incarnation, sequence): clocks step, counters do not."""

    node: Name
    incarnation: int = Sequence64
    sequence: int = Sequence64


class BoundMessage(Message):
    """|error| <= bound_ns + growth_ppb x age. `bound_ns` null: unbounded; `reason_code` and `reason` state why."""

    bound_ns: Annotated[int, Field(ge=0, lt=2**63)] | None
    growth_ppb: Annotated[int, Field(ge=0, lt=2**63)]
    reason: str
    reason_code: ReasonCode = OK

    @classmethod
    def of(cls, bound: Bound) -> BoundMessage:
        reason = bound.reason
        return cls(bound_ns=bound.bound_ns, growth_ppb=bound.growth_ppb, reason=reason.text, reason_code=reason.code)


class SourceState(Message):
    """
    One clock source of a node as last read.

    `reason_code` and `reason` state why the last reading gave no sample. `kind` is what the source measures against: a
    PTP parent, a PHC, UTC, or nothing but the kernel's own status. `offset_ns` is local minus reference, correct within
    +-`error_ns` where the source gives an error; against a PHC it excludes the whole seconds between two timescales,
    which `detail` gives. `clock` is the measured clock ("realtime", "phc:0"), and `daemon_pid` the process that replied;
    `steers_system_clock` is whether that ptp4l steers CLOCK_REALTIME, by its samples so far (null: not known). `leap` is the leap second
    that the source announces, or that is armed in the kernel; "both" is a contradiction. `gm` and `utc` are the bounds by this source alone, as of its newest sample, `age_ns` before
    the state was published. The last poll ended `since_poll_ns` before that and took `poll_duration_ns`.

    `assumed` are the values of `[source.bounds]` on which these bounds rest, by their names in the file (null: not set), and
    `configured` those that the file sets; the others are defaults. The samples show `refuted` instead of what is assumed, and
    that counts.
    """

    name: str
    driver: str
    reachable: bool
    kind: Literal["ptp", "phc", "utc", "kernel"] | None = None
    detail: str | None = None
    reason: str | None = None
    reason_code: ReasonCode = OK
    clock: str | None = None
    daemon_pid: Int64 | None = None
    steers_system_clock: bool | None = None
    port_state: str | None = None
    offset_ns: Int64 | None = None
    error_ns: Int64 | None = None
    path_delay_ns: Int64 | None = None
    frequency_ppb: Int64 | None = None
    clock_class: Int64 | None = None
    clock_accuracy: Int64 | None = None
    steps_removed: Int64 | None = None
    domain: Int64 | None = None
    ptp_timescale: bool | None = None
    grandmaster_identity: str | None = None
    current_utc_offset_s: Int64 | None = None
    time_traceable: bool | None = None
    leap: LeapName | None = None
    utc_seconds_removed: Int64 | None = None
    gm: BoundMessage | None = None
    utc: BoundMessage | None = None
    age_ns: Int64 | None = None
    poll_duration_ns: Int64 | None = None
    since_poll_ns: Int64 | None = None
    assumed: dict[str, Int64 | None] = {}
    configured: list[str] = []
    refuted: dict[str, Int64] = {}


class NodeState(Ordered):
    """
    A node's clock: hard bounds, and (`*_stat`) statistical bounds that hold at 99.7 % of all moments.

    `topology` is the node's place, as "hall-1/rack-12"; `link` names the network link that its jobs share. `age_ns` is
    the age of the bounds by the node's CLOCK_BOOTTIME at publication; they grow from then less `age_ns`, and the newest
    sample behind them is older by `since_sample_ns`. The next state follows within `every_ns`. Nodes with equal
    `boot_id` and `time_namespace` share one clock.

    By name, `terms` add up to the hard parent bound, `stat_terms` to the statistical one, and `rates` (ppb) to the
    growth of the hard one. `falsetickers` are sources that contradict the majority; `sources_contradict`: there is no
    single majority, and the UTC bound holds whichever is right. `utc_narrowed_by` are the sources that make the UTC
    bound narrower than the one by the grandmaster, or give it where the grandmaster gives none; `utc_dependent` are
    sources that know UTC and narrow nothing, since they may share a cause of error with the deciding one. `grandmaster`
    is the configured name of the grandmaster that the clock follows, where its identity is known, and
    `grandmaster_summary` its state in words.
    """

    published_realtime_ns: RealtimeNs
    age_ns: Age | None
    since_sample_ns: Age = 0
    every_ns: Age = 2_000_000_000
    boot_id: str
    time_namespace: Int64
    topology: Annotated[str, Field(max_length=255)] = ""
    link: Annotated[str, Field(max_length=64)] | None = None
    status: Status
    utc_status: Status
    reason: str = ""
    reason_code: ReasonCode = OK
    since_realtime_ns: Int64 | None
    parent: BoundMessage | None = None
    gm: BoundMessage | None = None
    utc: BoundMessage | None = None
    parent_stat: BoundMessage | None = None
    gm_stat: BoundMessage | None = None
    utc_stat: BoundMessage | None = None
    terms: dict[str, Int64] = {}
    stat_terms: dict[str, Int64] = {}
    rates: dict[str, Int64] = {}
    holdover_after_ns: Int64 = DEFAULT_HOLDOVER_AFTER_NS
    void_after_ns: Int64 = DEFAULT_VOID_AFTER_NS
    grandmaster_identity: str | None = None
    parent_identity: str | None = None
    utc_seconds_removed: Int64 | None = None
    clock: str | None = None
    grandmaster: str | None = None
    grandmaster_summary: str | None = None
    sources: Annotated[list[SourceState], Field(max_length=64)] = []
    falsetickers: list[str] = []
    sources_contradict: bool = False
    utc_narrowed_by: list[str] = []
    utc_dependent: list[str] = []

    @property
    def knows_utc_alone(self) -> bool:
        """
        Its sources know UTC and no grandmaster, as with NTP: then its main status and bound are those against UTC.
        """
        without = self.gm is not None and self.gm.reason_code == Reason.NO_GRANDMASTER.code
        return without and all(source.kind in ("utc", "phc", "kernel") for source in self.sources)

    @property
    def main_status(self) -> Status:
        return self.utc_status if self.knows_utc_alone else self.status

    @property
    def main_bound(self) -> BoundMessage | None:
        return self.utc if self.knows_utc_alone else self.gm


class RepeatedState(NamedTuple):
    """
    A node's state that differs from the node's last live one in these numbers alone. It is not on the wire: a reader
    that compared the rest need not decode it.
    """

    node: str
    incarnation: int
    sequence: int
    published_realtime_ns: int
    age_ns: int | None

    @classmethod
    def of(cls, state: NodeState) -> RepeatedState:
        return cls(state.node, state.incarnation, state.sequence, state.published_realtime_ns, state.age_ns)


class GrandmasterOffset(Message):
    """
    This grandmaster's time minus that of the grandmaster `other`, within +-`bound_ns`; `evidence` names what measured
    it.
    """

    other: str
    offset_ns: Int64
    bound_ns: Int64
    evidence: str


class GrandmasterState(Ordered):
    """
    What a grandmaster reported when `node` last polled it. null: not provided; []: it reports that there is none.
    `reachable` false: the values are the last known ones.

    `utc` bounds its own error against UTC at the poll, `age_ns` before publication; null before the first sample.
    `utc_detail` adds to its reason. `holdover_left_ns` is what was left of its holdover budget. What its followers
    measured before `invalid_before_realtime_ns` is invalid, for `invalidation_reason`. `snmp_error` is why SNMP gave
    nothing in a poll where HTTPS answered.
    """

    name: str
    published_realtime_ns: RealtimeNs
    age_ns: Age | None
    reachable: bool
    reason: str | None = None
    reason_code: ReasonCode = OK
    identities: list[str] = []
    profiles: list[str] = []
    sys_descr: str | None = None
    sys_name: str | None = None
    sys_object_id: str | None = None
    uptime_s: Int64 | None = None
    engine_boots: Int64 | None = None
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    oscillator: str | None = None
    clock_state: str | None = None
    clock_state_since_realtime_ns: Int64 | None = None
    phase_offset_ns: Int64 | None = None
    selected_reference: str | None = None
    references: list[InputReference] | None = None
    clock_identity: str | None = None
    clock_class: Int64 | None = None
    clock_accuracy: Int64 | None = None
    offset_scaled_log_variance: Int64 | None = None
    priority1: Int64 | None = None
    priority2: Int64 | None = None
    domain: Int64 | None = None
    utc_offset_s: Int64 | None = None
    leap: str | None = None
    time_source: Int64 | None = None
    time_traceable: bool | None = None
    frequency_traceable: bool | None = None
    steps_removed: Int64 | None = None
    ports: list[PtpPort] | None = None
    gnss_state: str | None = None
    gnss_position_mode: str | None = None
    satellites: list[Satellite] | None = None
    position: Position | None = None
    antenna: str | None = None
    ntp_mode: str | None = None
    ntp_stratum: Int64 | None = None
    ntp_leap: str | None = None
    alarms: list[Alarm] | None = None
    time_errors: list[TimeError] | None = None
    sensors: list[Sensor] | None = None
    interfaces: list[Interface] | None = None
    unknown: list[str] = []
    snmp_error: str | None = None
    utc: BoundMessage | None = None
    utc_detail: str | None = None
    holdover_left_ns: Int64 | None = None
    invalid_before_realtime_ns: Int64 | None = None
    invalidation_reason: str | None = None
    invalidation_reason_code: ReasonCode | None = None
    offsets: list[GrandmasterOffset] = []

    @property
    def current_holdover_left_ns(self) -> int | None:
        """The holdover budget that is left `age_ns` after the poll; None: unknown."""
        if self.holdover_left_ns is None or self.age_ns is None:
            return None
        return max(0, self.holdover_left_ns - self.age_ns)

    @property
    def current_utc_bound_ns(self) -> int | None:
        """The bound on the own error `age_ns` after the poll; None: unknown, the poll too old, or no budget left."""
        age_ns = self.age_ns
        if self.utc is None or age_ns is None or age_ns > GRANDMASTER_EXPIRES_AFTER_NS:
            return None
        if self.current_holdover_left_ns == 0:
            return None
        return Bound(self.utc.bound_ns, self.utc.growth_ppb).at(age_ns)

    @property
    def satellites_tracked(self) -> int | None:
        return None if self.satellites is None else len(self.satellites)

    @property
    def satellites_healthy(self) -> int | None:
        return None if self.satellites is None else sum(satellite.healthy is True for satellite in self.satellites)


class AlarmEventMessage(Ordered):
    """What a grandmaster reported by trap, inform or syslog; see `timesyncd.sample.AlarmEvent`."""

    name: str
    published_realtime_ns: RealtimeNs
    action: str
    id: Int64 | None
    index: Int64
    severity: str
    text: str
    alarm_sequence: Int64 | None = None
    lost: Int64 = 0
    at: str | None = None


class Availability(Message):
    """Retained, on a separate topic; the broker publishes `online: false` when the connection is lost."""

    online: bool
    incarnation: int = Sequence64


class ChainStep(Message):
    """
    One step of a finding's chain. `code` is the id of the finding that is the cause, or names the effect; `text` is for
    people.
    """

    code: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]
    text: str


class FindingMessage(Message):
    """A finding. `until_realtime_ns` null: it is open. `chain` leads from its cause to the effects on the nodes."""

    id: str
    severity: Severity
    subject: str
    since_realtime_ns: Int64
    until_realtime_ns: Int64 | None
    evidence: str
    cause: str
    remedy: str
    chain: list[ChainStep] = []


_STATUS_NAMES: dict[ClockStatus, Status] = {
    ClockStatus.UNKNOWN: "UNKNOWN",
    ClockStatus.SYNCHRONIZED: "SYNCHRONIZED",
    ClockStatus.HOLDOVER: "HOLDOVER",
    ClockStatus.DISRUPTED: "DISRUPTED",
}


def status_name(status: ClockStatus) -> Status:
    return _STATUS_NAMES[status]


def grandmaster_state(sample: GrandmasterSample | None, **more: object) -> GrandmasterState:
    """The wire form of a sample; `more` are the fields that the sample does not have."""
    reported = {} if sample is None else {name: getattr(sample, name) for name in _SAMPLE_FIELDS}
    return GrandmasterState.model_validate(reported | more)


_SAMPLE_FIELDS = [
    field.name for field in dataclasses.fields(GrandmasterSample) if field.name in GrandmasterState.model_fields
]


def bound_fields(bound: ErrorBound) -> dict[str, object]:
    """The fields of a node's state that come from its bound."""
    copied = {name: getattr(bound, name) for name in _BOUND_FIELDS}
    return copied | {
        "parent": BoundMessage.of(bound.parent_hard),
        "gm": BoundMessage.of(bound.gm_hard),
        "utc": BoundMessage.of(bound.utc_hard),
        "parent_stat": BoundMessage.of(bound.parent_stat),
        "gm_stat": BoundMessage.of(bound.gm_stat),
        "utc_stat": BoundMessage.of(bound.utc_stat),
    }


_BOUND_FIELDS = (
    "since_sample_ns", "terms", "stat_terms", "rates", "holdover_after_ns", "void_after_ns", "grandmaster_identity",
    "parent_identity", "utc_seconds_removed", "clock",
)  # fmt: skip
