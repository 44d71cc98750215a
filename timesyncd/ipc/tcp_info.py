"""
The counters of one TCP connection, as `getsockopt(TCP_INFO)` gives them: `struct tcp_info` of the kernel's
include/uapi/linux/tcp.h. Pure.

Each kernel appends fields, and an older one gives a shorter struct: a field that it lacks is None.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from timesyncd.errors import Malformed

#: Up to `tcpi_total_retrans`, which every kernel since 2.6 gives; and the most that is read.
LEAST_BYTES, MAX_BYTES = 104, 512

#: `tcpi_state` of a connection that transfers in both directions.
ESTABLISHED = 1

_NO_MIN_RTT = 2**32 - 1
_NS_PER_US, _NS_PER_MS = 1_000, 1_000_000
_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """
    One end of a connection, since it was opened; None: the kernel does not give it, or has not measured it yet.

    `rtt_ns`: the smoothed round trip time, `min_rtt_ns` the smallest of the last minutes, `rto_ns` the present
    retransmission timeout. `retransmitted` of `data_segments` segments were sent again. `busy_ns`: for so long unacked
    data was under way; of it, the receiver's window held the sender back for `rwnd_limited_ns`, and its own buffer
    for `sndbuf_limited_ns`. `rto_recovery_ns`: from the first timeout of a segment until its acknowledgement, in sum.
    `delivery_bytes_per_s`: the newest measured rate.
    """

    state: int
    rto_ns: int
    rtt_ns: int | None
    retransmitted: int
    bytes_acked: int | None
    bytes_received: int | None
    min_rtt_ns: int | None
    data_segments: int | None
    delivery_bytes_per_s: int | None
    busy_ns: int | None
    rwnd_limited_ns: int | None
    sndbuf_limited_ns: int | None
    rto_recovery_ns: int | None


def parse_tcp_info(data: bytes) -> TcpInfo:
    """As the kernel returned it, no longer than the length that it returned. Raises Malformed where it is too short."""
    if len(data) < LEAST_BYTES:
        raise Malformed(f"struct tcp_info has {len(data)} octets; it has {LEAST_BYTES} or more")

    def word(offset: int, layout: struct.Struct) -> int | None:
        """None: a kernel before this field."""
        return layout.unpack_from(data, offset)[0] if offset + layout.size <= len(data) else None

    min_rtt_us = word(148, _U32)
    return TcpInfo(
        state=data[0],
        rto_ns=(word(8, _U32) or 0) * _NS_PER_US,
        rtt_ns=_ns(word(68, _U32) or None),
        retransmitted=word(100, _U32) or 0,
        bytes_acked=word(120, _U64),
        bytes_received=word(128, _U64),
        min_rtt_ns=_ns(None if min_rtt_us == _NO_MIN_RTT else min_rtt_us),
        data_segments=word(156, _U32),
        delivery_bytes_per_s=word(160, _U64) or None,
        busy_ns=_ns(word(168, _U64)),
        rwnd_limited_ns=_ns(word(176, _U64)),
        sndbuf_limited_ns=_ns(word(184, _U64)),
        rto_recovery_ns=None if (recovery_ms := word(244, _U32)) is None else recovery_ms * _NS_PER_MS,
    )


def _ns(us: int | None) -> int | None:
    return None if us is None else us * _NS_PER_US
