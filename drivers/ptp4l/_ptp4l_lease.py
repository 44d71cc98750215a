"""
How long ptp4l may send us events that nobody reads. Pure.

ptp4l sends an event with a blocking sendto(): while the queue of a reader that is stopped is full, it waits, and keeps
no time. A filter on our socket lets the kernel take in only events whose local time stamp lies in a short lease, renewed
while we read; it tosses the others at once, and the sender does not wait. So a reader that is stopped stops nobody.
"""

from __future__ import annotations

import struct
from collections import deque
from pathlib import Path

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.ptp4l._event_monitor import DELAY_TLV, SYNC_TLV, RxSync

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


class Pace:
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


def admitting(from_ns: int, for_ms: int) -> bytes:
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
NOTHING = _INSTRUCTION.pack(_RETURN, 0, 0, 0)
