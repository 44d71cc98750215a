"""A unit's web interface beside its SNMP agent: read at its own pace, waited for no longer than a poll has time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from timesyncd.drivers.timeprovider._web import WebReader, WebReading
from timesyncd.errors import SourceError
from timesyncd.sample import GrandmasterSample, TimeErrorSeries


@dataclass(frozen=True, slots=True)
class _Outcome:
    boottime_ns: int
    reading: WebReading | None
    error: SourceError | None


class WebPart:
    """
    `begin` starts a reading when one is due and none is under way; `finish` gives it until then, and keeps what it brought for two
    intervals. A reading that takes longer than a poll goes on meanwhile and counts at a later one.
    """

    def __init__(self, reader: WebReader, interval_ns: int) -> None:
        self.error: SourceError | None = None
        self._reader = reader
        self._interval_ns = interval_ns
        self._task: asyncio.Task[_Outcome] | None = None
        self._tried_ns: int | None = None
        self._is_open = False
        self._reading: WebReading | None = None
        self._read_ns = 0
        self._series: tuple[TimeErrorSeries, ...] = ()

    def begin(self, now_ns: int) -> None:
        is_due = self._tried_ns is None or now_ns - self._tried_ns >= self._interval_ns
        if is_due and self._task is None:
            self._tried_ns = now_ns
            self._task = asyncio.create_task(self._read(now_ns), name="timeprovider.web")

    async def finish(self, until: float) -> None:
        """`until` is the event loop's time."""
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=max(0.0, until - asyncio.get_running_loop().time()))
        if self._task.done():
            task, self._task = self._task, None
            self._take(task.result())

    def _take(self, outcome: _Outcome) -> None:
        self.error = outcome.error
        if outcome.reading is not None:
            self._reading, self._read_ns = outcome.reading, outcome.boottime_ns
            self._series += outcome.reading.series

    async def _read(self, now_ns: int) -> _Outcome:
        try:
            if not self._is_open:
                self._is_open = True
                await self._reader.open()
            return _Outcome(now_ns, await self._reader.poll(now_ns), None)
        except SourceError as error:
            await self._close_reader()
            return _Outcome(now_ns, None, error)

    def current(self, now_ns: int) -> WebReading | None:
        """What was read within the last two intervals."""
        is_current = self._reading is not None and now_ns - self._read_ns <= 2 * self._interval_ns
        return self._reading if is_current else None

    def take_series(self) -> tuple[TimeErrorSeries, ...]:
        """What is new of the past, once."""
        series, self._series = self._series, ()
        return series

    async def close(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait([task])
        self._tried_ns = None
        await self._close_reader()

    async def _close_reader(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._reader.close()


def merged(sample: GrandmasterSample, reading: WebReading | None, error: SourceError | None) -> GrandmasterSample:
    """What SNMP says, and beside it what the web interface says; that they contradict each other is told."""
    notes = [] if error is None else [f"https={error}"]
    if reading is None:
        return replace(sample, unknown=(*sample.unknown, *notes))
    notes += [f"https={note}" for note in reading.notes]
    utc_offset_s = reading.utc_offset_s if sample.utc_offset_s is None else sample.utc_offset_s
    if reading.utc_offset_s not in (None, utc_offset_s):
        notes.append(f"utc_offset_s={utc_offset_s} by SNMP, {reading.utc_offset_s} by HTTPS")
    return replace(
        sample, time_errors=reading.time_errors, utc_offset_s=utc_offset_s, unknown=(*sample.unknown, *notes)
    )
