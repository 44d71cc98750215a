"""Reads the time and its error bound from shared memory: no connection, no wait, and no system call but the clock readings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import overload

from timesyncd.bound import (
    ClockStatus,
    ErrorBound,
    Interval,
    Reason,
    Reference,
    interval_now,
    reference_bound,
)
from timesyncd.client import past, waiting
from timesyncd.client.past import ClockName, ClockReading, NsRange
from timesyncd.client.scales import GmNs, ScaledNs, TaiNs, Timestamp, UtcNs
from timesyncd.client.waiting import Condition, StatusChange, Wait, WaitResult
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, RawReading, boot_id, time_namespace
from timesyncd.ipc import clock_segment
from timesyncd.ipc.seqlock import GENERATION, SegmentReader

_SYNCHRONIZED = ClockStatus.SYNCHRONIZED
_GRANDMASTER = Reference.GRANDMASTER
_UTC = Reference.UTC
_realtime_ns = time.time_ns
_monotonic_ns = time.monotonic_ns
_clock_ns = time.clock_gettime_ns
_RAW = time.CLOCK_MONOTONIC_RAW

#: Where the clock moved further than this from what the bound says of its rate, or was not read at once, the slow path decides: the clock
#: was steered or stepped, or the machine slept.
_MOST_MOVED_NS = 1_000

#: The fast path multiplies by a frequency in units of 2^-30, which is faster than a division. That is right within 1 ppb, and the growth is
#: rounded up.
_SHIFT = 30
_ROUNDING_PPB = 2

#: What the fast path needs of one reference: mapping, generation, until_ns, origin_ns, period_ns, raw_ns, apart_ns, frequency, slack_ns.
#: The path is valid for this generation, before `until_ns` of CLOCK_MONOTONIC_RAW (0: never). The bound grows by 1 ns in every `period_ns`,
#: and would have been 0 at `origin_ns`. On top comes how far CLOCK_REALTIME moved from its oscillator, beyond its frequency: at `raw_ns` they
#: were `apart_ns` apart, or at most `slack_ns` less.
#:
#: It reads CLOCK_MONOTONIC_RAW, which nothing steers: so one difference shows every slew, every step and every suspend. It is a plain tuple,
#: because that is unpacked faster than a named one, and it has origin and period, because then a single division is enough.
_FastPath = tuple[memoryview, int, int, int, int, int, int, int, int]


class _OneArgument(tuple[object, ...]):
    """A subclass of tuple that is constructed from one tuple, without any Python code."""

    __slots__ = ()
    __new__ = tuple.__new__


class _FastInterval(_OneArgument, Interval):
    """An Interval that is constructed faster, by a tenth of the whole call; in use, comparison, copies and pickles it is an Interval."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Interval], tuple[object, ...]]:
        return Interval, tuple(self)


_FastInterval.__name__ = _FastInterval.__qualname__ = Interval.__name__
_fast_interval: Callable[[tuple[int, int, ClockStatus, Reference]], Interval] = _FastInterval


class Clock:
    """
    This node's clock and the bound on its error, as the daemon published it last and as it has grown since.

    No call raises because of the daemon, and none returns a wrong interval as if it were certain. If the segment is missing, stale,
    torn, from another boot, or older than a clock step, both ends of the interval are None, and `reason()` gives the cause.
    Threads may share an object, and it may be used after a fork.
    """

    def __init__(self, runtime_dir: Path | str | None = None) -> None:
        path = find_runtime_dir(runtime_dir) / clock_segment.NAME
        self._reader = SegmentReader(path, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT)
        self._epoch = clock_segment.Epoch(boot_id(), time_namespace())
        self._decoded: tuple[tuple[int, ...], ErrorBound, clock_segment.Epoch] | None = None
        self._translator = past.Translator()
        self._gm = self._utc = self._no_fast_path(self._reader.words, -1)

    def gm_now(self) -> Interval:
        """
        The grandmaster's time minus the whole seconds that the PTP daemon removes, ns since 1970 (GmNs).

        That is CLOCK_REALTIME with its bound against the grandmaster. The seconds are not added back;
        `snapshot().utc_seconds_removed` is their number.
        """
        words, generation, until_ns, origin_ns, period_ns, raw_ns, apart_ns, frequency, slack_ns = self._gm
        before_ns = _clock_ns(_RAW)
        real_ns = _realtime_ns()
        after_ns = _clock_ns(_RAW)
        if words[GENERATION] == generation and after_ns < until_ns:
            least_ns = real_ns - after_ns - apart_ns - ((after_ns - raw_ns) * frequency >> _SHIFT)
            most_ns = least_ns + after_ns - before_ns + slack_ns
            moved_ns = most_ns if most_ns > -least_ns else -least_ns  # noqa: FURB136 (a call of max() takes a tenth longer)
            if moved_ns < _MOST_MOVED_NS:
                bound_ns = (after_ns - origin_ns) // period_ns + moved_ns
                return _fast_interval((real_ns - bound_ns, real_ns + bound_ns, _SYNCHRONIZED, _GRANDMASTER))
        return self._slow_path(_GRANDMASTER)[0]

    def now(self) -> Interval:
        """UTC, ns since 1970 (UtcNs)."""
        words, generation, until_ns, origin_ns, period_ns, raw_ns, apart_ns, frequency, slack_ns = self._utc
        before_ns = _clock_ns(_RAW)
        real_ns = _realtime_ns()
        after_ns = _clock_ns(_RAW)
        if words[GENERATION] == generation and after_ns < until_ns:
            least_ns = real_ns - after_ns - apart_ns - ((after_ns - raw_ns) * frequency >> _SHIFT)
            most_ns = least_ns + after_ns - before_ns + slack_ns
            moved_ns = most_ns if most_ns > -least_ns else -least_ns  # noqa: FURB136 (a call of max() takes a tenth longer)
            if moved_ns < _MOST_MOVED_NS:
                bound_ns = (after_ns - origin_ns) // period_ns + moved_ns
                return _fast_interval((real_ns - bound_ns, real_ns + bound_ns, _SYNCHRONIZED, _UTC))
        return self._slow_path(_UTC)[0]

    def tai_now(self) -> Interval:
        """TAI, ns since 1970 (TaiNs); unknown where UTC is unknown, or where the number of seconds between the two is."""
        return self._slow_path(Reference.TAI)[0]

    def read(self, reference: Reference = Reference.GRANDMASTER) -> ClockReading:
        """The interval now, its reason code and its reason, of one reading: nothing is published or expires between them."""
        interval, reason = self._slow_path(reference)
        return ClockReading(interval, reason, reason.text)

    def reason_code(self, reference: Reference = Reference.GRANDMASTER) -> Reason:
        """Why the status is not SYNCHRONIZED now; Reason.OK when it is. For the reason of an interval use `read`."""
        return self._slow_path(reference)[1]

    def reason(self, reference: Reference = Reference.GRANDMASTER) -> str:
        """The sentence for `reason_code`, for people; empty when the status is SYNCHRONIZED."""
        return self.reason_code(reference).text

    def snapshot(self) -> ErrorBound | None:
        """What the daemon published last; None: there is no valid segment."""
        found = self._read()
        return found if isinstance(found, ErrorBound) else None

    def after(self, t: Timestamp) -> bool | None:
        """
        Whether the timestamp has passed: True, certainly; False, certainly not; None, undecided, since it lies within the interval
        or the clock is unknown. So `if clock.after(t)` is safe, but `if not clock.after(t)` is not: use `before(t)`.

        Raises TypeError for a number without a scale.
        """
        return waiting.is_after(self._now_on_scale_of(t)(), int(t))

    def before(self, t: Timestamp) -> bool | None:
        """Whether the timestamp is still to come: True, certainly; False, certainly not; None, undecided. Raises as `after` does."""
        return waiting.is_before(self._now_on_scale_of(t)(), int(t))

    def wait_until(self, t: Timestamp, *, timeout_s: float) -> WaitResult:
        """
        Wait until this node's clock reads the timestamp: sleeps, then spins the last 0.3 ms. It returns some microseconds late, and
        never early unless the timeout ends it. It follows a step of the clock within 0.1 s.

        Without a known bound it waits all the same, and `reached` is None. Raises TypeError for a number without a scale.
        """
        return waiting.sleep_and_spin(self._wait(t, waiting.clock_shows, timeout_s))

    def wait_after(self, t: Timestamp, *, timeout_s: float) -> WaitResult:
        """
        Commit wait: wait until the timestamp has certainly passed on its scale, whatever this clock's error is (earliest > t).

        `reached` is `after(t)` at the end: only True means that it has passed. While the clock is unknown, the wait goes on until the
        timeout. Raises TypeError for a number without a scale.
        """
        return waiting.sleep_and_spin(self._wait(t, waiting.has_passed, timeout_s))

    def status_changes(
        self, reference: Reference = Reference.GRANDMASTER, *, timeout_s: float | None = None
    ) -> Iterator[StatusChange]:
        """
        The present status and reason, then each change of either. It polls ten times a second and misses what lasts less.

        Ends when there was no change for `timeout_s`; None: never.
        """
        return waiting.status_changes(waiting.changes_and_sleeps(lambda: self._status(reference), timeout_s))

    @overload
    def translate(self, *, boottime_ns: int, reference: Reference = ...) -> ClockReading: ...
    @overload
    def translate(self, *, monotonic_ns: int, reference: Reference = ...) -> ClockReading: ...
    @overload
    def translate(self, *, perf_counter_ns: int, reference: Reference = ...) -> ClockReading: ...
    @overload
    def translate(self, *, realtime_ns: int, reference: Reference = ...) -> ClockReading: ...
    def translate(
        self,
        *,
        boottime_ns: int | None = None,
        monotonic_ns: int | None = None,
        perf_counter_ns: int | None = None,
        realtime_ns: int | None = None,
        reference: Reference = Reference.GRANDMASTER,
    ) -> ClockReading:
        """
        A reference's interval at the past moment at which one of this machine's clocks showed the given reading.

        The bound widens with the distance to the newest sample, and by the uncertainty of reading two clocks one after the other.
        The interval is unknown, with its reason, beyond `void_after_ns`, in the future, on CLOCK_REALTIME before a step, and on
        CLOCK_MONOTONIC before a suspend. Only a `Clock` that exists and is used at the time observes steps and suspends; boottime_ns
        needs neither. Raises TypeError unless exactly one reading is given.
        """
        given: dict[ClockName, int | None] = {
            "boottime": boottime_ns,
            "monotonic": monotonic_ns,
            "perf_counter": perf_counter_ns,
            "realtime": realtime_ns,
        }
        readings = [(clock, ns) for clock, ns in given.items() if ns is not None]
        if len(readings) != 1 or isinstance(readings[0][1], ScaledNs):
            raise TypeError(
                "translate() takes one clock's reading: boottime_ns, monotonic_ns, perf_counter_ns or realtime_ns"
            )
        bound = self._read()
        if isinstance(bound, Reason):
            return past.unknown(reference, bound)
        interval, reason = interval_now(bound, reference, _read_clocks)
        if interval.earliest is None:
            return ClockReading(interval, reason, reason.text)
        return self._translator.translate(bound, reference, *readings[0])

    def _now_on_scale_of(self, t: Timestamp) -> Callable[[], Interval]:
        if isinstance(t, UtcNs):
            return self.now
        if isinstance(t, GmNs):
            return self.gm_now
        if isinstance(t, TaiNs):
            return self.tai_now
        raise TypeError(f"{type(t).__name__} has no scale: give UtcNs(t), TaiNs(t) or GmNs(t)")

    def _wait(self, t: Timestamp, condition: Condition, timeout_s: float) -> Wait:
        return Wait(self._now_on_scale_of(t), lambda: self.read(t.reference), condition, int(t), timeout_s)

    def _status(self, reference: Reference) -> StatusChange:
        interval, reason = self._slow_path(reference)
        return StatusChange(interval.status, reason, reason.text, reference)

    def _slow_path(self, reference: Reference) -> tuple[Interval, Reason]:
        """The interval of any reference and status. It prepares the fast path again where that is valid."""
        found = self._read()
        if isinstance(found, ErrorBound):
            interval, reason = interval_now(found, reference, _read_clocks, RawReading.read)
        else:
            interval, reason = Interval(None, None, ClockStatus.UNKNOWN, reference), found
        if interval.status is not _SYNCHRONIZED:
            self._reader.remap()
        return interval, reason

    def _read(self) -> ErrorBound | Reason:
        """What was published last. It prepares the fast path for it."""
        reader = self._reader
        reader.ensure_mapped()
        # Mapping and generation before the payload: a write in between makes them differ, so the next call reads again.
        words = reader.words
        generation = words[GENERATION]
        payload = reader.read()
        if payload is None:
            return self._absence_reason()
        try:
            bound, epoch = self._decode(payload)
        except ValueError:
            return Reason.OTHER_LAYOUT
        if epoch.boot_id != self._epoch.boot_id:
            return Reason.OTHER_BOOT
        if epoch.time_namespace != self._epoch.time_namespace:
            return Reason.OTHER_TIME_NAMESPACE
        boot_minus_mono, _ = self._translator.update(bound)
        if bound.as_of_ns <= past.boottime_ns():
            self._gm = self._fast_path(words, generation, bound, _GRANDMASTER, boot_minus_mono)
            self._utc = self._fast_path(words, generation, bound, _UTC, boot_minus_mono)
        return bound

    def _decode(self, payload: tuple[int, ...]) -> tuple[ErrorBound, clock_segment.Epoch]:
        """Once for each payload: the reader returns the same object until something new is published."""
        known = self._decoded
        if known is None or known[0] is not payload:
            known = self._decoded = (payload, *clock_segment.decode(payload))
        return known[1:]

    def _absence_reason(self) -> Reason:
        if self._reader.torn:
            return Reason.TORN_SEGMENT
        if not self._reader.found:
            return Reason.NO_SEGMENT
        return Reason.NO_SAMPLE_YET if self._reader.words[GENERATION] == 0 else Reason.OTHER_LAYOUT

    def _fast_path(
        self,
        words: memoryview,
        generation: int,
        bound: ErrorBound,
        reference: Reference,
        boot_minus_mono: NsRange,
    ) -> _FastPath:
        part, status, _, steering_ppb = reference_bound(bound, reference)
        since, ppb = bound.publication, bound.frequency_ppb
        if since is None or ppb is None or part.bound_ns is None or status is not _SYNCHRONIZED:
            return self._no_fast_path(words, generation)
        # Ages count in seconds of CLOCK_BOOTTIME, of which one of the oscillator is at most so many.
        own_ns = NS_PER_S + max(0, ppb)
        growth_ppb = (part.growth_ppb - steering_ppb) * own_ns // NS_PER_S + _ROUNDING_PPB
        real_minus_mono = past.difference(_realtime_ns, _monotonic_ns)
        expected_ns = bound.real_minus_boot_ns + boot_minus_mono.low_ns
        if not 0 < growth_ppb <= NS_PER_S or abs(real_minus_mono.low_ns - expected_ns) > STEP_TOLERANCE_NS:
            return self._no_fast_path(words, generation)
        period_ns = NS_PER_S // growth_ppb
        written_for_ns = since.raw_ns + since.mono_minus_raw_ns - (bound.as_of_ns - boot_minus_mono.high_ns)
        as_of_ns = since.raw_ns - max(0, written_for_ns) * NS_PER_S // max(1, NS_PER_S + ppb) - 1
        return (
            words,
            generation,
            as_of_ns + min(bound.holdover_after_ns, bound.void_after_ns) * NS_PER_S // own_ns,
            as_of_ns - (part.bound_ns + since.unseen_ns + 1) * period_ns,
            period_ns,
            since.raw_ns,
            real_minus_mono.high_ns + since.mono_minus_raw_ns,
            (ppb << _SHIFT) // NS_PER_S,
            since.error_ns + real_minus_mono.high_ns - real_minus_mono.low_ns + 2,
        )

    def _no_fast_path(self, words: memoryview, generation: int) -> _FastPath:
        return words, generation, 0, 0, 1, 0, 0, 0, 0


def _read_clocks() -> tuple[int, int]:
    real_ns = _realtime_ns()
    return real_ns, past.boottime_ns()


def find_runtime_dir(argument: Path | str | None = None) -> Path:
    """The argument, else TIMESYNCD_RUNTIME_DIR, else /run/timesyncd."""
    return Path(argument or os.environ.get("TIMESYNCD_RUNTIME_DIR") or clock_segment.DEFAULT_FOLDER)
