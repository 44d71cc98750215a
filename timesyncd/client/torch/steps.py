"""
The steps of a job and the marks made in them. All metered modules, optimizers and collectives of a job share one
numbering.

The module also delays the exit of a process whose collectives call Python back.
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch

from timesyncd.client.job import Job
from timesyncd.client.meter import Meter, OpenArrival
from timesyncd.client.step_parts import StepParts
from timesyncd.client.step_waits import StepWaits
from timesyncd.client.torch.communicators import Channel, Communicators
from timesyncd.client.torch.own_warnings import warn
from timesyncd.client.torch.peer_loss import reduced_value
from timesyncd.client.torch.stamps import HOST, DeviceStamps, HostStamps, SideStream, Stamps
from timesyncd.client.torch.updates import StepUpdates
from timesyncd.ipc.job_datagram import Kind, OwnPart

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

_ATTRIBUTE = "_torch_steps"


class Record:
    """
    A mark that is not complete yet. Its times are stamps: the host's time, or what `stamps` reads later.

    `begin` None: the time before `last`, when the last bucket of the same backward pass was ready, was hidden by compute.
    `channel`: whose synchronization it is; None: all ranks' of the job. `counted`: how it was counted as not metered.
    """

    __slots__ = (
        "_meter",
        "_open",
        "arrival",
        "begin",
        "bytes",
        "channel",
        "counted",
        "end",
        "key",
        "kind",
        "last",
        "number",
        "stamps",
    )

    def __init__(self, kind: Kind, bytes: int, stamps: Stamps, channel: Channel | None = None) -> None:
        self.kind = kind
        self.bytes = bytes
        self.stamps = stamps
        self.arrival: Any = stamps.now()
        self.begin: Any = None
        self.last: Any = None
        self.end: Any = None
        self.key = 0
        self.number = 0
        self.channel = channel
        self.counted: Any = None
        self._meter: Meter | None = None
        self._open: OpenArrival | None = None

    def arrive(self, meter: Meter, key: int) -> None:
        """
        The rank comes to the synchronization now, and is inside it until it leaves. Of a communicator of its own that is
        not reported: a hang is explained by what all ranks do.
        """
        if self.channel is not None:
            self.channel.enter(self)
        else:
            self._meter, self._open = meter, meter.arrive(key, self.kind)

    def go_on(self) -> None:
        """It was begun, and the rank goes on. Until `wait` it is not known whether the rank is inside."""
        if self._open is not None:
            self._open.is_known, self._open.is_inside = False, _unknown

    def wait(self) -> None:
        """The rank waits for its end from now on."""
        if self._open is not None:
            self._open.is_known, self._open.is_inside = True, None

    def leave(self, failed: bool = False) -> None:
        """The rank is no longer inside."""
        if self.channel is not None:
            self.channel.leave(self)
        elif self._meter is not None and self._open is not None:
            self._meter.leave(self._open, failed)

    def leave_at_end(self) -> None:
        """The end is stamped: a rank whose device has not reached the stamp is still inside."""
        if isinstance(self.stamps, HostStamps):
            self.leave()
        elif self.end is None:  # the stamp failed
            self.go_on()
        elif self._open is not None:
            self._open.is_known = False
            self._open.is_inside = functools.partial(self.stamps.is_ahead, self.end)

    def stamp_end(self, finished: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        """Chained to a future on the host: stamps the end, and returns the future's value."""
        self.end = self.stamps.now()
        try:
            value = finished.value()
        except BaseException:
            self.leave(failed=True)
            raise
        self.leave()
        return value

    def stamp_end_of_all_reduce(self, finished: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        """As `stamp_end`, for an all-reduce of one tensor."""
        self.end = self.stamps.now()
        try:
            value = reduced_value(finished)[0]
        except BaseException:
            self.leave(failed=True)
            raise
        self.leave()
        return value

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


def _unknown() -> None:
    return None


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
        self.communicators: Communicators | None = None  #: None: groups of some ranks are not recorded
        self.parts: StepParts | None = None  #: None: no hook sees the parts of a step
        self.count_call: Callable[[], None] | None = None  #: called for a metered call that torch issues in C++
        self._refusals: set[str] = set()
        self._updates = StepUpdates()
        self._threads: set[int] = set()  #: that ended a step
        self._optimizers: WeakKeyDictionary[torch.nn.Module, object] = WeakKeyDictionary()
        self._updated_at: Any = None  #: the last update of a step that waits for other optimizers
        self._step = 0
        self._ended: int | None = None
        self._numbered = False
        self._begin: Any = HOST.now()
        self._ready: Any = None
        self._kept: list[Record] = []
        self._kept_numbered = 0  #: so many of them have their number
        self._pending: deque[Record] = deque()
        # Re-entrant: a signal handler may meter.
        self._lock = threading.RLock()

    @property
    def safely(self) -> Safely:
        """A new one for each use: uses are nested, and run in several threads."""
        return Safely(self.job.meter)

    @property
    def ending_optimizers(self) -> int:
        """How many optimizers end the steps."""
        return len(self._updates)

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
            has_marks = self._kept or (self._numbered and not self.ending_optimizers)
            if number != self._step and (has_marks or self._updates.is_partial):
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

    def arrive(self, record: Record) -> None:
        """This rank comes to the record's synchronization of the current step now."""
        if record.channel is not None:
            record.number = record.channel.take_number()
        record.arrive(self.job.meter, self.job.meter.step_key(self._step))

    def keep(self, record: Record) -> None:
        """
        Keep the record until the step's end. It gets its number in the order of these calls: before that of a later
        synchronization, so that the numbers of a step are in the order of time.
        """
        if len(self._kept) >= MAX_PENDING_MARKS:
            self._drop_kept()
        self._kept.append(record)

    def number(self, record: Record, step: int | None = None) -> None:
        """Give the record the step's next number now; None: of the current step."""
        if step is None:
            step, self._numbered = self._step, True
            if record.channel is None:
                self._number_kept()
        channel, meter = record.channel, self.job.meter
        record.number = meter.next_sync(step) if channel is None else channel.take_number()
        record.key = meter.step_key(step)

    def _number_kept(self) -> None:
        """Give the kept records their numbers in the current step."""
        while self._kept_numbered < len(self._kept):
            record = self._kept[self._kept_numbered]
            self._kept_numbered += 1
            if record.channel is None:
                record.number = self.job.meter.next_sync(self._step)

    def _drop_kept(self) -> None:
        self._drop(self._kept)
        self._kept_numbered = 0

    def complete(self, record: Record) -> None:
        """Mark a record that has a number, at once or when the device's times are known."""
        with self._lock:
            self._pending.append(record)
            self._mark_pending()

    def is_beside(self) -> bool:
        """
        Whether this thread works beside the step, as a checkpoint's does: other threads end the steps, and it is neither
        the main one nor in a backward pass. Where every step ends in a backward pass this is not known.
        """
        thread = threading.get_ident()
        if not self._threads or thread in self._threads or thread == threading.main_thread().ident:
            return False
        return not _is_in_backward()

    def end_with(self, optimizer: object, module: torch.nn.Module | None = None) -> Callable[[], None]:
        """
        The step ends when this optimizer has updated, and each other one that was given here. Returns what undoes it.

        `module`: the one that the optimizer updates.
        """
        self._updates.add(optimizer)
        if module is not None:
            self._optimizers[module] = optimizer
        return functools.partial(self._updates.remove, optimizer)

    def update(self, optimizer: object) -> None:
        """An optimizer of `end_with` has updated."""
        with self._lock:
            if self._updates.has_updated(optimizer):
                self.end()
            self._updates.update(optimizer)
            if self._updates.is_complete:
                self._updated_at = None
                self.end()
            else:
                with self.safely:
                    self._updated_at = (self.device or HOST).now()

    def start_pass(self, module: torch.nn.Module) -> None:
        """The module computes now: a step in which it was updated already is over."""
        if self._updates.is_partial and self._updates.has_updated(self._optimizers.get(module)):
            self.end()

    def end(self) -> None:
        """The parameters are updated: mark the step's kept records and the step itself; the next step starts."""
        with self._lock, self.safely:
            if not _is_in_backward():
                self._threads.add(threading.get_ident())
            try:
                self._end()
            finally:
                self._updates.end_step()
                self._updated_at = None
                self._step += 1

    def close(self) -> None:
        """Wait for the device's times, CLOSE_WAIT_S at most. Marks whose times are not known by then are lost."""
        with self._lock:
            if self._updates.is_partial:
                self.end()
            deadline = time.monotonic() + CLOSE_WAIT_S
            self._mark_pending()
            while self._pending and time.monotonic() < deadline:
                time.sleep(0.001)
                self._mark_pending()
            self._drop(self._pending)
            self._drop_kept()

    def _end(self) -> None:
        if self.device is not None:
            self._refuse_capture()
        if self.unknown_device is not None:
            self._refuse(f"the client knows no timestamps of {self.unknown_device.upper()} devices")
        whole = Record(Kind.STEP, 0, self.device or HOST)
        end = whole.arrival if self._updated_at is None else self._updated_at
        whole.end, whole.arrival, whole.begin = end, self._begin, self._ready
        self._number_kept()
        kept, self._kept, self._kept_numbered, self._numbered = self._kept, [], 0, False
        meter, step = self.job.meter, self._step
        whole.key = meter.step_key(step)
        for record in kept:
            record.key = whole.key
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
        self._put(record, arrival_ns, begin_ns, end_ns)

    def _put(self, record: Record, arrival_ns: int, begin_ns: int, end_ns: int) -> None:
        channel = record.channel
        if self.communicators is not None and record.kind != Kind.STEP:
            call = f"{record.kind:d} {'all ranks' if channel is None else channel.text}"
            self.communicators.waits.add(call, arrival_ns, begin_ns, end_ns, channel is not None)
        if channel is not None:
            channel.mark(record, arrival_ns, begin_ns, end_ns)
            return
        if self.communicators is not None and record.kind == Kind.STEP:
            self._mark_own_time(self.communicators, record.key, arrival_ns, end_ns)
        self.job.meter.mark_at(record.key, record.number, arrival_ns, begin_ns, end_ns, record.kind, record.bytes)

    def _mark_own_time(self, communicators: Communicators, key: int, arrival_ns: int, end_ns: int) -> None:
        """What the hub needs of a step with groups. A step of all ranks together has marks of all that it waited for."""
        in_groups, is_account = communicators.waits.in_groups, communicators.is_account()
        parts_ns = self._own_parts_ns(communicators.waits, arrival_ns, end_ns)
        work, waited_ns = communicators.waits.end_step(arrival_ns, end_ns, communicators.place)
        if in_groups or not is_account:
            for part, own_ns in parts_ns.items() if is_account else ():
                self.job.meter.mark_at(key, part, arrival_ns, arrival_ns, arrival_ns + own_ns, Kind.OWN_PART)
            begin_ns = end_ns - min(waited_ns, max(0, end_ns - arrival_ns))
            self.job.meter.mark_at(key, work, arrival_ns, begin_ns, end_ns, Kind.OWN_TIME, int(not is_account))

    def _own_parts_ns(self, waits: StepWaits, arrival_ns: int, end_ns: int) -> dict[OwnPart, int]:
        """
        The rank's own time by part of the step; the optimizer's is always among them. Empty: not known, as where a device
        computes, which is behind the host's hooks.
        """
        spans = None if self.parts is None else self.parts.end_step(arrival_ns, end_ns)
        if spans is None or self.device is not None:
            return {}
        found: dict[OwnPart, int] = {OwnPart.OPTIMIZER: 0}
        for part, begin_ns, until_ns in spans:
            found[part] = found.get(part, 0) + waits.own_ns(begin_ns, until_ns)
        return found

    def _mark_pending(self) -> None:
        """Mark the records whose times are known, in order, up to the first whose times are not."""
        pending = self._pending
        while pending and self._mark(pending[0]):
            pending.popleft()
        while len(pending) > MAX_PENDING_MARKS:
            pending.popleft().leave()
            self.count_lost()

    def _mark(self, record: Record) -> bool:
        """Whether the record is finished: marked or lost."""
        with self.safely:
            if not record.known():
                return False
            times_ns = record.times_ns()
            record.leave()
            if times_ns is None:
                self.count_lost()
            else:
                self._add_stamp_error()
                self._put(record, *times_ns)
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
        self.job.meter.hide_presence()
        if reason not in self._refusals:
            self._refusals.add(reason)
            warn(f"timesyncd does not timestamp this: {reason}; such marks count as lost", stacklevel=3)
        raise RuntimeError(reason)

    def _drop(self, records: list[Record] | deque[Record]) -> None:
        self.count_lost(len(records))
        for record in records:
            record.leave()
        records.clear()


def _is_in_backward() -> bool:
    """Whether this thread runs a backward pass, for which autograd has threads of its own."""
    return bool(torch._C._current_graph_task_id() != -1)


def steps_of(job: Job) -> Steps:
    """The job's only Steps object, which is stored in the job."""
    steps = getattr(job, _ATTRIBUTE, None)
    if not isinstance(steps, Steps):
        delay_exit_for_callbacks()
        steps = Steps(job)
        setattr(job, _ATTRIBUTE, steps)
    return steps
