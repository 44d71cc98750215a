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
class ClockSample:
    """
    One fresh measurement of a node's clock against its PTP parent.

    `clock` names what was measured: "realtime" (software stamps) or "phc:N" (hardware stamps).
    `as_of_ns` is CLOCK_BOOTTIME at the last reading that did *not* yet show this measurement, so that its age is never
    understated. `real_minus_boot_ns` was read then.
    `offset_ns` is local minus reference: positive = the local clock is ahead.
    The delay counters are cumulative since the PTP daemon's start (None: not served).
    `delay_interval_ns` is the mean time between two delay measurements.
    """

    source: str
    clock: str
    as_of_ns: int
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


@dataclass(frozen=True, slots=True)
class NoSample:
    """
    A reading that gave no sample, and why. `restarted` (the source began anew) and `stepped` (the clock was set) void what
    was known. `port_state` is None where it was not told.
    """

    source: str
    boottime_ns: int
    reason: str
    restarted: bool = False
    stepped: bool = False
    port_state: PortState | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """A standing alarm of a grandmaster; severity as the unit itself rates it."""

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
class GrandmasterSample:
    """
    What a grandmaster says of itself, in neutral fields; None = the unit does not provide it.

    `unknown` lists what it said and no map explains, as "field=unknown(7)"; `profiles` names the profiles that answered.
    """

    source: str
    boottime_ns: int
    profiles: tuple[str, ...] = ()
    sys_descr: str | None = None
    sys_name: str | None = None
    sys_object_id: str | None = None
    uptime_s: int | None = None
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    clock_identity: str | None = None
    clock_state: ClockState | None = None
    clock_class: int | None = None
    clock_accuracy: int | None = None
    phase_offset_ns: int | None = None
    utc_offset_s: int | None = None
    time_source: int | None = None
    gnss_state: str | None = None
    satellites: tuple[Satellite, ...] | None = None
    selected_reference: str | None = None
    alarms: tuple[Alarm, ...] | None = None
    offset_scaled_log_variance: int | None = None
    unknown: tuple[str, ...] = ()


Reading = ClockSample | NoSample | GrandmasterSample


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
