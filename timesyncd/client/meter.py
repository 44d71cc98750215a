"""
Marks: when this rank arrived at a synchronization and when it was over, sent to the daemon in batches.

A rank's datagrams in a file, for `timesyncd audit`: whole datagrams, each behind its length, and an end to the size.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from weakref import WeakSet

from timesyncd.client.local import LocalSignals, LocalSums
from timesyncd.client.numbering import NO_KEY, Numbering
from timesyncd.ipc.job_datagram import MARK_SIZE, MAX_MARKS, Header, Kind, encode_header, pack_mark, unpack_marks

MAX_RECORD_BYTES = 2**30

#: Files of one name, as of several Jobs in one process or of processes with one number in their containers.
_MOST_FILES = 1_000

#: Before each datagram: its octets, little-endian.
LENGTH = struct.Struct("<I")


class Recorder:
    """
    Writes to `<folder>/rank-<rank>-<pid>-<job>.marks`, made with its folder at the first datagram; `<job>`: the first eight digits of `job_id`.
    A file is of one Recorder alone: where another has the name, a number comes behind it. The write goes to the file system's cache and is not
    forced out: it is as fast as the folder's file system takes it.

    What cannot be written, or would make the file larger than RECORD_MOST, ends the recording of this rank for good.
    """

    def __init__(self, folder: Path, rank: int, job_id: str) -> None:
        self._folder = folder
        self._name = f"rank-{rank}-{os.getpid()}-{job_id[:8]}"
        self._file: int | None = None
        self._size = 0
        self._ended = False

    def write(self, head: bytes, marks: memoryview) -> bool:
        """Whether the datagram is in the file, whole."""
        record = b"".join((LENGTH.pack(len(head) + len(marks)), head, marks))
        if not self._ended and not self._appended(record):
            self.close()
        return not self._ended

    def close(self) -> None:
        self._ended = True
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # whole or not, this is the end of it
                os.close(file)

    def _appended(self, record: bytes) -> bool:
        try:
            if self._file is None:
                self._open()
            if self._file is None or self._size + len(record) > MAX_RECORD_BYTES:
                return False
            if os.write(self._file, record) == len(record):
                self._size += len(record)
                return True
            os.ftruncate(self._file, self._size)
        except OSError:
            pass
        return False

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        for number in range(1, _MOST_FILES + 1):
            path = self._folder / f"{self._name}{f'-{number}' if number > 1 else ''}.marks"
            with suppress(FileExistsError):
                self._file = os.open(path, flags, 0o644)
                return


#: At most ten datagrams a second: the kernel's queue holds ten by default, for all ranks of a node together.
SEND_INTERVAL_NS = 100_000_000

#: Reading the CPU's time would cost half a mark. What lasts longer than this was interrupted.
_LONGEST_MARK_NS = 50_000

_realtime_ns = time.time_ns
_monotonic_ns = time.monotonic_ns


class Meter:
    """
    Never waits, never raises because of the daemon, never grows: what cannot be kept or sent is counted in `lost`.

    Steps are the job's own numbers; they may begin anew with each epoch (`epoch`). The marking call itself sends when 100 ms have
    passed since the last datagram, so after a pause the newest marks may lie here until the next one, or `close`. `header` gives a
    datagram's header from the number of marks lost and `own_overhead_ns` so far. Threads and signal handlers may mark at any time.
    After a fork the child's marks are lost: it is another process, and no rank until it makes a Job of its own.
    """

    def __init__(self, path: Path, header: Callable[[int, int], Header], recorder: Recorder | None = None) -> None:
        self._path = str(path)
        self._header = header
        self._recorder = recorder
        self._buffer = bytearray(MAX_MARKS * MARK_SIZE)
        self._count = self._added = 0
        self._dropped = self._undelivered = self._unrecorded = 0
        self._own_ns = 0
        self._sent_ns = _monotonic_ns() - SEND_INTERVAL_NS
        self._numbering, self._own = Numbering(), LocalSums()
        self._open_step: Step | None = None
        # Re-entrant, since a signal handler may close, or mark, in the middle of a mark; the latter is lost.
        self._lock = threading.RLock()
        self._busy = False
        self._pid = os.getpid()
        self._socket = _unbound_socket()
        _METERS.add(self)

    @property
    def lost(self) -> int:
        """How many marks the daemon never got, since the start."""
        return self._dropped + self._undelivered

    @property
    def unrecorded(self) -> int:
        """How many marks the recording lacks, where one was asked for: it has come to its end."""
        return self._unrecorded

    @property
    def own_overhead_ns(self) -> int:
        """
        What metering cost this rank since the start: the time in marks and in what is done for them
        (`spent`; 50 us of each at most: beyond that something else ran), and the CPU time of sending and recording.
        """
        return self._own_ns

    def local(self) -> LocalSignals:
        """What this rank measured of itself alone, with or without a daemon; `Job.signals()` is of the whole job."""
        with self._lock:
            self._add_up()
            return self._own.told()

    def epoch(self, number: int) -> None:
        """
        Steps from now on are of this epoch. Without it a step below half of the last one begins the next epoch.

        Raises ValueError: not within 0 to 2^31 - 1.
        """
        with self._lock:
            self._numbering.epoch(number)

    def key(self, step: int) -> int:
        """The step's key in plans and signals; -1 for what is no step's number."""
        with self._lock:
            return self._numbering.key(step)

    def next_sync(self, step: int) -> int:
        """The number of the step's next synchronization, from 0."""
        with self._lock:
            return self._numbering.next_sync(step)[1]

    def sync(self, step: int, kind: Kind = Kind.CUSTOM, bytes: int = 0) -> MeteredSync:
        """
        Mark what runs inside `with`: arrival and begin on entry, end on exit; nothing when it raises.

        The synchronizations of a step are numbered by the order of their calls, which must be the same on every rank.
        """
        return MeteredSync(self, step, kind, bytes)

    def step(self, step: int) -> Step:
        """
        Mark the step that runs inside `with`, to the update of its parameters; nothing when it raises.

        `gradients_ready()` inside says that this rank's own last gradient is there. Synchronizations are marked by themselves.
        """
        return Step(self, step)

    def gradients_ready(self) -> None:
        """This rank's own last gradient of the open step is ready: from now on it waits for the others' and for the update."""
        if self._open_step is not None:
            self._open_step.begin_ns = _realtime_ns()

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
        """
        What the caller timed, in CLOCK_REALTIME nanoseconds: ready for it, from then on did nothing but wait, over.

        `step` may be the one before the last as well. A second mark with the same step and sync is compared with nothing.
        """
        started_ns = _monotonic_ns()
        with self._lock:
            key = self._numbering.late_key(step)
            self._keep(started_ns, key, sync, arrival_ns, begin_ns, end_ns, kind, bytes)

    def mark_at(
        self, key: int, sync: int, arrival_ns: int, begin_ns: int, end_ns: int, kind: Kind = Kind.CUSTOM, bytes: int = 0
    ) -> None:
        """The same, however late: for a step whose key was taken (`key`) while it was under way."""
        started_ns = _monotonic_ns()
        with self._lock:
            self._keep(started_ns, key, sync, arrival_ns, begin_ns, end_ns, kind, bytes)

    def lose(self, marks: int = 1) -> None:
        """Count marks that the caller could not make."""
        with self._lock:
            self._dropped += marks

    def spent(self, started_ns: int, own_ns: int) -> None:
        """
        Count the caller's work for its marks since CLOCK_MONOTONIC `started_ns`, when `own_overhead_ns` was `own_ns`: what was counted
        since then is part of it. Of it, too, 50 us at most.
        """
        with self._lock:
            self._own_ns = max(self._own_ns, own_ns + min(_monotonic_ns() - started_ns, _LONGEST_MARK_NS))

    def pushed(self, step: int, request_ns: int, reply_ns: int, bytes: int = 0) -> None:
        """Gradients given to a parameter server, from the request to its reply, in CLOCK_REALTIME nanoseconds."""
        self._other(step, Kind.PUSH, request_ns, reply_ns, bytes)

    def pulled(self, step: int, request_ns: int, reply_ns: int, bytes: int = 0) -> None:
        """Parameters taken from a parameter server, from the request to its reply, in CLOCK_REALTIME nanoseconds."""
        self._other(step, Kind.PULL, request_ns, reply_ns, bytes)

    def stale(self, step: int, updates: int) -> None:
        """The parameters that this step used were so many updates behind."""
        now_ns = _realtime_ns()
        self._other(step, Kind.STALENESS, now_ns, now_ns, updates)

    def sent(self, step: int, message: int, bytes: int = 0) -> None:
        """A message was given to the transport now. Its number is unique in the step, and the receiver's too."""
        now_ns = _realtime_ns()
        self.mark(step, message, now_ns, now_ns, now_ns, Kind.SEND, bytes)

    def received(self, step: int, message: int, bytes: int = 0) -> None:
        """All of a message is there now."""
        now_ns = _realtime_ns()
        self.mark(step, message, now_ns, now_ns, now_ns, Kind.RECEIVE, bytes)

    def announce(self) -> bool:
        """Send what is kept, or that this rank is there. Whether a daemon took it; a signal handler in the middle of a mark sends nothing."""
        with self._lock:
            return not self._busy and self._send_alone()

    def close(self) -> None:
        """Send what is left. Later marks are counted as lost."""
        with self._lock:
            if self._count:
                self._send_alone()
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            if self._recorder is not None and os.getpid() == self._pid:
                self._recorder.close()

    def _other(self, step: int, kind: Kind, begin_ns: int, end_ns: int, bytes: int) -> None:
        started_ns = _monotonic_ns()
        with self._lock:
            key, number = self._numbering.next_other(step)
            self._keep(started_ns, key, number, begin_ns, begin_ns, end_ns, kind, bytes)

    def _keep(
        self,
        started_ns: int,
        key: int,
        sync: int,
        arrival_ns: int,
        begin_ns: int,
        end_ns: int,
        kind: int,
        bytes: int,
    ) -> None:
        if self._busy or key == NO_KEY:
            self._dropped += 1
            return
        self._busy = True
        try:
            count = self._count
            if count < MAX_MARKS:
                pack_mark(self._buffer, count * MARK_SIZE, key, sync, kind, arrival_ns, begin_ns, end_ns, bytes)
                self._count = count + 1
            else:
                self._dropped += 1
            now_ns = _monotonic_ns()
            self._own_ns += min(now_ns - started_ns, _LONGEST_MARK_NS)
            if now_ns - self._sent_ns >= SEND_INTERVAL_NS:
                self._send(now_ns)
        except struct.error:  # a number that the datagram does not hold, or none
            self._dropped += 1
        finally:
            self._busy = False

    def _add_up(self) -> None:
        """What was marked since, for `local`: in a batch, so that a mark need not wait for it."""
        new = memoryview(self._buffer)[self._added * MARK_SIZE : self._count * MARK_SIZE]
        self._added = self._count
        self._own.add_all(unpack_marks(new))

    def _send_alone(self) -> bool:
        """Not by a mark: what a signal handler marks meanwhile is lost here too."""
        was_busy, self._busy = self._busy, True
        try:
            return self._send(_monotonic_ns())
        finally:
            self._busy = was_busy

    def _send(self, now_ns: int) -> bool:
        """One datagram of all that is kept; whatever happens to it, the buffer is free again. Whether a daemon took it."""
        began_ns = time.thread_time_ns()
        try:
            return self._sent(now_ns)
        finally:
            self._own_ns += time.thread_time_ns() - began_ns

    def _sent(self, now_ns: int) -> bool:
        self._add_up()
        count, self._count, self._added = self._count, 0, 0
        self._sent_ns = now_ns
        sending = self._socket
        if sending is None or os.getpid() != self._pid:
            self._undelivered += count
            return False
        try:
            header = self._header(self._dropped + self._undelivered, self._own_ns)
            marks = memoryview(self._buffer)[: count * MARK_SIZE]
            self._record(header, marks, count)
            # Never connected: a connected socket stays dead after the daemon's restart.
            sending.sendmsg((encode_header(header, count), marks), (), socket.MSG_DONTWAIT, self._path)
        except (OSError, struct.error):
            self._undelivered += count
            return False
        return True

    def _record(self, header: Header, marks: memoryview, count: int) -> None:
        """What no daemon took is in the recording all the same, so there it is not lost."""
        if self._recorder is not None:
            head = encode_header(replace(header, lost=self._dropped), count)
            self._unrecorded += 0 if self._recorder.write(head, marks) else count

    def _begin_as_child(self) -> None:
        """After a fork: what was kept is the parent's to send, and whoever held the lock is not here."""
        self._lock = threading.RLock()
        self._busy = False
        self._count = self._added = 0


class MeteredSync:
    """What `Meter.sync` gives."""

    __slots__ = ("_arrival_ns", "_bytes", "_key", "_kind", "_meter", "_step", "_sync")

    def __init__(self, meter: Meter, step: int, kind: Kind, bytes: int) -> None:
        self._meter = meter
        self._step = step
        self._kind = kind
        self._bytes = bytes

    def __enter__(self) -> None:
        started_ns = _monotonic_ns()
        meter = self._meter
        with meter._lock:
            self._key, self._sync = meter._numbering.next_sync(self._step)
            meter._own_ns += min(_monotonic_ns() - started_ns, _LONGEST_MARK_NS)
        self._arrival_ns = _realtime_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = _realtime_ns()
        if kind is None:
            started_ns = _monotonic_ns()
            begin_ns = self._arrival_ns
            meter = self._meter
            with meter._lock:
                meter._keep(started_ns, self._key, self._sync, begin_ns, begin_ns, end_ns, self._kind, self._bytes)


class Step:
    """What `Meter.step` gives."""

    __slots__ = ("_arrival_ns", "_key", "_meter", "_step", "begin_ns")

    def __init__(self, meter: Meter, step: int) -> None:
        self._meter = meter
        self._step = step

    def __enter__(self) -> None:
        self._key = self._meter.key(self._step)
        self._meter._open_step = self
        self._arrival_ns = self.begin_ns = _realtime_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = _realtime_ns()
        meter = self._meter
        meter._open_step = None
        if kind is None:
            started_ns = _monotonic_ns()
            with meter._lock:
                meter._keep(started_ns, self._key, 0, self._arrival_ns, self.begin_ns, end_ns, Kind.STEP, 0)


_METERS: WeakSet[Meter] = WeakSet()


def _begin_as_child() -> None:
    for meter in _METERS:
        meter._begin_as_child()


os.register_at_fork(after_in_child=_begin_as_child)


def _unbound_socket() -> socket.socket | None:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
