"""
Time stamps: on the host a clock reading, on a CUDA device an event that is read after the device reached it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch

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

    def is_ahead(self, stamp: Any) -> bool | None:
        """Whether the moment is still to come; None: unknown. For a thread beside the training, at any time."""
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

    def is_ahead(self, stamp: int) -> bool:
        return False


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


#: Of CUDA's driver: the results of a query, and the mode in which a thread may ask while another captures a graph.
_CUDA_SUCCESS, _CUDA_NOT_READY, _CAPTURE_RELAXED = 0, 600, 2


@cache
def _cuda_driver() -> Any:
    """None: this machine has none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


class DriverQuery:
    """
    Asks CUDA's driver whether the device has reached an event; None: it gives no answer.

    torch's own query holds the GIL while it asks, and would end the capture of a graph by another thread.
    """

    def __init__(self, driver: Callable[[], Any] = _cuda_driver) -> None:
        self._driver = driver
        self._thread = threading.local()

    def __call__(self, event: Any) -> bool | None:
        driver = self._driver()
        if driver is None or not self._may_ask(driver):
            return None
        found = driver.cuEventQuery(ctypes.c_void_p(event.cuda_event))
        return None if found not in (_CUDA_SUCCESS, _CUDA_NOT_READY) else bool(found == _CUDA_SUCCESS)

    def _may_ask(self, driver: Any) -> bool:
        """Whether a query by this thread leaves every capture as it is."""
        if not getattr(self._thread, "relaxed", False):
            mode = ctypes.c_int(_CAPTURE_RELAXED)
            self._thread.relaxed = driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == _CUDA_SUCCESS
        return bool(self._thread.relaxed)


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
        query: Callable[[TimingEvent], bool | None] | None = None,
    ) -> None:
        self._pool = EventPool(new_event)
        self._realtime_ns = realtime_ns
        self._record_aside = record_aside
        self._query = query or DriverQuery()
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

    def is_ahead(self, stamp: PooledEvent) -> bool | None:
        reached = self._query(stamp.event)
        return None if reached is None else not reached

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


HOST = HostStamps()
