"""Stamps of moments: on the host its clock at once, on a CUDA device an event that is read when it has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

_realtime_ns = time.time_ns

#: A moment on a device whose time is known less well than this is not told: its mark counts as lost.
MAX_ERROR_NS = 100_000

#: What the device's clock and the host's may drift apart, and how finely an event is timed (CUDA: 0.5 us).
_DRIFT_PPM = 100
_RESOLUTION_NS = 500


class Stamps(Protocol):
    """`now` stamps this moment; once it is `reached`, `read` gives it in CLOCK_REALTIME ns. None of them waits."""

    def now(self) -> Any: ...

    def reached(self, stamp: Any) -> bool: ...

    def read(self, stamp: Any) -> int | None:
        """None: not known well enough."""
        ...

    def anchor(self) -> None:
        """Called once a step."""
        ...


class HostStamps:
    """A stamp is the number itself."""

    def now(self) -> int:
        return _realtime_ns()

    def reached(self, stamp: int) -> bool:
        return True

    def read(self, stamp: int) -> int | None:
        return stamp

    def anchor(self) -> None:
        pass


class TimingEvent(Protocol):
    """What is used of torch.cuda.Event. `record` puts it into the device's current stream; nothing here waits for it."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """From this event to `end_event`, in milliseconds."""
        ...


def cuda_event() -> TimingEvent:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class DeviceStamps:
    """
    Stamps by events in the device's current stream, told in the host's CLOCK_REALTIME.

    An anchor is an event with the host's time before it was recorded and after it was first seen complete: the device reached it
    in between. What several anchors leave possible is the device's offset to the host, `error_ns` half its width. No call
    synchronizes with the device; while it is never seen idle, anchors are as wide as its queue is deep.
    """

    def __init__(
        self, new_event: Callable[[], TimingEvent] = cuda_event, realtime_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._new_event = new_event
        self._realtime_ns = realtime_ns
        self._attempt: tuple[TimingEvent, int] | None = None
        self._base: TimingEvent | None = None
        self._earliest_ns = 0
        self._latest_ns = 0

    @property
    def error_ns(self) -> int | None:
        """How far a told time may lie from the host's clock, either way; None: no anchor yet."""
        return None if self._base is None else (self._latest_ns - self._earliest_ns + 1) // 2

    def now(self) -> TimingEvent:
        event = self._new_event()
        event.record()
        return event

    def reached(self, stamp: TimingEvent) -> bool:
        """Not before there is an anchor."""
        self._settle()
        return self._base is not None and stamp.query()

    def read(self, stamp: TimingEvent) -> int | None:
        """Only what is `reached`. None: the anchors leave more than MAX_ERROR_NS."""
        if self._base is None or self.error_ns is None:
            return None
        elapsed_ns = _elapsed_ns(self._base, stamp)
        if self.error_ns + _drift_ns(elapsed_ns) > MAX_ERROR_NS:
            return None
        return (self._earliest_ns + self._latest_ns) // 2 + elapsed_ns

    def anchor(self) -> None:
        """Record a new anchor unless the last one is still to come."""
        self._settle()
        if self._attempt is None:
            recorded_ns = self._realtime_ns()
            self._attempt = (self.now(), recorded_ns)

    def _settle(self) -> None:
        """Take the attempted anchor in once the device has reached it. Each is the next one's base: elapsed times stay short."""
        if self._attempt is None or not self._attempt[0].query():
            return
        (event, recorded_ns), self._attempt = self._attempt, None
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
