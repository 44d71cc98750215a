"""Marks: when this rank arrived at a synchronization and when that was over, sent to the daemon in batches."""

from __future__ import annotations

import atexit
import os
import socket
import struct
import sys
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
from timesyncd.client.recorder import Recorder
from timesyncd.ipc.job_datagram import (
    MARK_SIZE,
    MAX_MARKS,
    Header,
    Kind,
    encode_header,
    loss_word,
    pack_mark,
    unpack_marks,
)

#: At most ten datagrams a second: the kernel's queue holds ten by default, shared by all ranks of a node.
SEND_INTERVAL_NS = 100_000_000

#: A longer mark was interrupted: reading the CPU time would cost half a mark.
_LONGEST_MARK_NS = 50_000

#: A rank inside a synchronization reports its arrival after so long, and that it is still there every so often.
ARRIVAL_AFTER_NS = 1_000_000_000
SIGN_EVERY_NS = 5_000_000_000

#: The most synchronizations that a rank is inside at once; the oldest is forgotten.
MAX_ARRIVALS = 4096

_realtime_ns = time.time_ns
_monotonic_ns = time.monotonic_ns


class Meter:
    """
    Marks a rank's synchronizations and steps, and sends the marks to the node's daemon.

    It never waits, never raises because of the daemon, and uses a fixed amount of memory: marks that it cannot keep or send are counted
    in `lost`.

    Steps are the job's own numbers and may restart with each epoch (`set_epoch`). A mark sends a datagram when 100 ms have passed since
    the last one, so before a pause the newest marks may stay here until the next mark, or `close`. `header` builds a datagram's header
    from the number of lost marks and `own_overhead_ns`. Threads and signal handlers may mark at any time. After a fork the child's marks
    are lost until it makes a Job of its own.
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
        self._numbering, self._local = Numbering(), LocalSums()
        self._open_step: Step | None = None
        self._arrivals: dict[int, OpenArrival] = {}
        self._failed: OpenArrival | None = None
        self._newest_key = NO_KEY
        self._signed_ns = _monotonic_ns()
        self._signs = False
        self._hidden = False
        self._may_wait_unseen: Callable[[], bool] | None = None
        self.each_second: Callable[[], None] | None = None  #: called by the thread that reports presence
        # Re-entrant: a signal handler may close, or mark, in the middle of a mark; the latter mark is lost.
        self._lock = threading.RLock()
        self._busy = False
        self._pid = os.getpid()
        self._socket = _unbound_socket()
        _METERS.add(self)

    @property
    def lost(self) -> int:
        """How many marks the daemon did not receive, since the start."""
        return self._dropped + self._undelivered

    @property
    def unrecorded(self) -> int:
        """How many marks are missing in the recording, because it ended; 0 without a recording."""
        return self._unrecorded

    @property
    def own_overhead_ns(self) -> int:
        """
        What metering cost this rank since the start, in ns.

        It is the time spent in marks and in `add_overhead` (at most 50 us of each: a longer one was interrupted), and the CPU time of
        sending and recording.
        """
        return self._own_ns

    def local_signals(self) -> LocalSignals:
        """What this rank measured of itself, with or without a daemon; `Job.signals()` covers the whole job."""
        with self._lock:
            self._update_local()
            return self._local.signals()

    def set_epoch(self, epoch: int) -> None:
        """
        Steps from now on belong to this epoch. Without this call a step below half of the last one starts the next epoch.

        Raises ValueError for an epoch that is not within 0 to 2^31 - 1.
        """
        with self._lock:
            self._numbering.set_epoch(epoch)

    def step_key(self, step: int) -> int:
        """The step's key in plans and signals; -1 for a number that no step can have."""
        with self._lock:
            return self._numbering.step_key(step)

    def next_sync(self, step: int) -> int:
        """The number of the step's next synchronization, from 0."""
        with self._lock:
            return self._numbering.next_sync(step)[1]

    def sync(self, step: int, kind: Kind = Kind.CUSTOM, bytes: int = 0) -> MeteredSync:
        """
        Mark the synchronization inside `with`: arrival and begin on entry, end on exit; no mark if it raises.

        The synchronizations of a step are numbered in the order of these calls, which must be the same on every rank.
        """
        return MeteredSync(self, step, kind, bytes)

    def step(self, step: int) -> Step:
        """
        Mark the step inside `with`, up to the update of the parameters; no mark if it raises.

        Call `gradients_ready()` inside when this rank's own last gradient is ready. Synchronizations are marked separately.
        """
        return Step(self, step)

    def gradients_ready(self) -> None:
        """This rank's own last gradient of the open step is ready. From now on the rank waits for the others and for the update."""
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
        Mark a synchronization that the caller timed, in CLOCK_REALTIME ns.

        `arrival_ns`: the rank was ready for it. `begin_ns`: from here on it did nothing but wait. `end_ns`: it was over. `step` is the
        last one or the one before. A second mark with the same step and sync is not compared with other ranks.
        """
        started_ns = _monotonic_ns()
        with self._lock:
            key = self._numbering.late_key(step)
            self._store(started_ns, key, sync, arrival_ns, begin_ns, end_ns, kind, bytes)

    def mark_at(
        self, key: int, sync: int, arrival_ns: int, begin_ns: int, end_ns: int, kind: Kind = Kind.CUSTOM, bytes: int = 0
    ) -> None:
        """As `mark`, at any later time, for a step whose key was read (`step_key`) while the step ran."""
        started_ns = _monotonic_ns()
        with self._lock:
            self._store(started_ns, key, sync, arrival_ns, begin_ns, end_ns, kind, bytes)

    def count_lost(self, marks: int = 1) -> None:
        """Count marks that the caller could not make as lost."""
        with self._lock:
            self._dropped += marks

    def add_overhead(self, started_ns: int, own_ns: int) -> None:
        """
        Count the caller's work for its marks since CLOCK_MONOTONIC `started_ns`, at most 50 us of it.

        `own_ns` was `own_overhead_ns` at that time; what was counted since then is part of that work.
        """
        with self._lock:
            self._own_ns = max(self._own_ns, own_ns + min(_monotonic_ns() - started_ns, _LONGEST_MARK_NS))

    def arrive(self, key: int, kind: Kind) -> OpenArrival:
        """
        The rank comes to a synchronization of the step with this key now. Until `leave`, its arrival is reported while
        it waits for long, so that a hang shows which rank waits where, and which one never came.
        """
        with self._lock:
            if not self._signs:
                self._signs = True
                _watch()
            if len(self._arrivals) >= MAX_ARRIVALS:
                del self._arrivals[next(iter(self._arrivals))]
            ordinal = self._numbering.next_of_kind(key, kind)
            arrival = OpenArrival(key, ordinal, kind, _realtime_ns(), _monotonic_ns())
            self._arrivals[id(arrival)] = arrival
            return arrival

    def leave(self, arrival: OpenArrival, failed: bool = False) -> None:
        """The synchronization is over, or failed. Repeated calls have no effect."""
        with self._lock:
            if self._arrivals.pop(id(arrival), None) is None:
                return
            if not failed:
                self._failed = None
            elif self._failed is None or arrival.since_ns < self._failed.since_ns:
                self._failed = arrival

    def hide_presence(self) -> None:
        """
        Report no more that this rank is outside of every synchronization: it may be inside one that the caller cannot
        follow.
        """
        self._hidden = True

    def hide_presence_while(self, may_wait: Callable[[], bool]) -> None:
        """As `hide_presence`, whenever `may_wait` returns true. The thread that reports presence calls it."""
        self._may_wait_unseen = may_wait

    def report_presence(self) -> None:
        """Called once a second by a thread: report a long wait, and send the marks that no later mark would send."""
        if self.each_second is not None:
            self.each_second()
        self._ask_arrivals()
        with self._lock:
            if self._busy or not self._signs:
                return
            now_ns = _monotonic_ns()
            waiting = self._waiting()
            if (
                waiting is not None
                and not waiting.reported
                and now_ns - waiting.since_ns >= ARRIVAL_AFTER_NS
                or now_ns - max(self._signed_ns, self._sent_ns) >= SIGN_EVERY_NS
            ):
                self._sign(waiting)
            elif self._count and now_ns - self._sent_ns >= ARRIVAL_AFTER_NS:
                self._send_outside_mark()

    def report_left(self) -> None:
        """Called at the interpreter's exit: this rank leaves the job, which others may still wait for."""
        with self._lock:
            if self._signs and self._socket is not None and os.getpid() == self._pid:
                self._signs = False
                by_error = hasattr(sys, "last_type")
                inside = self._waiting() or self._failed
                if by_error and inside is not None:
                    self._sign(inside)
                now_ns = _realtime_ns()
                self._put_sign(Kind.LEFT, self._newest_key, 0, now_ns, now_ns, int(by_error))

    def _ask_arrivals(self) -> None:
        """Ask those that are open for long whether they are over. Outside the lock: an answer may take time."""
        before_ns = _monotonic_ns() - ARRIVAL_AFTER_NS
        with self._lock:
            asked = [
                each for each in self._arrivals.values() if each.is_inside is not None and each.since_ns <= before_ns
            ]
        for arrival in asked:
            inside = arrival.is_inside() if arrival.is_inside is not None else True
            arrival.is_known = inside is not None
            if inside is False:
                self.leave(arrival)

    def _waiting(self) -> OpenArrival | None:
        """The first synchronization that the rank is certainly inside."""
        known = (each for each in self._arrivals.values() if each.is_known)
        return min(known, key=lambda each: each.since_ns, default=None)

    def _sign(self, waiting: OpenArrival | None) -> None:
        """Mark and send where this rank is."""
        now_ns = _realtime_ns()
        self._signed_ns = _monotonic_ns()
        if waiting is None:
            may_wait = self._hidden or bool(self._arrivals)
            if not may_wait and not (self._may_wait_unseen is not None and self._may_wait_unseen()):
                self._put_sign(Kind.ALIVE, self._newest_key, 0, now_ns, now_ns, 0)
        else:
            waiting.reported = True
            self._put_sign(Kind.ARRIVAL, waiting.key, waiting.ordinal, waiting.arrival_ns, now_ns, waiting.kind)

    def _put_sign(self, kind: Kind, key: int, number: int, arrival_ns: int, now_ns: int, bytes: int) -> None:
        if key == NO_KEY or self._count >= MAX_MARKS:
            return
        at = self._count * MARK_SIZE
        pack_mark(self._buffer, at, key, number, kind, arrival_ns, arrival_ns, now_ns, bytes)
        self._count += 1
        self._send_outside_mark()

    def record_push(self, step: int, request_ns: int, reply_ns: int, bytes: int = 0) -> None:
        """Gradients were pushed to a parameter server: request and reply, in CLOCK_REALTIME ns."""
        self._mark_own(step, Kind.PUSH, request_ns, reply_ns, bytes)

    def record_pull(self, step: int, request_ns: int, reply_ns: int, bytes: int = 0) -> None:
        """Parameters were pulled from a parameter server: request and reply, in CLOCK_REALTIME ns."""
        self._mark_own(step, Kind.PULL, request_ns, reply_ns, bytes)

    def record_staleness(self, step: int, updates: int) -> None:
        """The parameters that this step used were `updates` updates behind."""
        now_ns = _realtime_ns()
        self._mark_own(step, Kind.STALENESS, now_ns, now_ns, updates)

    def record_loss(self, step: int, loss: float) -> None:
        """This rank's training loss in this step, with which `timesyncd audit --before` compares how two runs learn."""
        now_ns = _realtime_ns()
        self._mark_own(step, Kind.LOSS, now_ns, now_ns, loss_word(loss))

    def record_validation(self, step: int, loss: float) -> None:
        """A loss on held-out data after this step."""
        now_ns = _realtime_ns()
        self._mark_own(step, Kind.VALIDATION, now_ns, now_ns, loss_word(loss))

    def record_send(self, step: int, message: int, bytes: int = 0) -> None:
        """A message was given to the transport now. Its number is unique in the step; the receiver uses the same one."""
        now_ns = _realtime_ns()
        self.mark(step, message, now_ns, now_ns, now_ns, Kind.SEND, bytes)

    def record_receive(self, step: int, message: int, bytes: int = 0) -> None:
        """A message was received completely now."""
        now_ns = _realtime_ns()
        self.mark(step, message, now_ns, now_ns, now_ns, Kind.RECEIVE, bytes)

    def announce(self) -> bool:
        """Send the kept marks, or an empty datagram that announces this rank. Whether a daemon received it; not within a mark."""
        with self._lock:
            return not self._busy and self._send_outside_mark()

    def close(self) -> None:
        """Send the remaining marks. Later marks are counted as lost."""
        with self._lock:
            if self._count:
                self._send_outside_mark()
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            if self._recorder is not None and os.getpid() == self._pid:
                self._recorder.close()

    def _mark_own(self, step: int, kind: Kind, begin_ns: int, end_ns: int, bytes: int) -> None:
        started_ns = _monotonic_ns()
        with self._lock:
            key, number = self._numbering.next_own(step)
            self._store(started_ns, key, number, begin_ns, begin_ns, end_ns, kind, bytes)

    def _store(
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
            self._newest_key = max(self._newest_key, key)
            if count < MAX_MARKS:
                pack_mark(self._buffer, count * MARK_SIZE, key, sync, kind, arrival_ns, begin_ns, end_ns, bytes)
                self._count = count + 1
            else:
                self._dropped += 1
            now_ns = _monotonic_ns()
            self._own_ns += min(now_ns - started_ns, _LONGEST_MARK_NS)
            if now_ns - self._sent_ns >= SEND_INTERVAL_NS:
                self._send(now_ns)
        except struct.error:  # a number that does not fit the datagram
            self._dropped += 1
        finally:
            self._busy = False

    def _update_local(self) -> None:
        """Add the new marks to the local signals, in a batch, so that a mark need not wait for it."""
        new = memoryview(self._buffer)[self._added * MARK_SIZE : self._count * MARK_SIZE]
        self._added = self._count
        self._local.add_all(unpack_marks(new))

    def _send_outside_mark(self) -> bool:
        """Send outside a mark. Marks of a signal handler meanwhile are lost here too."""
        was_busy, self._busy = self._busy, True
        try:
            return self._send(_monotonic_ns())
        finally:
            self._busy = was_busy

    def _send(self, now_ns: int) -> bool:
        """Send all kept marks in one datagram, and free the buffer in any case. Whether a daemon received it."""
        began_ns = time.thread_time_ns()
        try:
            return self._send_datagram(now_ns)
        finally:
            self._own_ns += time.thread_time_ns() - began_ns

    def _send_datagram(self, now_ns: int) -> bool:
        self._update_local()
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
            # Never connected: a connected socket stays dead after a restart of the daemon.
            sending.sendmsg((encode_header(header, count), marks), (), socket.MSG_DONTWAIT, self._path)
        except (OSError, struct.error):
            self._undelivered += count
            return False
        return True

    def _record(self, header: Header, marks: memoryview, count: int) -> None:
        """The recording also gets the marks that no daemon received, so there they are not lost."""
        if self._recorder is not None:
            head = encode_header(replace(header, lost=self._dropped), count)
            self._unrecorded += 0 if self._recorder.write(head, marks) else count

    def _reset_in_child(self) -> None:
        """After a fork: the parent sends the kept marks, and the thread that held the lock does not exist here."""
        self._lock = threading.RLock()
        self._busy = False
        self._count = self._added = 0
        self._signs = False
        self._failed = None
        self._arrivals.clear()


class OpenArrival:
    """
    Returned by `Meter.arrive`: a synchronization that the rank is inside. `arrival_ns` is CLOCK_REALTIME, `since_ns`
    CLOCK_MONOTONIC.

    `is_inside`, set for one that ends without a call of `leave`: whether the rank is still inside; None: unknown. The
    thread that reports presence calls it. `is_known` False: it is not known, so it is not reported.
    """

    __slots__ = ("arrival_ns", "is_inside", "is_known", "key", "kind", "ordinal", "reported", "since_ns")

    def __init__(self, key: int, ordinal: int, kind: Kind, arrival_ns: int, since_ns: int) -> None:
        self.key = key
        self.ordinal = ordinal
        self.kind = kind
        self.arrival_ns = arrival_ns
        self.since_ns = since_ns
        self.reported = False
        self.is_inside: Callable[[], bool | None] | None = None
        self.is_known = True


_watching: list[int] = []


def _watch() -> None:
    """Start the thread that reports presence, once in a process. Where no thread can start, nothing is reported."""
    if os.getpid() not in _watching:
        _watching[:] = [os.getpid()]
        atexit.register(_report_left)
        with suppress(RuntimeError):
            threading.Thread(target=_report_presence, name="timesyncd-presence", daemon=True).start()


def _report_left() -> None:
    for meter in tuple(_METERS):
        meter.report_left()


def _report_presence() -> None:
    while True:
        time.sleep(ARRIVAL_AFTER_NS / 1e9)
        for meter in tuple(_METERS):
            try:
                meter.report_presence()
            except Exception:  # noqa: BLE001  of one job; the ranks of the others are still reported
                meter.count_lost()


class MeteredSync:
    """Returned by `Meter.sync`."""

    __slots__ = ("_arrival_ns", "_bytes", "_key", "_kind", "_meter", "_open", "_step", "_sync")

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
            self._open = meter.arrive(self._key, self._kind)
            meter._own_ns += min(_monotonic_ns() - started_ns, _LONGEST_MARK_NS)
        self._arrival_ns = _realtime_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = _realtime_ns()
        self._meter.leave(self._open, failed=kind is not None)
        if kind is None:
            started_ns = _monotonic_ns()
            begin_ns = self._arrival_ns
            meter = self._meter
            with meter._lock:
                meter._store(started_ns, self._key, self._sync, begin_ns, begin_ns, end_ns, self._kind, self._bytes)


class Step:
    """Returned by `Meter.step`."""

    __slots__ = ("_arrival_ns", "_key", "_meter", "_step", "begin_ns")

    def __init__(self, meter: Meter, step: int) -> None:
        self._meter = meter
        self._step = step

    def __enter__(self) -> None:
        self._key = self._meter.step_key(self._step)
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
                meter._store(started_ns, self._key, 0, self._arrival_ns, self.begin_ns, end_ns, Kind.STEP, 0)


_METERS: WeakSet[Meter] = WeakSet()


def _reset_in_child() -> None:
    for meter in _METERS:
        meter._reset_in_child()


os.register_at_fork(after_in_child=_reset_in_child)


def _unbound_socket() -> socket.socket | None:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
