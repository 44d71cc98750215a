"""Records the marks of a rank's communicators into a file beside its other marks. No daemon receives them."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

from timesyncd.client.recorder import Recorder
from timesyncd.ipc.group_marks import (
    MAX_COMMUNICATORS,
    Communicator,
    encode_any_source,
    encode_communicator,
    pack_kind,
)
from timesyncd.ipc.job_datagram import MARK_SIZE, MAX_MARKS, Header, encode_header, pack_mark

#: Kept marks are written after so long, with the next mark: a rank that is killed loses no more.
WRITE_INTERVAL_NS = 100_000_000

_NOTHING = memoryview(b"")

_monotonic_ns = time.monotonic_ns


class GroupMeter:
    """
    Keeps marks in a buffer of fixed size, and writes it every 100 ms and at the end. It never raises for a failed write:
    the marks are counted in `lost`. `header` gives the state of the rank's clock, from the number of lost marks.
    """

    def __init__(self, header: Callable[[int], Header], recorder: Recorder) -> None:
        self._header = header
        self._recorder = recorder
        self._buffer = bytearray(MAX_MARKS * MARK_SIZE)
        self._count = self._communicators = 0
        self._written_ns = _monotonic_ns()
        self._pid = os.getpid()
        # Re-entrant: a signal handler may communicate.
        self._lock = threading.RLock()
        self.lost = 0
        _METERS.add(self)

    def add(self, communicator: Communicator) -> int | None:
        """The number of the communicator in the file; None: there are too many, or the recording has ended."""
        with self._lock:
            number = self._communicators
            if number >= MAX_COMMUNICATORS or not self._write_block(encode_communicator(number, communicator)):
                return None
            self._communicators += 1
            return number

    def receive_from_any(self, name: str) -> None:
        """From now on it is not known which messages this rank receives in the group with this name."""
        with self._lock:
            self._write_block(encode_any_source(name))

    def mark(
        self,
        communicator: int,
        key: int,
        number: int,
        kind: int,
        arrival_ns: int,
        begin_ns: int,
        end_ns: int,
        bytes: int,
    ) -> bool:
        """
        Record a synchronization of the step with this key, in CLOCK_REALTIME ns. `number`: how many the communicator had
        before it. Whether the mark is kept.
        """
        with self._lock:
            try:
                at, packed = self._count * MARK_SIZE, pack_kind(communicator, kind)
                pack_mark(self._buffer, at, key, number, packed, arrival_ns, begin_ns, end_ns, bytes)
            except struct.error:  # a number that does not fit
                self.lost += 1
                return False
            self._count += 1
            now_ns = _monotonic_ns()
            if self._count >= MAX_MARKS or now_ns - self._written_ns >= WRITE_INTERVAL_NS:
                self._written_ns = now_ns
                self.write()
            return True

    def write(self) -> None:
        """Write the kept marks."""
        with self._lock:
            count, self._count = self._count, 0
            if not count or os.getpid() != self._pid:
                return
            head = encode_header(self._header(self.lost), count)
            if not self._recorder.write(head, memoryview(self._buffer)[: count * MARK_SIZE]):
                self.lost += count

    def close(self) -> None:
        """Write the kept marks. Later ones are lost."""
        with self._lock:
            self.write()
            if os.getpid() == self._pid:
                self._recorder.close()

    def _reset_in_child(self) -> None:
        """After a fork: the parent writes the kept marks, and the thread that held the lock does not exist here."""
        self._lock = threading.RLock()
        self._count = 0

    def _write_block(self, block: bytes) -> bool:
        return os.getpid() == self._pid and self._recorder.write(block, _NOTHING)


_METERS: WeakSet[GroupMeter] = WeakSet()


def _reset_in_child() -> None:
    for meter in _METERS:
        meter._reset_in_child()


os.register_at_fork(after_in_child=_reset_in_child)
