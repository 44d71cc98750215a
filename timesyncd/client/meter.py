"""Marks: when this rank arrived at a synchronization and when it was over, sent to the daemon in batches."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from timesyncd.joblink import MARK_SIZE, MAX_MARKS, Header, Kind, encode_header, pack_mark

#: At most ten datagrams a second: the kernel's queue holds ten by default, for all ranks of a node together.
SEND_EVERY_NS = 100_000_000

_realtime_ns = time.time_ns
_monotonic_ns = time.monotonic_ns


class Meter:
    """
    Never waits, never raises because of the daemon, never grows: what cannot be kept or sent is counted in `lost`.

    The marking call itself sends when 100 ms have passed since the last datagram, so after a pause the newest marks may lie
    here until the next one, or `close`. `header` gives a datagram's header from the number of marks lost so far.
    """

    def __init__(self, path: Path, header: Callable[[int], Header]) -> None:
        self._path = str(path)
        self._header = header
        self._buffer = bytearray(MAX_MARKS * MARK_SIZE)
        self._count = 0
        self._lost = 0
        self._sent_ns = _monotonic_ns() - SEND_EVERY_NS
        self._step: int | None = None
        self._sync = 0
        self._first_ns: int | None = None
        self._last_ns = 0
        self._inside_ns = 0
        # Re-entrant: a signal handler may mark, or close, in the middle of a mark.
        self._lock = threading.RLock()
        self._socket = _unbound_socket()

    @property
    def lost(self) -> int:
        """How many marks the daemon never got, since the start."""
        return self._lost

    @property
    def sync_overhead(self) -> float | None:
        """
        This rank's own time in synchronization, as a ratio of the time from its first arrival to its last end.

        Measured here alone, with or without a daemon; `Job.signals().sync_overhead` is the whole job's. None: no mark yet.
        """
        if self._first_ns is None or self._last_ns <= self._first_ns:
            return None
        return self._inside_ns / (self._last_ns - self._first_ns)

    def sync(self, step: int, kind: Kind = Kind.CUSTOM, bytes: int = 0) -> Sync:
        """
        Mark what runs inside `with`: arrival and begin on entry, end on exit; nothing when it raises.

        The synchronizations of a step are numbered by the order of their calls, which must be the same on every rank.
        """
        return Sync(self, step, kind, bytes)

    def next_sync(self, step: int) -> int:
        """The number of the step's next synchronization, from 0."""
        with self._lock:
            self._sync = self._sync + 1 if step == self._step else 0
            self._step = step
            return self._sync

    def mark(
        self,
        step: int,
        sync: int,
        arrival_ns: int,
        begin_ns: int,
        end_ns: int,
        kind: Kind = Kind.CUSTOM,
        bytes: int = 0,
    ) -> None:
        """One synchronization that the caller timed, in CLOCK_REALTIME nanoseconds."""
        with self._lock:
            try:
                self._keep((step, sync, kind, arrival_ns, begin_ns, end_ns, bytes))
            except struct.error:
                self._lost += 1
                return
            if self._first_ns is None:
                self._first_ns = arrival_ns
            self._last_ns = end_ns
            self._inside_ns += end_ns - arrival_ns
            if _monotonic_ns() - self._sent_ns >= SEND_EVERY_NS:
                self._send()

    def close(self) -> None:
        """Send what is left. Later marks are counted as lost."""
        with self._lock:
            if self._count:
                self._send()
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _keep(self, fields: tuple[int, int, int, int, int, int, int]) -> None:
        """Raises struct.error for a number that the datagram does not hold."""
        if self._count == MAX_MARKS:
            self._lost += 1
            return
        pack_mark(self._buffer, self._count * MARK_SIZE, *fields)
        self._count += 1

    def _send(self) -> None:
        """One datagram of all that is kept; whatever happens to it, the buffer is free again."""
        count, self._count = self._count, 0
        self._sent_ns = _monotonic_ns()
        if self._socket is None:
            self._lost += count
            return
        try:
            head = encode_header(self._header(self._lost), count)
            marks = memoryview(self._buffer)[: count * MARK_SIZE]
            # Never connected: a connected socket stays dead after the daemon's restart.
            self._socket.sendmsg((head, marks), (), socket.MSG_DONTWAIT, self._path)
        except (OSError, struct.error):
            self._lost += count


class Sync:
    """What `Meter.sync` gives."""

    __slots__ = ("_arrival_ns", "_bytes", "_kind", "_meter", "_step", "_sync")

    def __init__(self, meter: Meter, step: int, kind: Kind, bytes: int) -> None:
        self._meter = meter
        self._step = step
        self._kind = kind
        self._bytes = bytes
        self._sync = 0
        self._arrival_ns = 0

    def __enter__(self) -> None:
        self._sync = self._meter.next_sync(self._step)
        self._arrival_ns = _realtime_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = _realtime_ns()
        if kind is None:
            begin_ns = self._arrival_ns
            self._meter.mark(self._step, self._sync, begin_ns, begin_ns, end_ns, self._kind, self._bytes)


def _unbound_socket() -> socket.socket | None:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
