"""Time stamps: on the host a clock reading, on a CUDA device an event that is read after the device reached it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

_realtime_ns = time.time_ns

#: A device time with a larger error is not used: its mark counts as lost.
MAX_ERROR_NS = 100_000

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


class DeviceStamps:
    """
    Stamps by events in the device's current stream, read in the host's CLOCK_REALTIME.

    An anchor is an event with two host times: before it was recorded, and after it was first seen complete. The device reached it in
    between. The anchors together limit the device's offset to the host to a range, and `error_ns` is half of its width. No call
    synchronizes with the device; while the device is never idle, an anchor's range is as wide as the device's queue.
    """

    def __init__(
        self, new_event: Callable[[], TimingEvent] = cuda_event, realtime_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._new_event = new_event
        self._realtime_ns = realtime_ns
        self._pending: tuple[TimingEvent, int] | None = None
        self._base: TimingEvent | None = None
        self._earliest_ns = 0
        self._latest_ns = 0

    @property
    def error_ns(self) -> int | None:
        """The largest error of a read time against the host's clock; None: there is no anchor yet."""
        return None if self._base is None else (self._latest_ns - self._earliest_ns + 1) // 2

    def now(self) -> TimingEvent:
        event = self._new_event()
        event.record()
        return event

    def reached(self, stamp: TimingEvent) -> bool:
        """False until there is an anchor."""
        self._complete_anchor()
        return self._base is not None and stamp.query()

    def read(self, stamp: TimingEvent) -> int | None:
        """Only for a stamp that is `reached`. None: the error exceeds MAX_ERROR_NS."""
        if self._base is None or self.error_ns is None:
            return None
        elapsed_ns = _elapsed_ns(self._base, stamp)
        if self.error_ns + _drift_ns(elapsed_ns) > MAX_ERROR_NS:
            return None
        return (self._earliest_ns + self._latest_ns) // 2 + elapsed_ns

    def anchor(self) -> None:
        """Record a new anchor unless the device has not reached the last one."""
        self._complete_anchor()
        if self._pending is None:
            recorded_ns = self._realtime_ns()
            self._pending = (self.now(), recorded_ns)

    def _complete_anchor(self) -> None:
        """Use the pending anchor once the device has reached it. It becomes the new base, so that elapsed times stay short."""
        if self._pending is None or not self._pending[0].query():
            return
        (event, recorded_ns), self._pending = self._pending, None
        earliest_ns, latest_ns = recorded_ns, self._realtime_ns()
        if self._base is not None:
            elapsed_ns = _elapsed_ns(self._base, event)
            drift_ns = _drift_ns(elapsed_ns)
            earlier_ns = max(earliest_ns, self._earliest_ns + elapsed_ns - drift_ns)
            later_ns = min(latest_ns, self._latest_ns + elapsed_ns + drift_ns)
            if earlier_ns <= later_ns:  # else the host's clock was set: the newest anchor alone counts
                earliest_ns, latest_ns = earlier_ns, later_ns
        self._base, self._earliest_ns, self._latest_ns = event, earliest_ns, latest_ns


def _drift_ns(elapsed_ns: int) -> int:
    return _RESOLUTION_NS + abs(elapsed_ns) * _DRIFT_PPM // 1_000_000


def _elapsed_ns(start: TimingEvent, end: TimingEvent) -> int:
    return round(start.elapsed_time(end) * 1_000_000)
