"""The contract of a driver, and the one runner that polls, retries with backoff, reports and logs for all of them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from timesyncd.clocks import Clocks
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, Unreachable, suggestion
from timesyncd.sample import AlarmEvent, EngineTime, NoSample, NoSampleCause, Reading, Trap

log = logging.getLogger(__name__)

GROUP = "timesyncd.drivers"
MAX_BACKOFF_S = 60.0

#: The least time between two polls, however often a device requests one.
MIN_REQUESTED_INTERVAL_S = 1.0


@dataclass(slots=True)
class Traffic:
    """Packets and the bytes of their payloads, sent to and received from one device or service since the start."""

    packets_sent: int = 0
    packets_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def sent(self, size: int) -> None:
        self.packets_sent += 1
        self.bytes_sent += size

    def received(self, size: int) -> None:
        self.packets_received += 1
        self.bytes_received += size


#: What is sent and received in the present task counts here. A transport takes it when it is opened or used, not in a callback.
TRAFFIC: ContextVar[Traffic] = ContextVar("TRAFFIC")


def current_traffic() -> Traffic:
    """Of the source that the present task polls; one that is never read, where it polls none."""
    return TRAFFIC.get(None) or Traffic()


class Driver(Protocol):
    """
    One clock source or grandmaster.

    Built as `Class(name, options, runtime_dir)`, where `options` is an instance of the class attribute `Options`.
    `poll` reads the device once and returns the new readings, possibly none. It may wait for the device, but never
    longer than `timeout_s`. It must not retry, sleep beyond its poll, or log: the runner does all three. `open` and
    `poll` raise `SourceError` (Unreachable, Malformed, Refused) and nothing else; after an error the runner calls
    `close` and later `open` again. `close` never raises.
    """

    Options: ClassVar[type[BaseModel]]
    poll_interval_s: float
    timeout_s: float

    def __init__(self, name: str, options: Any, runtime_dir: Path) -> None: ...

    async def open(self) -> None: ...

    async def poll(self) -> Sequence[Reading]: ...

    async def close(self) -> None: ...


@runtime_checkable
class AlarmSource(Protocol):
    """
    A driver whose device sends traps or syslog messages by itself.

    `alarm_event` and `alarm_event_of_line` turn one into an event, or into None for a repetition; they neither block
    nor raise. `addresses` are the device's own, as `open` resolved them. `request_poll` makes everything that may have
    changed due at the next poll. `verified_engine` is the device's SNMPv3 engine clock, if the poller has it under a valid
    signature. `config_findings` are the findings about the driver's configuration, as id and
    evidence.
    """

    addresses: frozenset[str]
    config_findings: tuple[tuple[str, str], ...]

    def alarm_event(self, trap: Trap) -> AlarmEvent | None: ...

    def alarm_event_of_line(self, line: str, boottime_ns: int) -> AlarmEvent | None: ...

    def request_poll(self) -> None: ...

    def verified_engine(self) -> EngineTime | None: ...


@dataclass(frozen=True, slots=True)
class PollReport:
    """The result of one poll: `error` is None when it succeeded, `failures` counts the failed polls in a row."""

    source: str
    boottime_ns: int
    duration_ns: int
    error: str | None
    failures: int


def installed_drivers() -> dict[str, EntryPoint]:
    """The installed drivers by name, as the configuration names them."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def load_driver(name: str) -> type[Driver]:
    """The class of a driver by name. Raises ConfigError that lists the installed drivers."""
    drivers = installed_drivers()
    if name not in drivers:
        near = suggestion(name, drivers) or ";"
        raise ConfigError(f"no such driver{near} installed drivers: {', '.join(sorted(drivers))}")
    loaded: type[Driver] = drivers[name].load()
    return loaded


def build_driver(name: str, driver: str, options: BaseModel, runtime_dir: Path) -> Driver:
    """The driver of the source or grandmaster `name`. Raises ConfigError that begins with that name."""
    try:
        return load_driver(driver)(name, options, runtime_dir)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def options_of(name: str) -> type[BaseModel]:
    """A driver's Options model by the driver's name. Raises ConfigError when there is none."""
    return load_driver(name).Options


def backoff_s(failures: int, interval_s: float, jitter: float) -> float:
    """
    The pause after the n-th failure in a row: doubled each time, at most a minute.

    `jitter` in [0, 1) spreads it over half to one and a half of that, so that the daemons of a fleet do not retry at
    the same moment.
    """
    base = min(MAX_BACKOFF_S, max(interval_s, 0.1) * 2.0 ** min(failures - 1, 20))
    return base * (0.5 + jitter)


class Runner:
    """
    Polls one driver until cancelled. `samples()` yields its readings, and a NoSample for each failed poll. `polls` counts them,
    and `slowdown` is by how much they are further apart than configured.
    """

    def __init__(self, name: str, driver: Driver, clocks: Clocks, report: Callable[[PollReport], None]) -> None:
        self.name = name
        self.driver = driver
        self._clocks = clocks
        self._report = report
        self._is_open = False
        self._failures = 0
        self._poll_requested = asyncio.Event()
        self.polls = 0
        self.slowdown = 1
        self.traffic = Traffic()

    def request_poll(self) -> None:
        """Poll as soon as the last poll is MIN_REQUESTED_INTERVAL_S old: the device reported a change."""
        self._poll_requested.set()

    async def samples(self) -> AsyncGenerator[Reading, None]:
        TRAFFIC.set(self.traffic)
        try:
            while True:
                started_ns = self._clocks.boottime_ns()
                self.polls += 1
                for reading in await self._poll_once(started_ns):
                    yield reading
                await self._pause(started_ns)
        finally:
            await self._close()

    async def _poll_once(self, started_ns: int) -> Sequence[Reading]:
        try:
            async with asyncio.timeout(self.driver.timeout_s):
                if not self._is_open:
                    self._is_open = True
                    await self.driver.open()
                readings = await self.driver.poll()
        except (SourceError, TimeoutError) as error:
            await self._close()
            return [self._failed(started_ns, error)]
        self._succeeded(started_ns)
        log.debug("%s: poll: %d readings", self.name, len(readings))
        return readings

    def _failed(self, started_ns: int, error: Exception) -> NoSample:
        if isinstance(error, TimeoutError):
            error = Unreachable(f"no answer within {self.driver.timeout_s:g} s")
        self._failures += 1
        if self._failures == 1:
            log.info("%s: poll failed: %s", self.name, error)
        now_ns = self._clocks.boottime_ns()
        self._report(PollReport(self.name, now_ns, now_ns - started_ns, str(error), self._failures))
        return NoSample(self.name, now_ns, str(error), poll_failure=_cause_of(error))

    def _succeeded(self, started_ns: int) -> None:
        if self._failures:
            log.info("%s: poll succeeded after %d failed polls", self.name, self._failures)
        self._failures = 0
        now_ns = self._clocks.boottime_ns()
        self._report(PollReport(self.name, now_ns, now_ns - started_ns, None, 0))

    async def _pause(self, started_ns: int) -> None:
        pause_s = self._pause_s(started_ns)
        await asyncio.sleep(min(pause_s, MIN_REQUESTED_INTERVAL_S))
        if pause_s > MIN_REQUESTED_INTERVAL_S:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s - MIN_REQUESTED_INTERVAL_S):
                    await self._poll_requested.wait()
        self._poll_requested.clear()

    def _pause_s(self, started_ns: int) -> float:
        if self._failures:
            return backoff_s(self._failures, self.driver.poll_interval_s, random.random())
        elapsed_s = (self._clocks.boottime_ns() - started_ns) / 1e9
        return max(0.0, self.driver.poll_interval_s * self.slowdown - elapsed_s)

    async def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self.driver.close()


_CAUSES = {
    Unreachable: NoSampleCause.SOURCE_UNREACHABLE,
    Malformed: NoSampleCause.SOURCE_MALFORMED,
    Refused: NoSampleCause.SOURCE_REFUSED,
}


def _cause_of(error: Exception) -> NoSampleCause:
    causes = (cause for kind, cause in _CAUSES.items() if isinstance(error, kind))
    return next(causes, NoSampleCause.NO_VALID_SAMPLE)
