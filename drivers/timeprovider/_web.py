"""
Reads a TimeProvider's web interface: the time errors of its channels, and its TAI - UTC.

`WebPoller` reads it at its own interval beside SNMP, and never delays a poll beyond its time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from itertools import product

from timesyncd.drivers.timeprovider._web_codec import (
    ChannelState,
    Chart,
    NotData,
    parse_channels,
    parse_chart,
    parse_history,
)
from timesyncd.drivers.timeprovider._web_requests import (
    CHANNELS,
    METRICS,
    Channel,
    Metric,
    WebOptions,
    channel_states,
    chart,
    history,
)
from timesyncd.drivers.timeprovider._web_session import WebSession
from timesyncd.errors import Malformed, SourceError, Unreachable
from timesyncd.sample import GrandmasterSample, TimeError, TimeErrorSeries

MAX_FILE_BYTES = 16 << 20

#: A gap of readings longer than this is filled from the grandmaster's own history. Shorter gaps are not: a file contains a whole day,
#: and the grandmaster's management CPU is slow.
HOLE_NS = 600_000_000_000


@dataclass(frozen=True, slots=True)
class WebReading:
    """
    The result of one poll. `utc_offset_s` is TAI - UTC in every chart's newest point; None if there is no point or the points
    disagree. `series` are past time errors that fill a gap, at most one file per poll. `notes` are for people.
    """

    time_errors: tuple[TimeError, ...]
    utc_offset_s: int | None
    series: tuple[TimeErrorSeries, ...]
    notes: tuple[str, ...]


class WebReader:
    """
    Reads one grandmaster. `poll` takes CLOCK_BOOTTIME in ns, connects, and logs in at most once, all within `timeout_s`; `open` does
    not connect. Both raise SourceError; `close` never raises, and `open` may follow it.
    """

    def __init__(self, name: str, host: str, options: WebOptions) -> None:
        """Raises ConfigError if the password cannot be read or `host` is not a host name or address."""
        self._name = name
        self._options = options
        self._session = WebSession(host, options, options.password.reveal())
        self._last_ns: int | None = None
        self._files: deque[tuple[Channel, Metric]] = deque()

    async def open(self) -> None:
        self._session.open()

    async def close(self) -> None:
        await self._session.close()

    async def poll(self, boottime_ns: int) -> WebReading:
        self._session.begin(boottime_ns)
        half_s = self._options.timeout_s / 2
        try:
            async with asyncio.timeout(half_s):
                states = await self._session.fetch(channel_states(), parse_channels)
                channels = monitored(states, self._options.channels)
                charts, chart_notes = await self._charts(channels)
        except TimeoutError as error:
            raise Unreachable(
                f"{self._session.device}: {self._session.last_request}: no complete answer within {half_s:g} s"
            ) from error
        if self._options.fill_history and is_hole(self._last_ns, boottime_ns):
            self._files = deque(product(channels, METRICS))
        self._last_ns = boottime_ns
        series, history_notes = await self._next_file(half_s)
        notes = (*missing(channels, self._options.channels, states), *chart_notes, *history_notes)
        return reading(charts, series, notes)

    async def _charts(self, channels: list[Channel]) -> tuple[dict[tuple[Channel, Metric], Chart], list[str]]:
        """The charts, and a note on each that is broken, which hides no other. Raises the first one's error if all are."""
        charts: dict[tuple[Channel, Metric], Chart] = {}
        broken: list[Malformed] = []
        for channel, metric in product(channels, METRICS):
            try:
                charts[channel, metric] = await self._session.fetch(chart(channel, metric), parse_chart)
            except Malformed as error:
                if isinstance(error, NotData):
                    raise
                broken.append(error)
        if broken and not charts:
            raise broken[0]
        return charts, [str(error) for error in broken]

    async def _next_file(self, within_s: float) -> tuple[tuple[TimeErrorSeries, ...], tuple[str, ...]]:
        """The next file of the history, or a note on why it failed: the current time errors are valid without it."""
        if not self._files:
            return (), ()
        channel, metric = self._files.popleft()
        request = history(channel, metric)
        try:
            async with asyncio.timeout(within_s):
                points = await self._session.read(request, parse_history, MAX_FILE_BYTES)
        except TimeoutError:
            return (), (f"history: {self._session.device}: {request.label}: no complete file within {within_s:g} s",)
        except SourceError as error:
            return (), (f"history: {error}; the file is discarded",)
        return ((TimeErrorSeries(self._name, channel, metric, points),) if points else ()), ()


def is_hole(last_ns: int | None, now_ns: int) -> bool:
    """Whether the grandmaster was not read for longer than HOLE_NS, or never."""
    return last_ns is None or now_ns - last_ns > HOLE_NS


def monitored(states: tuple[ChannelState, ...], wanted: tuple[Channel, ...] | None) -> list[Channel]:
    """The wanted channels (None: all) that the grandmaster measures."""
    return [
        channel for channel in wanted or CHANNELS if any(state.monitored and state.is_of(channel) for state in states)
    ]


def missing(
    channels: list[Channel], wanted: tuple[Channel, ...] | None, states: tuple[ChannelState, ...] = ()
) -> tuple[str, ...]:
    """
    Notes on wanted channels that the grandmaster does not measure, or that it measures none, with its own words: other firmware may
    use others than the known ones.
    """
    sought = [channel for channel in wanted or CHANNELS if channel not in channels]
    words = ", ".join(
        f"{state.name} is {state.status!r}" for state in states if any(state.is_of(channel) for channel in sought)
    )
    reported = f" (it reports: {words})" if words else ""
    absent = [channel for channel in wanted or () if channel not in channels]
    if absent:
        remedy = "enable it there or remove it from `channels`"
        return (f"the grandmaster does not monitor {', '.join(absent)}{reported}; {remedy}",)
    return () if channels else (f"the grandmaster monitors no channel that has a time error{reported}",)


def reading(
    charts: dict[tuple[Channel, Metric], Chart], series: tuple[TimeErrorSeries, ...], notes: tuple[str, ...]
) -> WebReading:
    """Combine the charts, series and notes of one poll."""
    time_errors = tuple(
        TimeError(
            channel=channel,
            metric=metric,
            value_ns=chart.newest.value_ns,
            at_realtime_ns=chart.newest.at_realtime_ns,
            reference=chart.reference,
            status=chart.status,
            alarm_threshold_ns=chart.alarm_threshold_ns,
        )
        for (channel, metric), chart in charts.items()
        if chart.newest is not None
    )
    offsets = sorted({chart.newest.utc_offset_s for chart in charts.values() if chart.newest is not None})
    if len(offsets) > 1:
        notes += (f"the grandmaster's channels disagree on TAI - UTC: {', '.join(map(str, offsets))} s",)
    return WebReading(time_errors, offsets[0] if len(offsets) == 1 else None, series, notes)


@dataclass(frozen=True, slots=True)
class _Outcome:
    boottime_ns: int
    reading: WebReading | None
    error: SourceError | None


class WebPoller:
    """
    `begin` starts a reading if one is due and none is running; `finish` waits for it, and keeps its result for two intervals. A reading
    that takes longer than a poll continues and counts in a later poll.
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
            self._apply(task.result())

    def _apply(self, outcome: _Outcome) -> None:
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
        """The last reading, if it is at most two intervals old."""
        is_current = self._reading is not None and now_ns - self._read_ns <= 2 * self._interval_ns
        return self._reading if is_current else None

    def take_series(self) -> tuple[TimeErrorSeries, ...]:
        """The new past time errors; each is returned once."""
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
    """SNMP's sample with the web interface's values added; a contradiction between the two becomes a note."""
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
