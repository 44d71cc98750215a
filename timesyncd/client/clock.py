"""The time with its bound, from shared memory: no system call but the clocks', no connection, no exception."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from timesyncd import segment
from timesyncd.bound import Bound, ClockStatus, ErrorBound, Interval, Reason, Reference, status_at
from timesyncd.client.places import runtime_dir as find_runtime_dir
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, boot_id, time_namespace
from timesyncd.shm import GENERATION, SegmentReader

_BOOTTIME = time.CLOCK_BOOTTIME
_SYNCHRONIZED = ClockStatus.SYNCHRONIZED
_GRANDMASTER = Reference.GRANDMASTER
_UTC = Reference.UTC
_LATEST_STEP = STEP_TOLERANCE_NS + 1
_EARLIEST_STEP = -_LATEST_STEP
_interval = tuple.__new__
_realtime_ns = time.time_ns
_clock_ns = time.clock_gettime_ns


class _Hot(NamedTuple):
    """
    All that the quick path needs of one reference. `fresh_ns` 0: it must not be taken. `real_ns` is CLOCK_REALTIME at
    as_of; `growth` is in 2**-30 ns per ns, rounded up: a shift costs less than a division.
    """

    words: memoryview
    generation: int
    as_of_ns: int
    fresh_ns: int
    real_ns: int
    bound_ns: int
    growth: int


class Clock:
    """
    This node's clock and the bound on its error, as the daemon last knew it and as it has grown since.

    Never raises because of the daemon, and never gives a confident wrong interval: without a segment, or with one that is
    stale, torn, from another boot or followed by a clock step, the interval is None on both sides, and `reason()` says why.
    Safe to share between threads and to keep over a fork.
    """

    def __init__(self, runtime_dir: Path | str | None = None) -> None:
        path = find_runtime_dir(runtime_dir) / segment.NAME
        self._reader = SegmentReader(path, segment.MAGIC, segment.LAYOUT_VERSION, segment.WORD_COUNT)
        self._epoch = segment.Epoch(boot_id(), time_namespace())
        self._gm = self._utc = self._distrusted(-1)

    def gm_now(self) -> Interval:
        """
        CLOCK_REALTIME with its bound against the grandmaster, ns since 1970.

        Whole seconds that ptp4l took out are not added back; `snapshot().utc_seconds_removed` says how many.
        """
        words, generation, as_of_ns, fresh_ns, real_then_ns, bound_ns, growth = self._gm
        # REALTIME before BOOTTIME: a pause between the two makes the clock look older, so the bound wider.
        real_ns = _realtime_ns()
        age_ns = _clock_ns(_BOOTTIME) - as_of_ns
        stepped_ns = real_ns - real_then_ns - age_ns
        if words[GENERATION] == generation and -1 < age_ns < fresh_ns and _EARLIEST_STEP < stepped_ns < _LATEST_STEP:
            bound_ns += growth * age_ns >> 30
            return _interval(Interval, (real_ns - bound_ns, real_ns + bound_ns, _SYNCHRONIZED, _GRANDMASTER))
        return self._carefully(_GRANDMASTER)[0]

    def now(self) -> Interval:
        """UTC with its bound, ns since 1970."""
        words, generation, as_of_ns, fresh_ns, real_then_ns, bound_ns, growth = self._utc
        real_ns = _realtime_ns()
        age_ns = _clock_ns(_BOOTTIME) - as_of_ns
        stepped_ns = real_ns - real_then_ns - age_ns
        if words[GENERATION] == generation and -1 < age_ns < fresh_ns and _EARLIEST_STEP < stepped_ns < _LATEST_STEP:
            bound_ns += growth * age_ns >> 30
            return _interval(Interval, (real_ns - bound_ns, real_ns + bound_ns, _SYNCHRONIZED, _UTC))
        return self._carefully(_UTC)[0]

    def reason(self, reference: Reference = Reference.GRANDMASTER) -> str:
        """Why the status is not SYNCHRONIZED; empty when it is."""
        return self._carefully(reference)[1].text

    def snapshot(self) -> ErrorBound | None:
        """All that the daemon published last; None when there is nothing to believe."""
        found = self._read()
        return found if isinstance(found, ErrorBound) else None

    def _carefully(self, reference: Reference) -> tuple[Interval, Reason]:
        """The same for every other case, and the quick path made ready again where it may be taken."""
        found = self._read()
        if isinstance(found, ErrorBound):
            interval, reason = interval_now(found, reference, _read_clocks)
        else:
            interval, reason = Interval(None, None, ClockStatus.UNKNOWN, reference), found
        if interval.status is not _SYNCHRONIZED:
            self._reader.look_again()
        return interval, reason

    def _read(self) -> ErrorBound | Reason:
        reader = self._reader
        reader.find()
        generation = reader.words[GENERATION]
        payload = reader.read()
        if payload is None:
            return self._absence()
        try:
            bound, epoch = segment.decode(payload)
        except ValueError:
            return Reason.OTHER_LAYOUT
        if epoch.boot_id != self._epoch.boot_id:
            return Reason.OTHER_BOOT
        if epoch.time_namespace != self._epoch.time_namespace:
            return Reason.OTHER_TIME_NAMESPACE
        # The generation was read before the payload: a write in between makes it differ, so the next call looks again.
        self._gm = self._hot(bound, bound.gm_hard, bound.gm_status, generation)
        self._utc = self._hot(bound, bound.utc_hard, bound.utc_status, generation)
        return bound

    def _absence(self) -> Reason:
        if self._reader.torn:
            return Reason.TORN_SEGMENT
        if not self._reader.found:
            return Reason.NO_SEGMENT
        return Reason.NO_SAMPLE_YET if self._reader.words[GENERATION] == 0 else Reason.OTHER_LAYOUT

    def _hot(self, bound: ErrorBound, part: Bound, status: ClockStatus, generation: int) -> _Hot:
        if part.bound_ns is None or status is not _SYNCHRONIZED:
            return self._distrusted(generation)
        return _Hot(
            self._reader.words,
            generation,
            bound.as_of_ns,
            min(bound.holdover_after_ns, bound.void_after_ns),
            bound.as_of_ns + bound.real_minus_boot_ns,
            part.bound_ns + 1,
            -(-part.growth_ppb * 2**30 // NS_PER_S),
        )

    def _distrusted(self, generation: int) -> _Hot:
        return _Hot(self._reader.words, generation, 0, 0, 0, 0, 0)


def _read_clocks() -> tuple[int, int]:
    real_ns = _realtime_ns()
    return real_ns, _clock_ns(_BOOTTIME)


def interval_now(
    bound: ErrorBound, reference: Reference, read_clocks: Callable[[], tuple[int, int]]
) -> tuple[Interval, Reason]:
    """
    The interval of any reference, status and age. `read_clocks` gives (REALTIME, BOOTTIME), read in this order.

    A reading that was preempted between its two clocks looks like a step back, so only the best of three tells a step.
    """
    readings = [read_clocks()]
    while not _same_epoch(bound, readings[-1]) and len(readings) < 3:
        readings.append(read_clocks())
    real_ns, boot_ns = max(readings, key=lambda reading: reading[0] - reading[1])
    part, written = {
        Reference.PARENT: (bound.parent_hard, bound.gm_status),
        Reference.GRANDMASTER: (bound.gm_hard, bound.gm_status),
        Reference.UTC: (bound.utc_hard, bound.utc_status),
    }[reference]
    age_ns = boot_ns - bound.as_of_ns
    status = status_at(written, age_ns, bound.holdover_after_ns, bound.void_after_ns)
    reason = _reason(part, written, status, age_ns)
    if status in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER) and not _same_epoch(bound, (real_ns, boot_ns)):
        status, reason = ClockStatus.DISRUPTED, Reason.CLOCK_STEPPED
    width_ns = part.at(age_ns)
    if width_ns is None or status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        status = ClockStatus.DISRUPTED if status is ClockStatus.DISRUPTED else ClockStatus.UNKNOWN
        return Interval(None, None, status, reference), reason
    return Interval(real_ns - width_ns, real_ns + width_ns, status, reference), reason


def _same_epoch(bound: ErrorBound, reading: tuple[int, int]) -> bool:
    return abs(reading[0] - reading[1] - bound.real_minus_boot_ns) <= STEP_TOLERANCE_NS


def _reason(part: Bound, written: ClockStatus, status: ClockStatus, age_ns: int) -> Reason:
    if part.bound_ns is None or written in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED):
        return part.reason
    if age_ns < 0:
        return Reason.AS_OF_IN_FUTURE
    return {
        ClockStatus.SYNCHRONIZED: Reason.OK,
        ClockStatus.HOLDOVER: Reason.STALE,
        ClockStatus.UNKNOWN: Reason.VOID,
        ClockStatus.DISRUPTED: Reason.CLOCK_STEPPED,
    }[status]
