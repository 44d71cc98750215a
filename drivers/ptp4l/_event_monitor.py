"""
What ptp4l's slave event monitor tells: the raw time stamps of each Sync and of each delay measurement. Pure.

Signaling messages with one record each (IEEE 1588-2019, 16.11.4.1, and linuxptp's own type for the delay); big-endian.

How long ptp4l may send us events that nobody reads. Pure.

ptp4l sends an event with a blocking sendto(): while the queue of a reader that is stopped is full, it waits, and keeps
no time. A filter on our socket lets the kernel take in only events whose local time stamp lies in a short lease, renewed
while we read; it tosses the others at once, and the sender does not wait. So a reader that is stopped stops nobody.

The end of ptp4l's slave event monitor: a path of ours that it sends to.
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
from timesyncd.drivers.ptp4l._socket import Ptp4lSocket
from timesyncd.errors import Malformed, Unreachable
from timesyncd.sample import DelayExchange

SYNC_TLV = 0x8004
DELAY_TLV = 0x7F00

_SIGNALING = 0xC
_PREFIX = struct.Struct(">BBHB15x8s16xHH")  # header and target; the TLV's type and length
_SYNC = struct.Struct(">8sHHHIIq4xHII")
_DELAY = struct.Struct(">8sHHHIIqHII")

_LATEST_S = 2**33  # the year 2242; its nanoseconds fit into 64 bits
_FAR_NS = NS_PER_S // 2  # further apart, and the two cannot be of one scale
_DELAY_MOVED_NS = NS_PER_S // 10  # a delay measured between a Sync and its reading moves ptp4l's median by far less


@dataclass(frozen=True, slots=True)
class RxSync:
    """A Sync that ptp4l used: sent at t1 by the master's clock, received at t2 by ours."""

    master: bytes
    master_port: int
    sequence: int
    t1_ns: int
    correction_ns: int
    t2_ns: int

    @property
    def forward_ns(self) -> int:
        """The one-way delay from the master plus what our clock is ahead of it."""
        return self.t2_ns - self.t1_ns - self.correction_ns

    @property
    def local_ns(self) -> int:
        return self.t2_ns


@dataclass(frozen=True, slots=True)
class DelayTiming:
    """A Delay_Req, sent at t3 by our clock, received at t4 by the master's, as its Delay_Resp told."""

    master: bytes
    master_port: int
    sequence: int
    t3_ns: int
    correction_ns: int
    t4_ns: int

    @property
    def reverse_ns(self) -> int:
        """The one-way delay to the master minus what our clock is ahead of it."""
        return self.t4_ns - self.t3_ns - self.correction_ns

    @property
    def local_ns(self) -> int:
        return self.t3_ns


EventRecord = RxSync | DelayTiming


@dataclass(frozen=True, slots=True)
class SlaveEvent:
    """A record, and of which ptp4l: two on one interface have one identity, and are in two domains."""

    domain: int
    clock_identity: bytes
    record: EventRecord


def parse_event(datagram: bytes) -> SlaveEvent:
    """Raises Malformed for all but a Signaling message with one record of the two kinds."""
    if len(datagram) < _PREFIX.size:
        raise Malformed(f"event of {len(datagram)} octets")
    kind, version, length, domain, identity, tlv, tlv_length = _PREFIX.unpack_from(datagram)
    if kind & 0xF != _SIGNALING or version & 0xF != 2:
        raise Malformed(f"not a Signaling message: octets {datagram[:2].hex()}")
    body = datagram[_PREFIX.size : _PREFIX.size + tlv_length]
    if _PREFIX.size + tlv_length > length or len(body) != tlv_length:
        raise Malformed(f"event of {len(datagram)} octets says {length}, its TLV {tlv_length}")
    return SlaveEvent(domain, identity, _record(tlv, body))


def exchanges(
    records: Sequence[EventRecord], parent: tuple[bytes, int], ingress_time_ns: int, forward_ns: int
) -> tuple[DelayExchange, ...]:
    """
    The delay measurements with this parent port, on the scale of ptp4l's offset; `forward_ns` is that offset plus the
    path delay, for the Sync received at `ingress_time_ns`. Empty where this Sync is not among the records: by it the
    whole seconds are known which ptp4l took out of the offset.
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
    # Forward and reverse together are free of the offset: what is seconds away was measured on another scale.
    return tuple(exchange for exchange in found if abs(forward_ns + exchange.reverse_ns) < _FAR_NS)


def _whole_seconds_ns(difference_ns: int) -> int | None:
    """The nearest whole seconds; None where it is none of them but something else."""
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
    # ptp4l, too, takes the whole nanoseconds of a correction by a shift.
    return kind(master, port, sequence, _stamp_ns(*sent), correction >> 16, _stamp_ns(high, low, fraction))


def _stamp_ns(high_s: int, low_s: int, fraction_ns: int) -> int:
    if fraction_ns >= NS_PER_S:
        raise Malformed(f"time stamp with {fraction_ns} ns in its second")
    seconds = high_s << 32 | low_s
    if seconds > _LATEST_S:
        raise Malformed(f"time stamp after {seconds} s")
    return seconds * NS_PER_S + fraction_ns


#: A sender's own buffer (net.core.wmem_default) holds 278 small datagrams, those to all our sockets together.
_SENDER_HOLDS = 128

_SPARE = 2
_CROWDED = 3  # delay measurements come at random: at times more of them than the mean
_LONGEST_MS = 60_000
_ENOUGH_SYNCS = 8
_UNHEARD_SYNCS = 3

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
    At which interval the master sends Syncs, as their own numbers tell; None until enough were heard in a row, and
    again after some that ptp4l used and we did not hear: then the pace that we had made too short a lease.
    """

    def __init__(self) -> None:
        self._heard: deque[RxSync] = deque(maxlen=_ENOUGH_SYNCS)
        self._used_ns = 0
        self._unheard = 0

    def heard(self, sync: RxSync) -> None:
        self._heard.append(sync)

    def used(self, ingress_time_ns: int) -> None:
        """ptp4l says that this is its newest Sync."""
        if ingress_time_ns == self._used_ns:
            return
        self._used_ns = ingress_time_ns
        was_heard = bool(self._heard) and self._heard[-1].t2_ns >= ingress_time_ns
        self._unheard = 0 if was_heard else self._unheard + 1
        if self._unheard >= _UNHEARD_SYNCS:
            self._heard.clear()

    def interval_ns(self) -> int | None:
        if len(self._heard) < _ENOUGH_SYNCS:
            return None
        first, last = self._heard[0], self._heard[-1]
        sent = (last.sequence - first.sequence) & 0xFFFF
        return max(1, (last.t2_ns - first.t2_ns) // max(1, sent))


def queue_length() -> int:
    """How many datagrams ptp4l may send to a UNIX socket of ours before it waits."""
    try:
        kernel = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    except (OSError, ValueError):
        kernel = 10
    return min(kernel, _SENDER_HOLDS)


def lease_ms(queue: int, sync_interval_ns: int, delay_interval_ns: int) -> int:
    """So long that the events of this time fit into the queue."""
    both_ns = sync_interval_ns * delay_interval_ns // (sync_interval_ns + delay_interval_ns)
    fitting_ns = (queue - _SPARE) * both_ns // _CROWDED
    return max(0, min(_LONGEST_MS, fitting_ns // _NS_PER_MS))


def lease_filter(from_ns: int, for_ms: int) -> bytes:
    """
    The filter that lets in events stamped within `for_ms` after `from_ns`, or in the second before: t3 is older than
    the t2 of a Sync that overtook the Delay_Resp.
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
        (_IF_GREATER, 7, 0, last_ms // 1_000),  # unsigned: a stamp from before, too
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


#: Lets nothing in.
ADMIT_NOTHING = _INSTRUCTION.pack(_RETURN, 0, 0, 0)


_MOST_KEPT = 1024


class EventMonitor:
    """
    Keeps the newest records of one ptp4l until they are taken; `lost` counts those that had to go before, `strange`
    what was no record of this ptp4l. ptp4l never waits for us: outside the lease that `renew` gives the kernel tosses
    what it sends.
    """

    def __init__(self, path: Path, server: Path, domain: int, clock_identity: bytes) -> None:
        """Raises Unreachable when the path cannot be had."""
        self.lost = 0
        self.strange = 0
        self._path = path
        self._server = server
        self._sender = (domain, clock_identity)
        self._records: deque[EventRecord] = deque(maxlen=_MOST_KEPT)
        self._queue = queue_length()
        self._lease_ms = 0
        self._from_ns = 0
        self._pace = SyncIntervalEstimator()
        self._channel = self._bind()

    def renew(self, local_ns: int, sync_interval_ns: int, delay_interval_ns: int) -> None:
        """
        Let in what is stamped from `local_ns` (of the newest Sync) on, for a while. Takes the path again if somebody
        removed it. The Sync interval is taken for the parent's until enough Syncs showed that. Raises Unreachable.
        """
        if not self._channel.is_in_place():
            self._channel.close()
            self._channel = self._bind()
        self._pace.used(local_ns)
        # The port's own Sync interval may be shorter than its parent's, and then no second Sync would come in.
        syncs_ns = self._pace.interval_ns() or max(sync_interval_ns, NS_PER_S)
        self._lease_ms = lease_ms(self._queue, syncs_ns, delay_interval_ns)
        self._admit_from(local_ns)

    def take(self) -> list[EventRecord]:
        """The records since the last call, oldest first."""
        records = list(self._records)
        self._records.clear()
        return records

    def close(self) -> None:
        self._channel.close()

    def _bind(self) -> Ptp4lSocket:
        _clear(self._path)
        channel = Ptp4lSocket(self._path, self._server, self._received)
        try:
            channel.admit(ADMIT_NOTHING)
        except Unreachable:
            channel.close()
            raise
        return channel

    def _received(self, datagram: bytes) -> bool:
        try:
            event = parse_event(datagram)
        except Malformed:
            self.strange += 1
            return True
        self._keep(event)
        return True

    def _keep(self, event: SlaveEvent) -> None:
        if (event.domain, event.clock_identity) != self._sender:
            self.strange += 1
            return
        self.lost += len(self._records) == _MOST_KEPT
        self._records.append(event.record)
        if isinstance(event.record, RxSync):
            self._pace.heard(event.record)
        if event.record.local_ns - self._from_ns > self._lease_ms * 1_000_000 // 3:
            with suppress(Unreachable):  # then the next `renew` tells
                self._admit_from(event.record.local_ns)

    def _admit_from(self, local_ns: int) -> None:
        self._from_ns = local_ns
        self._channel.admit(lease_filter(local_ns, self._lease_ms))


def _clear(path: Path) -> None:
    """Remove what a killed predecessor left. Raises Unreachable where somebody listens, and for what is no socket."""
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
    raise Unreachable(
        f"{path}: taken by another process, or no socket: give each source a slave_event_monitor of its own"
    )
