"""What drivers deliver: samples of a node's clock and of a grandmaster, in integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class PortState(IntEnum):
    """IEEE 1588-2019, table 27."""

    INITIALIZING = 1
    FAULTY = 2
    DISABLED = 3
    LISTENING = 4
    PRE_MASTER = 5
    MASTER = 6
    PASSIVE = 7
    UNCALIBRATED = 8
    SLAVE = 9


class ClockState(StrEnum):
    """What a grandmaster says of its own servo, in words that fit every family."""

    UNKNOWN = "unknown"
    WARMUP = "warmup"
    FREERUN = "freerun"
    ACQUIRING = "acquiring"
    LOCKED = "locked"
    HOLDOVER = "holdover"
    HOLDOVER_OUT_OF_SPEC = "holdover_out_of_spec"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class DelayExchange:
    """
    One Delay_Req with its response, raw: `local_ns` is t3 on the measured clock, `reverse_ns` is t4 - t3 less the corrections, which is the
    one-way delay to the parent minus the local clock's offset.
    """

    local_ns: int
    reverse_ns: int


@dataclass(slots=True)
class ClockSample:
    """
    One fresh measurement of a node's clock against its PTP parent. Nobody writes to one; it is not frozen because one is made for each
    Sync, and that would take twice as long.

    `clock` names what was measured: "realtime" (software stamps) or "phc:N" (hardware stamps).
    `as_of_ns` is CLOCK_BOOTTIME at the last reading that did *not* yet show this measurement, so that its age is never
    understated; `read_ns` is CLOCK_BOOTTIME at the reading that did. `real_minus_boot_ns` was read at `as_of_ns`.
    `offset_ns` is local minus reference: positive = the local clock is ahead.
    The delay counters are cumulative since the PTP daemon's start (None: not served).
    `domain` is the PTP domain (None: not told). `delay_interval_ns` is the mean time between two delay measurements. `exchanges` are those that were seen raw since the last
    sample, none where the PTP daemon does not give them away.
    """

    source: str
    clock: str
    as_of_ns: int
    read_ns: int
    real_minus_boot_ns: int
    offset_ns: int
    path_delay_ns: int
    granularity_ns: int
    ingress_time_ns: int
    port_state: PortState
    grandmaster_identity: str
    parent_identity: str
    steps_removed: int
    clock_class: int
    clock_accuracy: int
    ptp_timescale: bool
    time_traceable: bool
    current_utc_offset_s: int | None
    time_source: int
    sync_interval_ns: int
    delay_interval_ns: int
    delay_requests_sent: int | None = None
    delay_responses_received: int | None = None
    frequency_ppb: int | None = None
    exchanges: tuple[DelayExchange, ...] = ()
    domain: int | None = None


@dataclass(frozen=True, slots=True)
class PhcSample:
    """
    The system clock against a PTP hardware clock, `clock` ("phc:0"), read in one window.

    `offset_ns` is CLOCK_REALTIME minus PHC as both stand, so a PHC on TAI shows some -37 s; the reading is right within
    +-`width_ns` / 2. `as_of_ns` is CLOCK_BOOTTIME before the window. `method` is precise, extended or basic. The frequencies are
    what each clock is made to run faster by than its oscillator (None: not told). `steered` says whether a phc2sys was seen
    that could be steering one by the other (None: not looked for).
    """

    source: str
    clock: str
    as_of_ns: int
    real_minus_boot_ns: int
    offset_ns: int
    width_ns: int
    method: str
    frequency_ppb: int | None = None
    system_frequency_ppb: int | None = None
    steered: bool | None = None


@dataclass(frozen=True, slots=True)
class NtpSource:
    """
    One of an NTP daemon's own sources; `state` as the daemon calls it; `offset_ns` local minus source, as last measured.

    `estimate_ns` (of the same sign) and its error are what the daemon makes of the last `samples` of them, which differ by
    `spread_ns`.
    """

    name: str
    state: str
    stratum: int
    reachability: int
    offset_ns: int | None
    error_ns: int | None
    since_sample_s: int | None
    samples: int | None = None
    estimate_ns: int | None = None
    estimate_error_ns: int | None = None
    spread_ns: int | None = None


@dataclass(frozen=True, slots=True)
class UtcSample:
    """
    The system clock against UTC, as an NTP daemon knows it: |offset_ns - true offset| <= error_ns at `as_of_ns` (CLOCK_BOOTTIME
    before the question), growing by `growth_ppb`. `offset_ns` is local minus UTC: positive = the local clock is ahead.
    """

    source: str
    as_of_ns: int
    real_minus_boot_ns: int
    offset_ns: int
    error_ns: int
    growth_ppb: int
    reference: str
    stratum: int
    leap: str
    root_delay_ns: int
    root_dispersion_ns: int
    frequency_ppb: int | None = None
    skew_ppb: int | None = None
    ntp_sources: tuple[NtpSource, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelSample:
    """
    The kernel's own word on CLOCK_REALTIME (adjtimex). `synchronized` is STA_UNSYNC not set. `leap` is none, insert or delete
    (armed). `tai_offset_s` 0 means that nobody has set it. `disciplines` names the daemons found that may be steering the clock;
    only where chronyd is the one is `maxerror_ns` a bound. `undecided_disciplines` are those found whose process does not tell
    whether they steer it: a ptp4l may have software stamps. `vm_disruptions` is VMClock's marker: another one, another host.
    """

    source: str
    boottime_ns: int
    frequency_ppb: int
    maxerror_ns: int
    esterror_ns: int
    synchronized: bool
    leap: str
    tai_offset_s: int
    disciplines: tuple[str, ...] = ()
    vm_disruptions: int | None = None
    undecided_disciplines: tuple[str, ...] = ()


class NoSampleCause(StrEnum):
    """The kind of failure behind a NoSample; its `reason` is the sentence for people."""

    NO_VALID_SAMPLE = "no_valid_sample"
    SOURCE_UNREACHABLE = "source_unreachable"
    SOURCE_MALFORMED = "source_malformed"
    SOURCE_REFUSED = "source_refused"
    SOURCE_RESTARTED = "source_restarted"
    CLOCK_STEPPED = "clock_stepped"


@dataclass(frozen=True, slots=True)
class NoSample:
    """
    A reading that gave no sample, and why. `restarted` (the source began anew) and `stepped` (the clock was set) void what
    was known. `port_state` and `frequency_ppb` are None where they were not told.
    """

    source: str
    boottime_ns: int
    reason: str
    restarted: bool = False
    stepped: bool = False
    port_state: PortState | None = None
    frequency_ppb: int | None = None
    poll_failure: NoSampleCause | None = None

    @property
    def cause(self) -> NoSampleCause:
        """The code of the reason: a step or a restart first, since they invalidate earlier samples; then the failed poll."""
        if self.stepped:
            return NoSampleCause.CLOCK_STEPPED
        if self.restarted:
            return NoSampleCause.SOURCE_RESTARTED
        return self.poll_failure or NoSampleCause.NO_VALID_SAMPLE


@dataclass(frozen=True, slots=True)
class Alarm:
    """A standing alarm of a grandmaster; severity and `since` (its own date and time) as the unit itself gives them."""

    id: int
    index: int
    severity: str
    text: str
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Satellite:
    """One tracked satellite; `cn0_db_hz` as the unit reports it."""

    number: int
    cn0_db_hz: int | None
    healthy: bool | None


@dataclass(frozen=True, slots=True)
class Position:
    """Of the GNSS antenna: degrees north and east, metres above what the receiver calls zero (None: not told)."""

    latitude_deg: float
    longitude_deg: float
    height_m: float | None


@dataclass(frozen=True, slots=True)
class InputReference:
    """An input that the unit may follow: disabled, disqualified, qualified, selected, or unknown(n)."""

    name: str
    qualification: str


@dataclass(frozen=True, slots=True)
class PtpPort:
    """
    A PTP port of a grandmaster. `state` is a name of `PortState` in lower case; `client_load_percent` the share of the port's
    capacity that is used.
    """

    name: str
    state: str | None = None
    enabled: bool | None = None
    profile: str | None = None
    domain: int | None = None
    clock_identity: str | None = None
    clients: int | None = None
    max_clients: int | None = None
    client_load_percent: int | None = None


@dataclass(frozen=True, slots=True)
class TimeError:
    """
    The newest time error of a measured channel: te (now), cte (constant part), max_te, in nanoseconds; positive = the
    channel is ahead of `reference`. `at_realtime_ns` is when the unit measured it, as Unix time by the unit's own UTC offset.
    """

    channel: str
    metric: str
    value_ns: int
    at_realtime_ns: int
    reference: str | None = None
    status: str | None = None
    alarm_threshold_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Sensor:
    """A fan, a power supply, a temperature. `ok` None: the unit does not rate it; `value` in `unit`, None: it only rates it."""

    name: str
    kind: str
    value: float | None
    unit: str | None
    ok: bool | None


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface of a grandmaster."""

    name: str
    up: bool | None
    speed_mbps: int | None = None


@dataclass(frozen=True, slots=True)
class GrandmasterSample:
    """
    What a grandmaster says of itself, in neutral fields; None = the unit does not provide it, () = it says that there is none.

    `leap` is none, insert or delete; `antenna` ok, open, short or fault. `steps_removed` is 0 where it follows GNSS and not
    another PTP clock. `unknown` lists what it said and no map explains, as "field=unknown(7)"; `profiles` names the profiles
    that answered. What a unit serves is read in groups, each at its own pace: lists may be a minute old, inventory an hour.
    """

    source: str
    boottime_ns: int
    profiles: tuple[str, ...] = ()
    sys_descr: str | None = None
    sys_name: str | None = None
    sys_object_id: str | None = None
    uptime_s: int | None = None
    engine_boots: int | None = None
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    oscillator: str | None = None
    clock_state: ClockState | None = None
    phase_offset_ns: int | None = None
    selected_reference: str | None = None
    references: tuple[InputReference, ...] | None = None
    clock_identity: str | None = None
    clock_class: int | None = None
    clock_accuracy: int | None = None
    offset_scaled_log_variance: int | None = None
    priority1: int | None = None
    priority2: int | None = None
    domain: int | None = None
    utc_offset_s: int | None = None
    leap: str | None = None
    time_source: int | None = None
    time_traceable: bool | None = None
    frequency_traceable: bool | None = None
    steps_removed: int | None = None
    ports: tuple[PtpPort, ...] | None = None
    gnss_state: str | None = None
    gnss_position_mode: str | None = None
    satellites: tuple[Satellite, ...] | None = None
    position: Position | None = None
    antenna: str | None = None
    ntp_mode: str | None = None
    ntp_stratum: int | None = None
    ntp_leap: str | None = None
    alarms: tuple[Alarm, ...] | None = None
    time_errors: tuple[TimeError, ...] | None = None
    sensors: tuple[Sensor, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeErrorSeries:
    """Past time errors of one channel, as (Unix time in ns, error in ns): what fills a hole in the history."""

    source: str
    channel: str
    metric: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AlarmEvent:
    """
    A grandmaster reported something by itself, by trap, inform or syslog. `action` is raise, clear, event (it does not stand)
    or unknown (no profile explains it: `text` holds what came). `sequence` counts the unit's own notifications of this
    kind, `lost` those between the last one and this; `at` is the unit's own date and time.
    """

    source: str
    boottime_ns: int
    action: str
    id: int | None
    index: int
    severity: str
    text: str
    sequence: int | None = None
    lost: int = 0
    at: str | None = None


Reading = ClockSample | PhcSample | UtcSample | KernelSample | NoSample | GrandmasterSample | TimeErrorSeries


def format_identity(identity: bytes) -> str:
    """clockIdentity (8 octets) as people write it: 001122.fffe.334455."""
    digits = identity.hex()
    return f"{digits[:6]}.{digits[6:10]}.{digits[10:]}"


def identity_number(identity: str) -> int:
    """A written clockIdentity as the unsigned 64-bit number of its octets."""
    return int(identity.replace(".", ""), 16)


def identity_text(number: int) -> str:
    """The inverse of `identity_number`."""
    return format_identity(number.to_bytes(8, "big"))


#: clockAccuracy (IEEE 1588-2019, table 5): the upper limit of each enumerated range. 0x31 (over 10 s) and 0xFE bound nothing.
ACCURACY_NS = {
    0x1D: 1, 0x1E: 3, 0x1F: 10, 0x20: 25, 0x21: 100, 0x22: 250, 0x23: 1_000, 0x24: 2_500, 0x25: 10_000, 0x26: 25_000,
    0x27: 100_000, 0x28: 250_000, 0x29: 1_000_000, 0x2A: 2_500_000, 0x2B: 10_000_000, 0x2C: 25_000_000,
    0x2D: 100_000_000, 0x2E: 250_000_000, 0x2F: 1_000_000_000, 0x30: 10_000_000_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trap:
    """
    A trap or an inform as it came: the sender's address, CLOCK_BOOTTIME on arrival, the notification's own OID
    (snmpTrapOID), the sender's sysUpTime in hundredths of a second, and the other variables in their order.
    """

    address: str
    boottime_ns: int
    oid: tuple[int, ...]
    uptime_ticks: int | None
    variables: tuple[tuple[tuple[int, ...], int | bytes | str], ...]
