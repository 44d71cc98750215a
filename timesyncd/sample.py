"""The readings that drivers return: samples of a node's clock and of a grandmaster, in integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple


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
    """The state of a grandmaster's servo, in terms that fit every product family."""

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
    One Delay_Req and its response, unfiltered.

    `local_ns` is t3 on the measured clock. `reverse_ns` is t4 - t3 minus the corrections: the one-way delay to the
    parent minus the local clock's offset.
    """

    local_ns: int
    reverse_ns: int


@dataclass(slots=True)
class ClockSample:
    """
    One fresh measurement of a node's clock against its PTP parent.

    `clock` is the measured clock: "realtime" (software timestamps) or "phc:N" (hardware timestamps). `as_of_ns` is
    CLOCK_BOOTTIME at the last reading that did *not* yet contain this measurement, so its age is never understated;
    `read_ns` is CLOCK_BOOTTIME at the reading that did. `real_minus_boot_ns` was read at `as_of_ns`. `offset_ns` is
    local minus reference: positive = the local clock is ahead. `delay_interval_ns` is the mean time between two delay
    measurements. The delay counters are cumulative since the PTP daemon's start (None: not served). `exchanges` are the
    unfiltered delay exchanges since the last sample, empty where the PTP daemon does not serve them. `domain` is the
    PTP domain (None: not reported), `daemon_pid` the PTP daemon's process (None: in a hidden pid namespace). `leap61`
    and `leap59`: Announce says that a second is inserted, or deleted, at the end of this UTC day. An identity is None where no Announce names that clock, and then the fields that
    Announce carries (steps, class, accuracy, timescale) are the PTP daemon's own.
    `max_frequency_ppb` is the most that a servo can make the measured clock run off its oscillator (None: not known).
    `phc` compares the measured PHC with the system clock right after the reading (None: software timestamps, or the PHC
    cannot be read).

    Treat it as immutable; it is not frozen, since one is made for each Sync and a frozen one takes twice as long.
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
    grandmaster_identity: str | None
    parent_identity: str | None
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
    daemon_pid: int | None = None
    leap61: bool = False
    leap59: bool = False
    max_frequency_ppb: int | None = None
    phc: PhcSample | None = None


@dataclass(frozen=True, slots=True)
class PhcSample:
    """
    The system clock against a PTP hardware clock, `clock` ("phc:0"), read in one window.

    `offset_ns` is CLOCK_REALTIME minus PHC without any correction, so for a PHC on TAI it is about -37 s; its error is
    at most `width_ns` / 2. `as_of_ns` is CLOCK_BOOTTIME before the window. `method` is precise, extended or basic. The
    frequencies are how much faster each clock is made to run than its oscillator (None: not known). `steered`: a
    phc2sys runs that may steer one clock by the other (None: not checked). `max_frequency_ppb` is the PHC's own limit of
    `frequency_ppb` (None: not known).
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
    max_frequency_ppb: int | None = None

    @property
    def phc_ns(self) -> int:
        """The PHC's own time at the start of the window."""
        return self.as_of_ns + self.real_minus_boot_ns - self.offset_ns


class UtcOrigin(StrEnum):
    """
    Where an NTP daemon has UTC from: servers and peers, a reference clock that the configuration declares as a
    receiver, one that it does not declare, or a PTP hardware clock. Or ClockBound, which does not report it.
    """

    NETWORK = "network"
    RECEIVER = "receiver"
    REFCLOCK = "refclock"
    PHC = "phc"
    CLOCKBOUND = "clockbound"


#: RFC 5905, figure 11: of a source that does not report its stratum.
UNSPECIFIED_STRATUM = 0


@dataclass(frozen=True, slots=True)
class NtpSource:
    """
    One of an NTP daemon's own sources. `state` is the daemon's term, and `kind` is server, peer or refclock;
    `offset_ns` is local minus source, as last measured, and `adjusted_offset_ns` the same without what the daemon
    corrected since. `contradicts_by_ns`: its interval and the daemon's own are apart by so much at least (None: they
    meet, or one of them is unknown).

    `estimate_ns` (of the same sign) and its error are the daemon's estimate from the last `samples` measurements, whose
    spread is `spread_ns`.
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
    kind: str = "server"
    adjusted_offset_ns: int | None = None
    contradicts_by_ns: int | None = None


@dataclass(frozen=True, slots=True)
class UtcSample:
    """
    The system clock against UTC by an NTP daemon or by ClockBound: |offset_ns - true offset| <= error_ns at `as_of_ns`,
    growing by `growth_ppb`.

    `as_of_ns` is CLOCK_BOOTTIME before the request, or that of ClockBound's own reading. ClockBound reports one bound, which
    counts as root dispersion. `offset_ns` is local minus UTC: positive = the local clock is
    ahead. With an `origin` of REFCLOCK or PHC the daemon knows its offset from that clock, and not from UTC.
    `covers_contradicting`: its sources contradict each other without a majority for the daemon's estimate, and the
    interval spans all of theirs.
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
    origin: UtcOrigin = UtcOrigin.NETWORK
    covers_contradicting: bool = False


class Movement(StrEnum):
    """What moved in the discipline of CLOCK_REALTIME: its frequency, its tick, or a slew that the kernel works off."""

    FREQUENCY = "frequency"
    TICK = "tick"
    SLEW = "slew"


#: The programs that write their error into the kernel's maxerror: root delay / 2 + root dispersion.
MAXERROR_WRITERS = frozenset({"chronyd", "ntpd"})


@dataclass(frozen=True, slots=True)
class KernelSample:
    """
    The kernel's state of CLOCK_REALTIME (adjtimex). `synchronized`: STA_UNSYNC is not set.

    `leap` is none, insert, delete (armed), or both at once. `tai_offset_s` is 0 while no daemon has set it. `disciplines` names the
    running programs that steer the clock. `undecided_disciplines` names those that may steer it, and
    `undecided_ptp4l` are the process ids of the ptp4l among them: one with software timestamps does. `programs_visible` is False in a container, which hides the host's programs.
    `unexplained_movement` shows that a program steers which is none of these. `maxerror_ns` is what the steering program
    wrote, and no bound by itself: see `maxerror_bound_ns`. `vm_disruptions` is VMClock's marker: it changes when the
    virtual machine is migrated.
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
    undecided_ptp4l: tuple[int, ...] = ()
    programs_visible: bool = True
    unexplained_movement: Movement | None = None

    @property
    def maxerror_bound_ns(self) -> int | None:
        """
        `maxerror_ns` where it bounds the error of CLOCK_REALTIME: one program alone steers, and it is known to write its
        error there. Others write 0 whatever the error is, or nothing.
        """
        is_known = self.programs_visible and self.unexplained_movement is None and not self.undecided_disciplines
        is_written = is_known and len(self.disciplines) == 1 and MAXERROR_WRITERS.issuperset(self.disciplines)
        return self.maxerror_ns if is_written and self.synchronized else None


class NoSampleCause(StrEnum):
    """The kind of failure behind a NoSample; its `reason` is the sentence for people."""

    NO_VALID_SAMPLE = "no_valid_sample"
    SOURCE_UNREACHABLE = "source_unreachable"
    SOURCE_MALFORMED = "source_malformed"
    SOURCE_REFUSED = "source_refused"
    SOURCE_RESTARTED = "source_restarted"
    CLOCK_STEPPED = "clock_stepped"
    PARENT_CHANGED = "parent_changed"
    PATH_CHANGED = "path_changed"
    GRANDMASTER_CHANGED = "grandmaster_changed"
    TWO_PORTS_FOLLOW = "two_ports_follow"
    SOURCE_WITHDRAWN = "source_withdrawn"
    VM_MIGRATED = "vm_migrated"


#: What invalidates a source's earlier samples: they were measured against another clock or along another path, or the
#: source withdrew them.
CHANGES = (
    NoSampleCause.PARENT_CHANGED,
    NoSampleCause.PATH_CHANGED,
    NoSampleCause.GRANDMASTER_CHANGED,
    NoSampleCause.TWO_PORTS_FOLLOW,
    NoSampleCause.SOURCE_WITHDRAWN,
    NoSampleCause.VM_MIGRATED,
)


@dataclass(frozen=True, slots=True)
class NoSample:
    """
    A reading without a sample, and the reason.

    `restarted` (the source restarted), `stepped` (the clock was stepped) and `change` (parent, path or grandmaster is
    another one, or the source withdrew what it reported) invalidate the source's bound. A step, and the change VM_MIGRATED,
    invalidate the bounds of all sources. `port_state` and `frequency_ppb`, that of the measured clock, are None
    where they were not read; so is `phc`, which compares the measured PHC with the system clock. `delay_unmeasured`: ptp4l
    receives Syncs and has no path delay, so its delay filter was emptied. `sync_forgotten`: it no longer reports the last
    Sync, since it stepped the measured clock or selected another parent.
    """

    source: str
    boottime_ns: int
    reason: str
    restarted: bool = False
    stepped: bool = False
    port_state: PortState | None = None
    frequency_ppb: int | None = None
    poll_failure: NoSampleCause | None = None
    change: NoSampleCause | None = None
    phc: PhcSample | None = None
    delay_unmeasured: bool = False
    sync_forgotten: bool = False

    @property
    def cause(self) -> NoSampleCause:
        """
        The code of the reason: first what invalidates earlier samples, then the failed poll.
        """
        if self.stepped:
            return NoSampleCause.CLOCK_STEPPED
        if self.restarted:
            return NoSampleCause.SOURCE_RESTARTED
        return self.change or self.poll_failure or NoSampleCause.NO_VALID_SAMPLE


@dataclass(frozen=True, slots=True)
class Alarm:
    """
    An active alarm of a grandmaster; severity and `since` (its own date and time) are as the grandmaster reports them.
    """

    id: int
    index: int
    severity: str
    text: str
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Satellite:
    """
    One tracked satellite; `cn0_db_hz` is as the grandmaster reports it. `azimuth_deg` is clockwise from north, `elevation_deg`
    above the horizon (None: not reported).
    """

    number: int
    cn0_db_hz: int | None
    healthy: bool | None
    azimuth_deg: int | None = None
    elevation_deg: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """
    The position of the GNSS antenna: degrees north and east, metres above the receiver's reference height (None: not
    reported).
    """

    latitude_deg: float
    longitude_deg: float
    height_m: float | None


@dataclass(frozen=True, slots=True)
class InputReference:
    """A reference input of a grandmaster: disabled, disqualified, qualified, selected, or unknown(n)."""

    name: str
    qualification: str


@dataclass(frozen=True, slots=True)
class PtpPort:
    """
    A PTP port of a grandmaster. `state` is a name of `PortState` in lower case; `client_load_percent` is the used share
    of the port's capacity.
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
    The newest time error of a measured channel in ns: te (momentary), cte (constant part) or max_te; positive = the
    channel is ahead of `reference`.

    `at_realtime_ns` is the time of the measurement, as Unix time by the grandmaster's own UTC offset.
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
    """
    A fan, power supply or temperature. `ok` None: the grandmaster does not rate it; `value` is in `unit`, None: it only
    rates it.
    """

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
    A grandmaster's report of itself, in vendor-neutral fields; None = not provided, () = the grandmaster reports that
    there is none.

    `leap` is none, insert, delete, or both at once; `antenna` is ok, open, short or fault. `steps_removed` is 0 where it follows GNSS
    and not another PTP clock. `unknown` lists reported values that no profile maps, as "field=unknown(7)"; `profiles`
    names the profiles that the device serves. `snmp_error` is why SNMP gave nothing beside HTTPS. Fields are polled in
    groups with different intervals: lists may be a minute old, inventory an hour.
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
    snmp_error: str | None = None


@dataclass(frozen=True, slots=True)
class TimeErrorSeries:
    """Past time errors of one channel as (Unix time in ns, error in ns), which fill a gap in the history."""

    source: str
    channel: str
    metric: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AlarmEvent:
    """
    An event that a grandmaster reported by trap, inform or syslog.

    `action` is raise, clear, event (it has no clear), or unknown (no profile maps it, and `text` contains the
    original). `sequence` is the grandmaster's own count of notifications of this kind, and `lost` is how many are
    missing since the last one. `at` is its own date and time.
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
    """A clockIdentity (8 octets) in the form that ptp4l prints: 001122.fffe.334455."""
    digits = identity.hex()
    return f"{digits[:6]}.{digits[6:10]}.{digits[10:]}"


def identity_number(identity: str) -> int:
    """A clockIdentity in text form as the unsigned 64-bit number of its octets. Raises ValueError."""
    return int(identity.replace(".", ""), 16)


def identity_text(number: int) -> str:
    """The inverse of `identity_number`."""
    return format_identity(number.to_bytes(8, "big"))


#: clockAccuracy (IEEE 1588-2019, table 5): the upper limit of each enumerated range. 0x31 (over 10 s) and 0xFE have
#: none.
ACCURACY_NS = {
    0x1D: 1, 0x1E: 3, 0x1F: 10, 0x20: 25, 0x21: 100, 0x22: 250, 0x23: 1_000, 0x24: 2_500, 0x25: 10_000, 0x26: 25_000,
    0x27: 100_000, 0x28: 250_000, 0x29: 1_000_000, 0x2A: 2_500_000, 0x2B: 10_000_000, 0x2C: 25_000_000,
    0x2D: 100_000_000, 0x2E: 250_000_000, 0x2F: 1_000_000_000, 0x30: 10_000_000_000,
}  # fmt: skip


class EngineTime(NamedTuple):
    """The engine clock of an SNMPv3 agent (RFC 3414 section 2.2) now: how often it started, and the seconds since then."""

    engine_id: bytes
    boots: int
    time_s: int


@dataclass(frozen=True, slots=True)
class Trap:
    """
    A received trap or inform: the sender's address, CLOCK_BOOTTIME at receipt, the notification's OID (snmpTrapOID),
    the sender's sysUpTime in hundredths of a second, and the other variables in their order.
    """

    address: str
    boottime_ns: int
    oid: tuple[int, ...]
    uptime_ticks: int | None
    variables: tuple[tuple[tuple[int, ...], int | bytes | str], ...]
