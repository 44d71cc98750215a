"""The time with its bound, from shared memory: no system call but the clocks', no connection, no exception."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import overload

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Interval, Reason, Reference, interval_now
from timesyncd.client import past, waiting
from timesyncd.client.past import ClockName, ClockReading, NsRange
from timesyncd.client.paths import runtime_dir as find_runtime_dir
from timesyncd.client.scales import GmNs, ScaledNs, TaiNs, Timestamp, UtcNs
from timesyncd.client.waiting import Aim, StatusChange, Wait, WaitResult
from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, boot_id, time_namespace
from timesyncd.ipc import clock_segment
from timesyncd.ipc.seqlock import GENERATION, SegmentReader

__all__ = ["Clock", "interval_now"]

_SYNCHRONIZED = ClockStatus.SYNCHRONIZED
_GRANDMASTER = Reference.GRANDMASTER
_UTC = Reference.UTC
_NEVER_NS = 2**62
_realtime_ns = time.time_ns
_monotonic_ns = time.monotonic_ns


#: All that the quick path needs of one reference: mapping, generation, until_ns, lowest_ns, highest_ns, origin_ns, period_ns.
#: It may be taken while the generation stands, before `until_ns` (0: never), while REALTIME - MONOTONIC lies strictly between
#: lowest and highest. The bound grows by 1 ns in every `period_ns`, and would have been 0 at `origin_ns`.
#:
#: On CLOCK_MONOTONIC, because that is read faster than BOOTTIME. A suspend, which only BOOTTIME sees, moves
#: REALTIME - MONOTONIC: it looks like a step, and the careful path tells which it was. A bare tuple, because that is unpacked
#: faster than a named one; origin and period, because one division is all that they cost.
_Hot = tuple[memoryview, int, int, int, int, int, int]


class _Plain(tuple[object, ...]):
    """A tuple's subclass whose type is called with one tuple, and runs no Python code for it."""

    __slots__ = ()
    __new__ = tuple.__new__


class _Quick(_Plain, Interval):
    """An Interval that is made a tenth of the whole call faster; to all who look, copy, compare or pickle it is an Interval."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Interval], tuple[object, ...]]:
        return Interval, tuple(self)


_Quick.__name__ = _Quick.__qualname__ = Interval.__name__
_quick: Callable[[tuple[int, int, ClockStatus, Reference]], Interval] = _Quick


class Clock:
    """
    This node's clock and the bound on its error, as the daemon last knew it and as it has grown since.

    Never raises because of the daemon, and never gives a confident wrong interval: without a segment, or with one that is
    stale, torn, from another boot or followed by a clock step, the interval is None on both sides, and `reason()` says why.
    Safe to share between threads and to keep over a fork.
    """

    def __init__(self, runtime_dir: Path | str | None = None) -> None:
        path = find_runtime_dir(runtime_dir) / clock_segment.NAME
        self._reader = SegmentReader(path, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT)
        self._epoch = clock_segment.Epoch(boot_id(), time_namespace())
        self._decoded: tuple[tuple[int, ...], ErrorBound, clock_segment.Epoch] | None = None
        self._past = past.Translator()
        self._gm = self._utc = self._distrusted(self._reader.words, -1)

    def gm_now(self) -> Interval:
        """
        The grandmaster's time less the whole seconds that the PTP daemon takes out, ns since 1970 (GmNs).

        That is CLOCK_REALTIME with its bound against the grandmaster. The seconds are not added back;
        `snapshot().utc_seconds_removed` says how many.
        """
        words, generation, until_ns, lowest_ns, highest_ns, origin_ns, period_ns = self._gm
        # REALTIME before MONOTONIC: a pause between the two makes the clock look older, so the bound wider.
        real_ns = _realtime_ns()
        mono_ns = _monotonic_ns()
        if words[GENERATION] == generation and mono_ns < until_ns and lowest_ns < real_ns - mono_ns < highest_ns:
            bound_ns = (mono_ns - origin_ns) // period_ns
            return _quick((real_ns - bound_ns, real_ns + bound_ns, _SYNCHRONIZED, _GRANDMASTER))
        return self._carefully(_GRANDMASTER)[0]

    def now(self) -> Interval:
        """UTC, ns since 1970 (UtcNs)."""
        words, generation, until_ns, lowest_ns, highest_ns, origin_ns, period_ns = self._utc
        real_ns = _realtime_ns()
        mono_ns = _monotonic_ns()
        if words[GENERATION] == generation and mono_ns < until_ns and lowest_ns < real_ns - mono_ns < highest_ns:
            bound_ns = (mono_ns - origin_ns) // period_ns
            return _quick((real_ns - bound_ns, real_ns + bound_ns, _SYNCHRONIZED, _UTC))
        return self._carefully(_UTC)[0]

    def tai_now(self) -> Interval:
        """TAI, ns since 1970 (TaiNs); unknown where UTC is, or where nobody says how many seconds lie between the two."""
        return self._carefully(Reference.TAI)[0]

    def reason(self, reference: Reference = Reference.GRANDMASTER) -> str:
        """Why the status is not SYNCHRONIZED; empty when it is. Of an interval taken before it may not speak: see `explained`."""
        return self._carefully(reference)[1].text

    def explained(self, reference: Reference = Reference.GRANDMASTER) -> ClockReading:
        """This moment's interval and its reason, of one reading: nothing is published, and no limit passed, between the two."""
        interval, reason = self._carefully(reference)
        return ClockReading(interval, reason.text)

    def snapshot(self) -> ErrorBound | None:
        """All that the daemon published last; None when there is nothing to believe."""
        found = self._read()
        return found if isinstance(found, ErrorBound) else None

    def after(self, t: Timestamp) -> bool | None:
        """
        The moment has passed: True, surely; False, surely not; None, it cannot be told, since it lies within the interval or
        the clock is unknown. So `if clock.after(t)` is safe, and `if not clock.after(t)` says nothing: ask `before(t)`.

        Raises TypeError for a number without a scale.
        """
        return waiting.is_after(self._asked(t)(), int(t))

    def before(self, t: Timestamp) -> bool | None:
        """The moment is yet to come: True, surely; False, surely not; None, it cannot be told. Raises as `after` does."""
        return waiting.is_before(self._asked(t)(), int(t))

    def wait_until(self, t: Timestamp, *, timeout_s: float) -> WaitResult:
        """
        Hold until this node's clock shows the moment; sleeps, then spins the last 0.3 ms of it, and never returns before the
        clock shows it, unless the time is out.

        Without a known bound it holds all the same, and `reached` is None. It returns some microseconds late; a step
        of the clock is followed within 0.1 s. Raises TypeError for a number without a scale.
        """
        return waiting.sleep_and_spin(self._wait(t, waiting.until, timeout_s))

    async def wait_until_async(self, t: Timestamp, *, timeout_s: float) -> WaitResult:
        """The same without spinning: up to some milliseconds late, and the event loop runs on."""
        return await waiting.sleep_async(self._wait(t, waiting.until, timeout_s))

    def wait_after(self, t: Timestamp, *, timeout_s: float) -> WaitResult:
        """
        Commit wait: hold until the moment has surely passed on its scale, however far this clock may be off (earliest > t).

        `reached` is `after(t)` at the end: True alone means that it has passed; while the clock is unknown it waits on, until
        the time is out. Raises TypeError for a number without a scale.
        """
        return waiting.sleep_and_spin(self._wait(t, waiting.after, timeout_s))

    async def wait_after_async(self, t: Timestamp, *, timeout_s: float) -> WaitResult:
        """The same without spinning: up to some milliseconds late, and the event loop runs on."""
        return await waiting.sleep_async(self._wait(t, waiting.after, timeout_s))

    def changes(
        self, reference: Reference = Reference.GRANDMASTER, *, timeout_s: float | None = None
    ) -> Iterator[StatusChange]:
        """
        The present status and reason, then each change of either, looked for ten times a second; what comes and goes in
        between is missed. Ends when there was none for `timeout_s`; None: never.
        """
        return waiting.changes(waiting.changing(lambda: self._state(reference), timeout_s))

    def changes_async(
        self, reference: Reference = Reference.GRANDMASTER, *, timeout_s: float | None = None
    ) -> AsyncIterator[StatusChange]:
        """The same for `async for`."""
        return waiting.changes_async(waiting.changing(lambda: self._state(reference), timeout_s))

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
        What a reference's clock showed when one of this machine's clocks was read so, in the past.

        The bound widens with the distance to the newest sample, and by what reading the two clocks together leaves open.
        Refused, with the reason: beyond `void_after_ns`, in the future, on CLOCK_REALTIME before a step, on CLOCK_MONOTONIC
        before a suspend. Steps and suspends are noticed while this object lives and is asked; boottime_ns needs neither.
        Raises TypeError unless exactly one reading is given.
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
            return past.unknown(reference, bound.text)
        interval, reason = interval_now(bound, reference, _read_clocks)
        if interval.earliest is None:
            return ClockReading(interval, reason.text)
        return self._past.translate(bound, reference, *readings[0])

    def _asked(self, t: Timestamp) -> Callable[[], Interval]:
        if isinstance(t, UtcNs):
            return self.now
        if isinstance(t, GmNs):
            return self.gm_now
        if isinstance(t, TaiNs):
            return self.tai_now
        raise TypeError(f"{type(t).__name__} has no scale: say which it is on by UtcNs(t), TaiNs(t) or GmNs(t)")

    def _wait(self, t: Timestamp, aim: Aim, timeout_s: float) -> Wait:
        return Wait(self._asked(t), lambda: self.explained(t.reference), aim, int(t), timeout_s)

    def _state(self, reference: Reference) -> StatusChange:
        interval, reason = self._carefully(reference)
        return StatusChange(interval.status, reason.text, reference)

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
        """What was published last, and the quick path made ready for it."""
        reader = self._reader
        reader.find()
        # Mapping and generation before the payload: whatever comes in between makes them differ, so the next call looks again.
        words = reader.words
        generation = words[GENERATION]
        payload = reader.read()
        if payload is None:
            return self._absence()
        try:
            bound, epoch = self._decode(payload)
        except ValueError:
            return Reason.OTHER_LAYOUT
        if epoch.boot_id != self._epoch.boot_id:
            return Reason.OTHER_BOOT
        if epoch.time_namespace != self._epoch.time_namespace:
            return Reason.OTHER_TIME_NAMESPACE
        boot_minus_mono, _ = self._past.notice(bound)
        if bound.as_of_ns <= past.boottime_ns():
            self._gm = self._hot(words, generation, bound, bound.gm_hard, bound.gm_status, boot_minus_mono)
            self._utc = self._hot(words, generation, bound, bound.utc_hard, bound.utc_status, boot_minus_mono)
        return bound

    def _decode(self, payload: tuple[int, ...]) -> tuple[ErrorBound, clock_segment.Epoch]:
        """Once for each payload: the reader gives the same object as long as nothing new is published."""
        known = self._decoded
        if known is None or known[0] is not payload:
            known = self._decoded = (payload, *clock_segment.decode(payload))
        return known[1:]

    def _absence(self) -> Reason:
        if self._reader.torn:
            return Reason.TORN_SEGMENT
        if not self._reader.found:
            return Reason.NO_SEGMENT
        return Reason.NO_SAMPLE_YET if self._reader.words[GENERATION] == 0 else Reason.OTHER_LAYOUT

    def _hot(
        self,
        words: memoryview,
        generation: int,
        bound: ErrorBound,
        part: Bound,
        status: ClockStatus,
        boot_minus_mono: NsRange,
    ) -> _Hot:
        period_ns = NS_PER_S // part.growth_ppb if part.growth_ppb else _NEVER_NS
        if part.bound_ns is None or status is not _SYNCHRONIZED or period_ns == 0:
            return self._distrusted(words, generation)
        # Each limit at the end of the pair that makes it stricter: never younger, never a step unseen.
        as_of_ns = bound.as_of_ns - boot_minus_mono.high_ns
        return (
            words,
            generation,
            as_of_ns + min(bound.holdover_after_ns, bound.void_after_ns),
            bound.real_minus_boot_ns + boot_minus_mono.high_ns - STEP_TOLERANCE_NS - 1,
            bound.real_minus_boot_ns + boot_minus_mono.low_ns + STEP_TOLERANCE_NS + 1,
            as_of_ns - (part.bound_ns + 1) * period_ns,
            period_ns,
        )

    def _distrusted(self, words: memoryview, generation: int) -> _Hot:
        return words, generation, 0, 0, 0, 0, 1


def _read_clocks() -> tuple[int, int]:
    real_ns = _realtime_ns()
    return real_ns, past.boottime_ns()
