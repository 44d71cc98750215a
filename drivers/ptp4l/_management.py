"""
Codec of ptp4l's management protocol: requests that only read, and responses as dataclasses (IEEE 1588-2019, clause 15).

It can build GET, and SET only on SUBSCRIBE_EVENTS_NP, which changes nothing except what ptp4l sends to us.
Everything is big-endian except the counters of PORT_STATS_NP.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from timesyncd.errors import Malformed, Refused
from timesyncd.sample import PortState

ALL_PORTS = 0xFFFF
_ALL_CLOCKS = b"\xff" * 8

_MANAGEMENT_MESSAGE = 0xD
_VERSION = 0x12
_GET, _SET, _RESPONSE = 0, 1, 2
_MANAGEMENT_TLV, _ERROR_TLV = 1, 2
_NOTIFY_TIME_SYNC = 1

_HEADER = struct.Struct(">BBHBBHqI8sHHBb")
_MANAGEMENT = struct.Struct(">8sHBBBxHHH")  # target, hops, action; the TLV's type, length and id
_PREFIX_SIZE = _HEADER.size + _MANAGEMENT.size
_TLV_AT = 48
_ERROR = struct.Struct(">H4x")  # managementId and reserved octets, behind errorId


class ManagementId(IntEnum):
    """The data sets that this driver reads."""

    DEFAULT_DATA_SET = 0x2000
    CURRENT_DATA_SET = 0x2001
    PARENT_DATA_SET = 0x2002
    TIME_PROPERTIES_DATA_SET = 0x2003
    PORT_DATA_SET = 0x2004
    TIME_STATUS_NP = 0xC000
    PORT_PROPERTIES_NP = 0xC004
    PORT_STATS_NP = 0xC005
    PORT_HWCLOCK_NP = 0xC009


_SUBSCRIBE_EVENTS_NP = 0xC003

_MAX_OFFSET_NS = 2**60
_MAX_TIME_NS = 2**62  # the difference of two still fits into 64 bits
_MAX_MESSAGES = 2**63 - 1

_ERRORS = {
    1: "RESPONSE_TOO_BIG", 2: "NO_SUCH_ID", 3: "WRONG_LENGTH", 4: "WRONG_VALUE", 5: "NOT_SETABLE", 6: "NOT_SUPPORTED",
    0xFFFE: "GENERAL_ERROR",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DefaultDataSet:
    number_ports: int
    clock_identity: bytes
    domain: int


@dataclass(frozen=True, slots=True)
class CurrentDataSet:
    """`mean_path_delay` is ns x 2^16, and 0 where the delay mechanism is P2P."""

    steps_removed: int
    mean_path_delay: int


@dataclass(frozen=True, slots=True)
class ParentDataSet:
    parent_identity: bytes
    parent_port: int
    grandmaster_class: int
    grandmaster_accuracy: int
    grandmaster_identity: bytes


@dataclass(frozen=True, slots=True)
class TimeProperties:
    """`current_utc_offset_s` is Announce's value, valid or not."""

    current_utc_offset_s: int
    utc_offset_valid: bool
    ptp_timescale: bool
    time_traceable: bool
    time_source: int
    leap61: bool = False
    leap59: bool = False


@dataclass(frozen=True, slots=True)
class PortDataSet:
    """`peer_mean_path_delay` is ns x 2^16. The Sync interval is the port's own configured one, not its parent's."""

    port: int
    state: PortState
    log_min_delay_req_interval: int
    peer_mean_path_delay: int
    log_sync_interval: int
    delay_mechanism: int
    log_min_pdelay_req_interval: int


@dataclass(frozen=True, slots=True)
class PortProperties:
    hardware_stamps: bool
    interface: str


@dataclass(frozen=True, slots=True)
class PortHwclock:
    """`phc` is None if the port has no hardware clock."""

    phc: int | None


@dataclass(frozen=True, slots=True)
class TimeStatus:
    """`offset_ns` is local minus reference. `ingress_time_ns` 0: no Sync since the port or the clock was reset."""

    offset_ns: int
    ingress_time_ns: int
    grandmaster_identity: bytes


@dataclass(frozen=True, slots=True)
class PortStats:
    """Messages since ptp4l's start, by messageType."""

    received: tuple[int, ...]
    sent: tuple[int, ...]


Content = (
    DefaultDataSet
    | CurrentDataSet
    | ParentDataSet
    | TimeProperties
    | PortDataSet
    | PortProperties
    | PortHwclock
    | TimeStatus
    | PortStats
)


@dataclass(frozen=True, slots=True)
class ManagementRequester:
    """Builds requests with our port identity `number` (32 bits, not 0), by which ptp4l distinguishes subscriptions."""

    domain: int
    transport_specific: int
    number: int

    def get(self, management_id: ManagementId, sequence: int, port: int = ALL_PORTS) -> bytes:
        """A GET of one data set; `port` selects the port of a port's data set."""
        target = _MANAGEMENT.pack(_ALL_CLOCKS, port, 0, 0, _GET, _MANAGEMENT_TLV, 2, management_id)
        return self._header(len(target), sequence) + target

    def subscribe(self, duration_s: int, sequence: int) -> bytes:
        """A subscription to TIME_STATUS_NP at every Sync, for `duration_s` seconds; 0 ends the subscription."""
        events = bytes([1 << _NOTIFY_TIME_SYNC if duration_s else 0]) + bytes(63)
        body = struct.pack(">H", duration_s) + events
        length = 2 + len(body)
        target = _MANAGEMENT.pack(_ALL_CLOCKS, ALL_PORTS, 0, 0, _SET, _MANAGEMENT_TLV, length, _SUBSCRIBE_EVENTS_NP)
        return self._header(len(target) + len(body), sequence) + target + body

    def _header(self, rest: int, sequence: int) -> bytes:
        kind = self.transport_specific << 4 | _MANAGEMENT_MESSAGE
        identity = struct.pack(">6xH", self.number >> 16)
        length = _HEADER.size + rest
        return _HEADER.pack(
            kind, _VERSION, length, self.domain, 0, 0, 0, 0, identity, self.number & 0xFFFF, sequence, 0, 0x7F
        )


@dataclass(frozen=True, slots=True)
class ManagementResponse:
    """A management message from ptp4l: a response, or a push, which has its own sequence numbers."""

    identity: bytes
    sequence: int
    management_id: int
    error: int | None
    body: bytes

    def content(self) -> Content:
        """The decoded data set. Raises Refused for a management error, Malformed if the body does not fit the id."""
        if self.error is not None:
            raise Refused(f"{self._name}: ptp4l reports {_ERRORS.get(self.error, f'error {self.error:#06x}')}")
        decode = _DECODERS.get(self.management_id)
        if decode is None:
            raise Malformed(f"{self._name}: a data set that the driver never requests")
        try:
            return decode(self.body)
        except (struct.error, ValueError) as error:
            raise Malformed(f"{self._name}: {error}") from error

    @property
    def _name(self) -> str:
        return _name(self.management_id)


def parse(datagram: bytes) -> ManagementResponse:
    """The message in a datagram, with its body not decoded yet. Raises Malformed."""
    if len(datagram) < _PREFIX_SIZE:
        raise Malformed(f"management message of {len(datagram)} octets is too short")
    kind, version, length, _, _, _, _, _, identity, _, sequence, _, _ = _HEADER.unpack_from(datagram)
    _, _, _, _, action, tlv_type, tlv_length, number = _MANAGEMENT.unpack_from(datagram, _HEADER.size)
    end = _TLV_AT + 4 + tlv_length
    if kind & 0xF != _MANAGEMENT_MESSAGE or version & 0xF != 2 or action & 0xF != _RESPONSE:
        raise Malformed(f"not a management response: octets {datagram[:2].hex()}, action {action}")
    if tlv_length < 2 or not end <= length <= len(datagram):
        raise Malformed(
            f"management message of {len(datagram)} octets has length field {length} and TLV length {tlv_length}"
        )
    body = datagram[_PREFIX_SIZE:end]
    if tlv_type == _MANAGEMENT_TLV:
        return ManagementResponse(identity, sequence, number, None, body)
    if tlv_type != _ERROR_TLV or len(body) < _ERROR.size:
        raise Malformed(f"management message with a TLV of type {tlv_type}, {tlv_length} octets")
    return ManagementResponse(identity, sequence, _ERROR.unpack_from(body)[0], number, b"")


def _name(management_id: int) -> str:
    try:
        return ManagementId(management_id).name
    except ValueError:
        return f"management id {management_id:#06x}"


_DEFAULT = struct.Struct(">BxHBBBHB8sBx")
_CURRENT = struct.Struct(">Hqq")
_PARENT = struct.Struct(">8sHBxHiBBBHB8s")
_TIME_PROPERTIES = struct.Struct(">hBB")
_PORT = struct.Struct(">8sHBbqbBbBbB")
_PORT_PROPERTIES = struct.Struct(">8sHBBB")
_PORT_HWCLOCK = struct.Struct(">8sHiBx")
_TIME_STATUS = struct.Struct(">qqiiHHQHi8s")
_PORT_IDENTITY = struct.Struct(">8sH")
_COUNTERS = struct.Struct("<16Q16Q")


def _default_data_set(body: bytes) -> DefaultDataSet:
    _, number_ports, _, _, _, _, _, identity, domain = _DEFAULT.unpack(body)
    return DefaultDataSet(number_ports, identity, domain)


def _current_data_set(body: bytes) -> CurrentDataSet:
    steps_removed, _, mean_path_delay = _CURRENT.unpack(body)
    return CurrentDataSet(steps_removed, mean_path_delay)


def _parent_data_set(body: bytes) -> ParentDataSet:
    identity, port, _, _, _, _, clock_class, accuracy, _, _, grandmaster = _PARENT.unpack(body)
    return ParentDataSet(identity, port, clock_class, accuracy, grandmaster)


def _time_properties(body: bytes) -> TimeProperties:
    utc_offset_s, flags, source = _TIME_PROPERTIES.unpack(body)
    return TimeProperties(
        current_utc_offset_s=utc_offset_s,
        utc_offset_valid=bool(flags & 4),
        ptp_timescale=bool(flags & 8),
        time_traceable=bool(flags & 16),
        time_source=source,
        leap61=bool(flags & 1),
        leap59=bool(flags & 2),
    )


def _port_data_set(body: bytes) -> PortDataSet:
    _, port, state, delay_req, peer_delay, _, _, sync, mechanism, pdelay_req, _ = _PORT.unpack(body)
    return PortDataSet(port, PortState(state), delay_req, peer_delay, sync, mechanism, pdelay_req)


def _port_properties(body: bytes) -> PortProperties:
    _, _, _, stamps, length = _PORT_PROPERTIES.unpack_from(body)
    interface = body[_PORT_PROPERTIES.size :][:length]
    if len(interface) < length or stamps > 4:
        raise ValueError(f"{len(body)} octets with time stamping {stamps}")
    return PortProperties(hardware_stamps=stamps != 0, interface=interface.decode())


def _port_hwclock(body: bytes) -> PortHwclock:
    _, _, index, _ = _PORT_HWCLOCK.unpack(body)
    return PortHwclock(index if index >= 0 else None)


def _time_status(body: bytes) -> TimeStatus:
    offset_ns, ingress_time_ns, _, _, _, _, _, _, _, grandmaster = _TIME_STATUS.unpack(body)
    if abs(offset_ns) > _MAX_OFFSET_NS or abs(ingress_time_ns) >= _MAX_TIME_NS:
        raise ValueError(f"offset {offset_ns} ns or ingress time {ingress_time_ns} ns is implausible")
    return TimeStatus(offset_ns, ingress_time_ns, grandmaster)


def _port_stats(body: bytes) -> PortStats:
    if len(body) != _PORT_IDENTITY.size + _COUNTERS.size:
        raise ValueError(f"{len(body)} octets instead of {_PORT_IDENTITY.size + _COUNTERS.size}")
    counters = _COUNTERS.unpack_from(body, _PORT_IDENTITY.size)
    if max(counters) > _MAX_MESSAGES:
        raise ValueError(f"a counter of {max(counters)} messages exceeds 63 bits")
    return PortStats(counters[:16], counters[16:])


_DECODERS: dict[int, Callable[[bytes], Content]] = {
    ManagementId.DEFAULT_DATA_SET: _default_data_set,
    ManagementId.CURRENT_DATA_SET: _current_data_set,
    ManagementId.PARENT_DATA_SET: _parent_data_set,
    ManagementId.TIME_PROPERTIES_DATA_SET: _time_properties,
    ManagementId.PORT_DATA_SET: _port_data_set,
    ManagementId.PORT_PROPERTIES_NP: _port_properties,
    ManagementId.TIME_STATUS_NP: _time_status,
    ManagementId.PORT_STATS_NP: _port_stats,
    ManagementId.PORT_HWCLOCK_NP: _port_hwclock,
}
