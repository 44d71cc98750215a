"""
Receives ptp4l's slave events: the raw time stamps of each Sync and of each delay measurement.

Events are Signaling messages with one record each (IEEE 1588-2019, 16.11.4.1, and linuxptp's own type for the delay), big-endian.

ptp4l sends an event with a blocking sendto(): while the queue of a stopped reader is full, ptp4l waits and does not discipline
its clock. A filter on our socket therefore admits only events whose local time stamp is within a short lease, which we renew while
we read; the kernel discards all others at once, and ptp4l does not wait. So a stopped reader never blocks ptp4l.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.ptp4l._socket import Ptp4lSocket, queue_length
from timesyncd.errors import Malformed, Unreachable
from timesyncd.sample import DelayExchange

SYNC_TLV = 0x8004
DELAY_TLV = 0x7F00

_SIGNALING = 0xC
_PREFIX = struct.Struct(">BBHB15x8s16xHH")  # header and target; the TLV's type and length
_SYNC = struct.Struct(">8sHHHIIq4xHII")
_DELAY = struct.Struct(">8sHHHIIqHII")

_LATEST_S = 2**33  # the year 2242; its nanoseconds fit into 64 bits
_MAX_ROUND_TRIP_NS = NS_PER_S // 2  # a larger value means that the two were measured on different timescales
_DELAY_MOVED_NS = NS_PER_S // 10  # a delay measured between a Sync and its reading moves ptp4l's median by far less


@dataclass(frozen=True, slots=True)
class RxSync:
    """A Sync that ptp4l used: sent at t1 on the master's clock, received at t2 on the local clock."""

    master: bytes
    master_port: int
    sequence: int
    t1_ns: int
    correction_ns: int
    t2_ns: int

    @property
    def forward_ns(self) -> int:
        """The one-way delay from the master plus the local clock's offset (local minus master)."""
        return self.t2_ns - self.t1_ns - self.correction_ns

    @property
    def local_ns(self) -> int:
        return self.t2_ns


@dataclass(frozen=True, slots=True)
class DelayTiming:
    """A Delay_Req: sent at t3 on the local clock, received at t4 on the master's, as its Delay_Resp reports."""

    master: bytes
    master_port: int
    sequence: int
    t3_ns: int
    correction_ns: int
    t4_ns: int

    @property
    def reverse_ns(self) -> int:
        """The one-way delay to the master minus the local clock's offset (local minus master)."""
        return self.t4_ns - self.t3_ns - self.correction_ns

    @property
    def local_ns(self) -> int:
        return self.t3_ns


EventRecord = RxSync | DelayTiming


@dataclass(frozen=True, slots=True)
class SlaveEvent:
    """A record and its sender: two ptp4l on one interface have the same identity and differ in the domain."""

    domain: int
    clock_identity: bytes
    record: EventRecord


def parse_event(datagram: bytes) -> SlaveEvent:
    """Raises Malformed unless it is a Signaling message with one record of the two kinds."""
    if len(datagram) < _PREFIX.size:
        raise Malformed(f"event of {len(datagram)} octets is too short")
    kind, version, length, domain, identity, tlv, tlv_length = _PREFIX.unpack_from(datagram)
    if kind & 0xF != _SIGNALING or version & 0xF != 2:
        raise Malformed(f"not a Signaling message: octets {datagram[:2].hex()}")
    body = datagram[_PREFIX.size : _PREFIX.size + tlv_length]
    if _PREFIX.size + tlv_length > length or len(body) != tlv_length:
        raise Malformed(f"event of {len(datagram)} octets has length field {length} and TLV length {tlv_length}")
    return SlaveEvent(domain, identity, _record(tlv, body))


def exchanges(
    records: Sequence[EventRecord], parent: tuple[bytes, int], ingress_time_ns: int, forward_ns: int
) -> tuple[DelayExchange, ...]:
    """
    The delay measurements with this parent port, on the timescale of ptp4l's offset. `forward_ns` is that offset plus the path
    delay, for the Sync received at `ingress_time_ns`. Empty if this Sync is not among the records, since it reveals the whole
    seconds that ptp4l removed from the offset.
    """
    of_parent = [record for record in records if (record.master, record.master_port) == parent]
    syncs = [record for record in of_parent if isinstance(record, RxSync) and record.t2_ns == ingress_time_ns]
    removed_ns = _whole_seconds_ns(forward_ns - syncs[-1].forward_ns) if syncs else None
    if removed_ns is None:
        return ()
    found = [
        DelayExchange(record.t3_ns, record.reverse_ns - removed_ns)
        for record in of_parent
        if isinstance(record, DelayTiming)
    ]
    # Forward plus reverse does not depend on the offset: a sum of seconds means that it was measured on another timescale.
    return tuple(exchange for exchange in found if abs(forward_ns + exchange.reverse_ns) < _MAX_ROUND_TRIP_NS)


def _whole_seconds_ns(difference_ns: int) -> int | None:
    """The difference in whole seconds, as nanoseconds; None if it is not near to whole seconds."""
    whole_ns = (difference_ns + NS_PER_S // 2) // NS_PER_S * NS_PER_S
    return whole_ns if abs(difference_ns - whole_ns) <= _DELAY_MOVED_NS else None


def _record(tlv: int, body: bytes) -> EventRecord:
    if tlv == SYNC_TLV and len(body) == _SYNC.size:
        master, port, sequence, *sent, correction, high, low, fraction = _SYNC.unpack(body)
        kind: type[EventRecord] = RxSync
    elif tlv == DELAY_TLV and len(body) == _DELAY.size:
        master, port, sequence, *sent, correction, high, low, fraction = _DELAY.unpack(body)
        kind = DelayTiming
    else:
        raise Malformed(f"event with a TLV of type {tlv:#06x}, {len(body)} octets")
    # ptp4l also truncates a correction to whole nanoseconds by a shift.
    return kind(master, port, sequence, _stamp_ns(*sent), correction >> 16, _stamp_ns(high, low, fraction))


def _stamp_ns(high_s: int, low_s: int, fraction_ns: int) -> int:
    if fraction_ns >= NS_PER_S:
        raise Malformed(f"time stamp has {fraction_ns} nanoseconds; allowed: below 10^9")
    seconds = high_s << 32 | low_s
    if seconds > _LATEST_S:
        raise Malformed(f"time stamp of {seconds} s is after the year 2242")
    return seconds * NS_PER_S + fraction_ns


_SPARE = 2
_BURST_FACTOR = 3  # delay measurements come at random intervals, at times several times the mean rate
_MAX_LEASE_MS = 60_000
_ESTIMATE_SYNCS = 8
_MAX_MISSED_SYNCS = 3

# Offsets in an event: the TLV's type, then seconds (their low 32 bits) and nanoseconds of the local stamp, t2 or t3.
_TLV_AT, _T2_AT, _T3_AT = 44, 84, 62

_NS_PER_MS = 1_000_000

# Classic BPF (linux/filter.h, linux/bpf_common.h).
_LOAD_HALF, _LOAD_WORD, _LOAD_KEPT, _KEEP = 0x28, 0x20, 0x60, 0x02
_TO_X, _SUBTRACT, _MULTIPLY, _DIVIDE, _ADD_X = 0x07, 0x14, 0x24, 0x34, 0x0C
_GO, _IF_EQUAL, _IF_GREATER, _RETURN = 0x05, 0x15, 0x25, 0x06
_INSTRUCTION = struct.Struct("=HBBI")


class SyncIntervalEstimator:
    """
    The interval of the master's Syncs, by their sequence numbers. None until enough events were received in a row, and again after
    some Syncs that ptp4l used and whose events we missed: the estimate then made the lease too short.
    """

    def __init__(self) -> None:
        self._received: deque[RxSync] = deque(maxlen=_ESTIMATE_SYNCS)
        self._used_ns = 0
        self._missed = 0

    def add_event(self, sync: RxSync) -> None:
        self._received.append(sync)

    def add_used(self, ingress_time_ns: int) -> None:
        """Add the ingress time of ptp4l's newest Sync, which shows whether its event was missed."""
        if ingress_time_ns == self._used_ns:
            return
        self._used_ns = ingress_time_ns
        was_received = bool(self._received) and self._received[-1].t2_ns >= ingress_time_ns
        self._missed = 0 if was_received else self._missed + 1
        if self._missed >= _MAX_MISSED_SYNCS:
            self._received.clear()

    def interval_ns(self) -> int | None:
        if len(self._received) < _ESTIMATE_SYNCS:
            return None
        first, last = self._received[0], self._received[-1]
        sent = (last.sequence - first.sequence) & 0xFFFF
        return max(1, (last.t2_ns - first.t2_ns) // max(1, sent))


def lease_ms(queue: int, sync_interval_ns: int, delay_interval_ns: int) -> int:
    """The longest lease whose events fit into the queue."""
    both_ns = sync_interval_ns * delay_interval_ns // (sync_interval_ns + delay_interval_ns)
    fitting_ns = (queue - _SPARE) * both_ns // _BURST_FACTOR
    return max(0, min(_MAX_LEASE_MS, fitting_ns // _NS_PER_MS))


def lease_filter(from_ns: int, for_ms: int) -> bytes:
    """
    The BPF program that admits events stamped within `for_ms` after `from_ns` or in the second before it: a t3 may be older than the
    t2 of a Sync that overtook the Delay_Resp.
    """
    first_s = from_ns // NS_PER_S - 1
    last_ms = from_ns // _NS_PER_MS - first_s * 1_000 + for_ms
    program = (
        (_LOAD_HALF, 0, 0, _TLV_AT),
        (_IF_EQUAL, 0, 4, SYNC_TLV),
        (_LOAD_WORD, 0, 0, _T2_AT + 4),
        (_KEEP, 0, 0, 0),
        (_LOAD_WORD, 0, 0, _T2_AT),
        (_GO, 0, 0, 4),
        (_IF_EQUAL, 0, 12, DELAY_TLV),
        (_LOAD_WORD, 0, 0, _T3_AT + 4),
        (_KEEP, 0, 0, 0),
        (_LOAD_WORD, 0, 0, _T3_AT),
        (_SUBTRACT, 0, 0, first_s & 0xFFFFFFFF),
        (_IF_GREATER, 7, 0, last_ms // 1_000),  # unsigned, so a stamp before `first_s` is greater too
        (_MULTIPLY, 0, 0, 1_000),
        (_TO_X, 0, 0, 0),
        (_LOAD_KEPT, 0, 0, 0),
        (_DIVIDE, 0, 0, _NS_PER_MS),
        (_ADD_X, 0, 0, 0),
        (_IF_GREATER, 1, 0, last_ms),
        (_RETURN, 0, 0, 0xFFFFFFFF),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


#: The BPF program that admits no event.
ADMIT_NOTHING = _INSTRUCTION.pack(_RETURN, 0, 0, 0)


_MAX_RECORDS = 1024


class EventMonitor:
    """
    Keeps the newest records of one ptp4l until they are taken. `lost` counts records that were evicted before, `rejected` datagrams
    that are not a record of this ptp4l. ptp4l never waits for this process: outside the lease that `renew` grants, the kernel
    discards what it sends.
    """

    def __init__(self, path: Path, server: Path, domain: int, clock_identity: bytes) -> None:
        """Raises Unreachable if the path cannot be bound."""
        self.lost = 0
        self.rejected = 0
        self._path = path
        self._server = server
        self._sender = (domain, clock_identity)
        self._records: deque[EventRecord] = deque(maxlen=_MAX_RECORDS)
        self._queue = queue_length()
        self._lease_ms = 0
        self._from_ns = 0
        self._sync_interval = SyncIntervalEstimator()
        self._socket = self._bind()

    def renew(self, local_ns: int, sync_interval_ns: int, delay_interval_ns: int) -> None:
        """
        Admit events stamped from `local_ns` (the newest Sync's) on, for the length of a lease. Binds the path again if it was
        removed. `sync_interval_ns` counts as the parent's until enough Syncs show the true interval. Raises Unreachable.
        """
        if not self._socket.is_in_place():
            self._socket.close()
            self._socket = self._bind()
        self._sync_interval.add_used(local_ns)
        # The port's own Sync interval may be shorter than its parent's, and then the lease would end before a second Sync.
        syncs_ns = self._sync_interval.interval_ns() or max(sync_interval_ns, NS_PER_S)
        self._lease_ms = lease_ms(self._queue, syncs_ns, delay_interval_ns)
        self._admit_from(local_ns)

    def take(self) -> list[EventRecord]:
        """The records since the last call, oldest first."""
        records = list(self._records)
        self._records.clear()
        return records

    def close(self) -> None:
        self._socket.close()

    def _bind(self) -> Ptp4lSocket:
        _remove_stale_socket(self._path)
        endpoint = Ptp4lSocket(self._path, self._server, self._received)
        try:
            endpoint.admit(ADMIT_NOTHING)
        except Unreachable:
            endpoint.close()
            raise
        return endpoint

    def _received(self, datagram: bytes) -> bool:
        try:
            event = parse_event(datagram)
        except Malformed:
            self.rejected += 1
            return True
        self._keep(event)
        return True

    def _keep(self, event: SlaveEvent) -> None:
        if (event.domain, event.clock_identity) != self._sender:
            self.rejected += 1
            return
        self.lost += len(self._records) == _MAX_RECORDS
        self._records.append(event.record)
        if isinstance(event.record, RxSync):
            self._sync_interval.add_event(event.record)
        if event.record.local_ns - self._from_ns > self._lease_ms * 1_000_000 // 3:
            with suppress(Unreachable):  # then the next `renew` raises it
                self._admit_from(event.record.local_ns)

    def _admit_from(self, local_ns: int) -> None:
        self._from_ns = local_ns
        self._socket.admit(lease_filter(local_ns, self._lease_ms))


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket of a killed process. Raises Unreachable if a process listens on it or the file is no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if path.is_socket():
                path.unlink(missing_ok=True)
                return
        except OSError as error:
            raise Unreachable(f"{path}: {error.strerror or error}") from error
    raise Unreachable(f"{path}: used by another process, or not a socket; give each source its own slave_event_monitor")
