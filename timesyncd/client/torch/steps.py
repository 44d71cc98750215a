"""
The steps of a job and the marks made in them. All metered modules, optimizers and collectives of a job share one
numbering.

Marks have time stamps: on the host a clock reading, on a CUDA device an event that is read after the device reached it.
The module also delays the exit of a process whose collectives call Python back.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn, Protocol

import torch

from timesyncd.client.job import Job
from timesyncd.client.meter import Meter
from timesyncd.client.torch.peer_loss import reduced_value
from timesyncd.ipc.job_datagram import Kind

_realtime_ns = time.time_ns

#: A device time with a larger error is not used: its mark counts as lost.
MAX_ERROR_NS = 100_000

#: An anchor is renewed at each step's end, and by the first stamp after this time: so the drift since the nearest anchor adds 1 us at most.
ANCHOR_INTERVAL_NS = 10_000_000

#: How often the host asks for an anchor that it has just recorded. A card reaches one within a few microseconds, some ten questions.
ANCHOR_POLLS = 32

#: A stamp may lie some anchors back: the device reaches it after the host has gone on.
KEPT_ANCHORS = 32

#: The largest drift between the device's clock and the host's, and the resolution of an event's time (CUDA: 0.5 us).
_DRIFT_PPM = 100
_RESOLUTION_NS = 500


class Stamps(Protocol):
    """`now` stamps this moment; once it is `reached`, `read` returns it in CLOCK_REALTIME ns. None of them waits."""

    def now(self) -> Any: ...

    def reached(self, stamp: Any) -> bool: ...

    def read(self, stamp: Any) -> int | None:
        """None: its error is too large."""
        ...

    def anchor(self) -> None:
        """Called once a step."""
        ...


class HostStamps:
    """A stamp is the time itself, in CLOCK_REALTIME ns."""

    def now(self) -> int:
        return _realtime_ns()

    def reached(self, stamp: int) -> bool:
        return True

    def read(self, stamp: int) -> int | None:
        return stamp

    def anchor(self) -> None:
        pass


class TimingEvent(Protocol):
    """The used part of torch.cuda.Event. `record` puts it into the device's current stream; nothing here waits for it."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """From this event to `end_event`, in milliseconds."""
        ...


def cuda_event() -> TimingEvent:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Times(Protocol):
    """Moments of one device, and the durations between them."""

    def now(self) -> Any: ...

    def elapsed_ns(self, begin: Any, end: Any) -> int | None:
        """None: the device has not reached both yet. It never waits."""
        ...


class HostTimes:
    """A moment is a reading of CLOCK_MONOTONIC in ns."""

    def now(self) -> int:
        return time.monotonic_ns()

    def elapsed_ns(self, begin: int, end: int) -> int:
        return end - begin


class DeviceTimes:
    """A moment is an event in the device's current stream."""

    def __init__(self, pool: EventPool | None = None) -> None:
        self._pool = pool or EventPool()

    def now(self) -> PooledEvent:
        return self._pool.recorded()

    def elapsed_ns(self, begin: PooledEvent, end: PooledEvent) -> int | None:
        if not (begin.event.query() and end.event.query()):
            return None
        return _elapsed_ns(begin.event, end.event)


class UnknownTimes:
    """Of a device whose events the client does not know: every duration is unknown."""

    def now(self) -> None:
        return None

    def elapsed_ns(self, begin: None, end: None) -> None:
        return None


def times_of(device: torch.device) -> Times:
    """How durations are measured on the device: the host's clock says nothing of work that a device has in its queue."""
    if device.type == "cpu":
        return HostTimes()
    return DeviceTimes() if device.type == "cuda" else UnknownTimes()


class EventPool:
    """Events that are used again: to make one costs several times as much as to record it."""

    def __init__(self, new_event: Callable[[], TimingEvent] | None = None) -> None:
        self._new_event = new_event or cuda_event
        self._free: list[TimingEvent] = []

    def recorded(self, record: Callable[[TimingEvent], None] | None = None) -> PooledEvent:
        """An event in the device's current stream, or where `record` records it."""
        event = self._free.pop() if self._free else self._new_event()
        (record or record_here)(event)
        return PooledEvent(event, self._free)


class PooledEvent:
    """A recorded event. It goes back to its pool with the last reference to this object."""

    __slots__ = ("_free", "event")

    def __init__(self, event: TimingEvent, free: list[TimingEvent]) -> None:
        self.event = event
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.event)


@dataclass(slots=True)
class DeviceAnchor:
    """
    An event that the device reached between two host times, in CLOCK_REALTIME ns. `at_ns`: its place on the device's own clock, from the
    first anchor.
    """

    stamp: PooledEvent
    earliest_ns: int
    latest_ns: int
    at_ns: int = 0

    @property
    def error_ns(self) -> int:
        return (self.latest_ns - self.earliest_ns + 1) // 2

    def error_at_ns(self, at_ns: int) -> int:
        """The largest error of a time that is read by this anchor."""
        return self.error_ns + _drift_ns(at_ns - self.at_ns)


class SideStream:
    """
    Records events in a stream with nothing before them, so that the device reaches them at once, whatever the other streams have in
    their queues. Not so where CUDA_DEVICE_MAX_CONNECTIONS is 1: all streams share one queue then.
    """

    def __init__(self) -> None:
        self._stream: Any = None

    def __call__(self, event: Any) -> None:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        event.record(self._stream)


def record_here(event: TimingEvent) -> None:
    """In the current stream."""
    event.record()


class DeviceStamps:
    """
    Stamps by events in the device's current stream, read in the host's CLOCK_REALTIME.

    An anchor is an event in a stream with nothing before it, with two host times: before it was recorded, and after it was seen complete.
    The device reached it in between. A stamp is read by the anchor that leaves the smallest error. No call synchronizes with the device;
    to see an anchor at once, the host asks ANCHOR_POLLS times.
    """

    def __init__(
        self,
        new_event: Callable[[], TimingEvent] = cuda_event,
        realtime_ns: Callable[[], int] = time.time_ns,
        record_aside: Callable[[TimingEvent], None] = record_here,
    ) -> None:
        self._pool = EventPool(new_event)
        self._realtime_ns = realtime_ns
        self._record_aside = record_aside
        self._pending: tuple[PooledEvent, int] | None = None
        self._anchors: deque[DeviceAnchor] = deque(maxlen=KEPT_ANCHORS)
        self.largest_error_ns = 0  #: of the times that `read` gave

    @property
    def error_ns(self) -> int | None:
        """The largest error of a time that is read at the newest anchor; None: there is no anchor yet."""
        return self._anchors[-1].error_ns if self._anchors else None

    def now(self) -> PooledEvent:
        if not self._anchors or self._realtime_ns() - self._anchors[-1].latest_ns >= ANCHOR_INTERVAL_NS:
            self.anchor()
        return self._pool.recorded()

    def reached(self, stamp: PooledEvent) -> bool:
        """False until there is an anchor."""
        self._complete_anchor()
        return bool(self._anchors) and stamp.event.query()

    def read(self, stamp: PooledEvent) -> int | None:
        """Only for a stamp that is `reached`. None: the error exceeds MAX_ERROR_NS."""
        found = self.read_with_error(stamp)
        if found is None or found[1] > MAX_ERROR_NS:
            return None
        self.largest_error_ns = max(self.largest_error_ns, found[1])
        return found[0]

    def read_with_error(self, stamp: PooledEvent) -> tuple[int, int] | None:
        """The time of a stamp that is `reached`, and its largest error; None: there is no anchor yet."""
        if not self._anchors:
            return None
        newest = self._anchors[-1]
        elapsed_ns = _elapsed_ns(newest.stamp.event, stamp.event)
        at_ns = newest.at_ns + elapsed_ns
        best = self._best_anchor(at_ns)
        if best is not newest:
            elapsed_ns = _elapsed_ns(best.stamp.event, stamp.event)
        return (best.earliest_ns + best.latest_ns) // 2 + elapsed_ns, best.error_ns + _drift_ns(elapsed_ns)

    def _best_anchor(self, at_ns: int) -> DeviceAnchor:
        """With the smallest error there, from the newest back to the last one before that place: those before it are farther off."""
        best = self._anchors[-1]
        for anchor in reversed(self._anchors):
            if anchor.error_at_ns(at_ns) < best.error_at_ns(at_ns):
                best = anchor
            if anchor.at_ns <= at_ns:
                break
        return best

    def anchor(self) -> None:
        """Record a new anchor unless the device has not reached the last one."""
        self._complete_anchor()
        if self._pending is not None:
            return
        recorded_ns = self._realtime_ns()
        stamp = self._pool.recorded(self._record_aside)
        self._pending = stamp, recorded_ns
        for _ in range(ANCHOR_POLLS):
            if stamp.event.query():
                break
        self._complete_anchor()

    def _complete_anchor(self) -> None:
        """Use the pending anchor once the device has reached it."""
        if self._pending is None or not self._pending[0].event.query():
            return
        (stamp, recorded_ns), self._pending = self._pending, None
        anchor = DeviceAnchor(stamp, recorded_ns, self._realtime_ns())
        if self._anchors:
            self._narrow(anchor, self._anchors[-1])
        self._anchors.append(anchor)

    def _narrow(self, anchor: DeviceAnchor, former: DeviceAnchor) -> None:
        """By what the former anchor leaves possible."""
        elapsed_ns = _elapsed_ns(former.stamp.event, anchor.stamp.event)
        drift_ns = _drift_ns(elapsed_ns)
        anchor.at_ns = former.at_ns + elapsed_ns
        earliest_ns = max(anchor.earliest_ns, former.earliest_ns + elapsed_ns - drift_ns)
        latest_ns = min(anchor.latest_ns, former.latest_ns + elapsed_ns + drift_ns)
        if earliest_ns <= latest_ns:
            anchor.earliest_ns, anchor.latest_ns = earliest_ns, latest_ns
        else:  # the host's clock was set: the newest anchor alone counts
            self._anchors.clear()


def _drift_ns(elapsed_ns: int) -> int:
    return _RESOLUTION_NS + abs(elapsed_ns) * _DRIFT_PPM // 1_000_000


def _elapsed_ns(start: TimingEvent, end: TimingEvent) -> int:
    return round(start.elapsed_time(end) * 1_000_000)


#: The longest time that gloo's threads need to release a callback after its collective, on a busy machine.
SHUTDOWN_GRACE_S = 0.1


@cache
def delay_exit_for_callbacks() -> None:
    """
    Call it before a callback is given to a collective; the process then exits SHUTDOWN_GRACE_S later.

    A gloo thread completes the future first and releases the callback after that, for which it needs the GIL. If Python is finalizing by
    then, it unwinds that thread, and C++ calls abort(): all work is done, but the job has failed. torch 2.13 behaves so with every hook
    that is written in Python.
    """
    atexit.register(time.sleep, SHUTDOWN_GRACE_S)


#: The most marks that may wait for their step's end or for a device; the oldest ones are dropped and counted as lost.
MAX_PENDING_MARKS = 4096

#: A device has done what is in its queue by then, unless it waits for a rank that has ended.
CLOSE_WAIT_S = 0.5

HOST = HostStamps()

_ATTRIBUTE = "_torch_steps"


class Record:
    """
    A mark that is not complete yet. Its times are stamps: the host's time, or what `stamps` reads later.

    `begin` None: the time before `last`, when the last bucket of the same backward pass was ready, was hidden by compute.
    """

    __slots__ = ("arrival", "begin", "bytes", "end", "key", "kind", "last", "number", "stamps")

    def __init__(self, kind: Kind, bytes: int, stamps: Stamps) -> None:
        self.kind = kind
        self.bytes = bytes
        self.stamps = stamps
        self.arrival: Any = stamps.now()
        self.begin: Any = None
        self.last: Any = None
        self.end: Any = None
        self.key = 0
        self.number = 0

    def stamp_end(self, finished: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        """Chained to a future: stamps the end, and returns the future's value."""
        self.end = self.stamps.now()
        return finished.value()

    def stamp_end_of_all_reduce(self, finished: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        """As `stamp_end`, for an all-reduce of one tensor."""
        self.end = self.stamps.now()
        return reduced_value(finished)[0]

    def known(self) -> bool:
        """Whether all its times can be read."""
        stamps = (self.arrival, self.begin, self.last, self.end)
        return self.end is not None and all(self._reached(stamp) for stamp in stamps if stamp is not None)

    def times_ns(self) -> tuple[int, int, int] | None:
        """Arrival, begin and end in CLOCK_REALTIME ns, once they are known; None: the error is too large."""
        begin = self.begin if self.begin is not None else self.last if self.last is not None else self.arrival
        arrival_ns, begin_ns, end_ns = self._read(self.arrival), self._read(begin), self._read(self.end)
        if arrival_ns is None or begin_ns is None or end_ns is None:
            return None
        return arrival_ns, min(end_ns, max(arrival_ns, begin_ns)), end_ns

    def _reached(self, stamp: Any) -> bool:
        return isinstance(stamp, int) or self.stamps.reached(stamp)

    def _read(self, stamp: Any) -> int | None:
        return stamp if isinstance(stamp, int) else self.stamps.read(stamp)


class Safely:
    """A context that suppresses errors and counts each as one lost mark. Its time counts as the meter's own overhead."""

    __slots__ = ("_meter", "_own_ns", "_started_ns")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._own_ns = self._meter.own_overhead_ns
        self._started_ns = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._meter.add_overhead(self._started_ns, self._own_ns)
        if not isinstance(error, Exception):
            return False
        self._meter.count_lost()
        return True


class Steps:
    """
    The job's current step, and the marks of the steps. Nothing here raises into a training step: errors count as lost marks in
    `job.meter.lost`.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.device: DeviceStamps | None = None
        self.unknown_device: str | None = None  #: the type of a device that has no timestamps
        self._refusals: set[str] = set()
        self.ending_optimizers = 0  #: how many optimizers end the steps
        self._step = 0
        self._ended: int | None = None
        self._numbered = False
        self._begin: Any = HOST.now()
        self._ready: Any = None
        self._kept: list[Record] = []
        self._pending: deque[Record] = deque()
        # Re-entrant: a signal handler may meter.
        self._lock = threading.RLock()

    @property
    def safely(self) -> Safely:
        """A new one for each use: uses are nested, and run in several threads."""
        return Safely(self.job.meter)

    @property
    def step(self) -> int:
        """
        The current step, from 0, one more at the end of each. Set it to use your own numbers, the same on every rank.

        If no optimizer ends the steps, setting the next number does.
        """
        return self._step

    @step.setter
    def step(self, number: int) -> None:
        with self._lock:
            if number != self._step and (self._kept or (self._numbered and not self.ending_optimizers)):
                self.end()
            self._step = number

    def count_lost(self, marks: int = 1) -> None:
        """Count marks that could not be made as lost."""
        self.job.meter.count_lost(marks)

    def stamps_for(self, tensor: torch.Tensor | None) -> Stamps:
        """
        The stamps of the CUDA device that the tensor is on, else of the host. Raises RuntimeError for another kind of device, and while a
        CUDA graph is captured.
        """
        if tensor is None or tensor.device.type == "cpu":
            return HOST
        if tensor.device.type != "cuda":
            self.unknown_device = tensor.device.type
            self._refuse(f"the client knows no timestamps of {tensor.device.type.upper()} devices")
        self._refuse_capture()
        if self.device is None:
            self.device = DeviceStamps(record_aside=SideStream())
            self.device.anchor()
        return self.device

    def begin(self) -> None:
        """The step starts now, and not where the last one ended: for use after an evaluation or a checkpoint between steps."""
        with self.safely:
            self._begin = (self.device or HOST).now()

    @property
    def ready_stamp(self) -> Any:
        """
        When this rank's own last gradient of the current step was ready: CLOCK_REALTIME ns, or a moment of `DeviceTimes`. None: unknown,
        or not ready yet.
        """
        return self._ready

    def ready(self, stamp: Any) -> None:
        """Set when this rank's own last gradient was ready, unless a later one follows."""
        self._ready = stamp

    def keep(self, record: Record) -> None:
        """Keep the record until the step's end, where it gets its number in the order of these calls."""
        if len(self._kept) >= MAX_PENDING_MARKS:
            self._drop(self._kept)
        self._kept.append(record)

    def number(self, record: Record, step: int | None = None) -> None:
        """Give the record the step's next number now; None: of the current step."""
        if step is None:
            step, self._numbered = self._step, True
        record.number = self.job.meter.next_sync(step)
        record.key = self.job.meter.step_key(step)

    def complete(self, record: Record) -> None:
        """Mark a record that has a number, at once or when the device's times are known."""
        with self._lock:
            self._pending.append(record)
            self._mark_pending()

    def end(self) -> None:
        """The parameters are updated: mark the step's kept records and the step itself; the next step starts."""
        with self._lock, self.safely:
            try:
                self._end()
            finally:
                self._step += 1

    def close(self) -> None:
        """Wait for the device's times, CLOSE_WAIT_S at most. Marks whose times are not known by then are lost."""
        with self._lock:
            deadline = time.monotonic() + CLOSE_WAIT_S
            self._mark_pending()
            while self._pending and time.monotonic() < deadline:
                time.sleep(0.001)
                self._mark_pending()
            self._drop(self._pending)
            self._drop(self._kept)

    def _end(self) -> None:
        if self.device is not None:
            self._refuse_capture()
        if self.unknown_device is not None:
            self._refuse(f"the client knows no timestamps of {self.unknown_device.upper()} devices")
        whole = Record(Kind.STEP, 0, self.device or HOST)
        whole.end, whole.arrival, whole.begin = whole.arrival, self._begin, self._ready
        kept, self._kept, self._numbered = self._kept, [], False
        meter, step = self.job.meter, self._step
        whole.key = meter.step_key(step)
        for record in kept:
            record.key, record.number = whole.key, meter.next_sync(step)
            self._mark_or_defer(record)
        if self._ended != whole.key:  # two updates under one number make one step
            if self._pending:
                self._pending.append(whole)
            else:
                self._mark_or_defer(whole)
        self._begin, self._ready, self._ended = whole.end, None, whole.key
        whole.stamps.anchor()
        self._mark_pending()

    def _mark_or_defer(self, record: Record) -> None:
        """Nearly all records of the host are complete: they are marked directly."""
        if record.stamps is not HOST or record.end is None:
            self._pending.append(record)
            return
        arrival_ns, end_ns = record.arrival, record.end
        begin_ns = min(end_ns, max(arrival_ns, record.begin or record.last or arrival_ns))
        self.job.meter.mark_at(record.key, record.number, arrival_ns, begin_ns, end_ns, record.kind, record.bytes)

    def _mark_pending(self) -> None:
        """Mark the records whose times are known, in order, up to the first whose times are not."""
        pending = self._pending
        while pending and self._mark(pending[0]):
            pending.popleft()
        while len(pending) > MAX_PENDING_MARKS:
            pending.popleft()
            self.count_lost()

    def _mark(self, record: Record) -> bool:
        """Whether the record is finished: marked or lost."""
        with self.safely:
            if not record.known():
                return False
            times_ns = record.times_ns()
            if times_ns is None:
                self.count_lost()
            else:
                self._add_stamp_error()
                self.job.meter.mark_at(record.key, record.number, *times_ns, record.kind, record.bytes)
        return True

    def _add_stamp_error(self) -> None:
        """Before the mark, whose datagram may be sent at once."""
        if self.device is not None:
            self.job.add_stamp_error(self.device.largest_error_ns)
            self.device.largest_error_ns = 0

    def _refuse_capture(self) -> None:
        """An event during the capture of a CUDA graph would invalidate the graph."""
        is_initialized: Any = torch.cuda.is_initialized
        if is_initialized() and torch.cuda.is_current_stream_capturing():
            self._refuse("a CUDA graph is being captured, and what is replayed calls no hook")

    def _refuse(self, reason: str) -> NoReturn:
        """Warn once for each reason. Raises RuntimeError, which makes a lost mark."""
        if reason not in self._refusals:
            self._refusals.add(reason)
            warnings.warn(f"timesyncd does not timestamp this: {reason}; such marks count as lost", stacklevel=3)
        raise RuntimeError(reason)

    def _drop(self, records: list[Record] | deque[Record]) -> None:
        self.count_lost(len(records))
        records.clear()


def steps_of(job: Job) -> Steps:
    """The job's only Steps object, which is stored in the job."""
    steps = getattr(job, _ATTRIBUTE, None)
    if not isinstance(steps, Steps):
        delay_exit_for_callbacks()
        steps = Steps(job)
        setattr(job, _ATTRIBUTE, steps)
    return steps
