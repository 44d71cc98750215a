"""
What ptp4l's slave event monitor tells: the raw time stamps of each Sync and of each delay measurement. Pure.

Signaling messages with one record each (IEEE 1588-2019, 16.11.4.1, and linuxptp's own type for the delay); big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
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


Record = RxSync | DelayTiming


@dataclass(frozen=True, slots=True)
class Event:
    """A record, and of which ptp4l: two on one interface have one identity, and are in two domains."""

    domain: int
    clock_identity: bytes
    record: Record


def parse_event(datagram: bytes) -> Event:
    """Raises Malformed for all but a Signaling message with one record of the two kinds."""
    if len(datagram) < _PREFIX.size:
        raise Malformed(f"event of {len(datagram)} octets")
    kind, version, length, domain, identity, tlv, tlv_length = _PREFIX.unpack_from(datagram)
    if kind & 0xF != _SIGNALING or version & 0xF != 2:
        raise Malformed(f"not a Signaling message: octets {datagram[:2].hex()}")
    body = datagram[_PREFIX.size : _PREFIX.size + tlv_length]
    if _PREFIX.size + tlv_length > length or len(body) != tlv_length:
        raise Malformed(f"event of {len(datagram)} octets says {length}, its TLV {tlv_length}")
    return Event(domain, identity, _record(tlv, body))


def exchanges(
    records: Sequence[Record], parent: tuple[bytes, int], ingress_time_ns: int, forward_ns: int
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


def _record(tlv: int, body: bytes) -> Record:
    if tlv == SYNC_TLV and len(body) == _SYNC.size:
        master, port, sequence, *sent, correction, high, low, fraction = _SYNC.unpack(body)
        kind: type[Record] = RxSync
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
