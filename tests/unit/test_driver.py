"""The one runner: time-out, back-off, lost and back, reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel
from samples import nth

from timesyncd.clocks import SystemClocks
from timesyncd.driver import PollReport, Runner, Traffic, backoff_s, current_traffic
from timesyncd.errors import Malformed, Unreachable
from timesyncd.sample import NoSample, Reading


class Scripted:
    """A driver that follows its script, poll by poll."""

    Options: ClassVar[type[BaseModel]] = BaseModel
    poll_interval_s = 0.0
    timeout_s = 0.05

    def __init__(self, name: str, options: Any, runtime_dir: Path) -> None:
        self.script: list[Reading | Exception | float] = options
        self.calls: list[str] = []

    async def open(self) -> None:
        self.calls.append("open")

    async def poll(self) -> Sequence[Reading]:
        match self.script.pop(0):
            case Exception() as error:
                raise error
            case float() as seconds:
                await asyncio.sleep(seconds)
                return []
            case reading:
                return [reading]

    async def close(self) -> None:
        self.calls.append("close")


async def run(
    script: list[Reading | Exception | float], count: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Reading], list[PollReport], Scripted]:
    monkeypatch.setattr("timesyncd.driver.backoff_s", lambda failures, interval_s, jitter: 0.0)
    driver, reports, got = Scripted("s", script, Path()), list[PollReport](), list[Reading]()
    async with aclosing(Runner("s", driver, SystemClocks(), reports.append).samples()) as samples:
        async for reading in samples:
            got.append(reading)
            if len(got) == count:
                break
    return got, reports, driver


async def test_a_failing_source_is_logged_once_and_once_when_it_recovers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    However many polls failed in between; each failure is a NoSample with its reason.
    """
    caplog.set_level(logging.INFO)
    script: list[Reading | Exception | float] = [nth(0), Unreachable("gone"), Malformed("odd"), nth(1), nth(2)]
    got, reports, _ = await run(script, 5, monkeypatch)

    assert [record.message for record in caplog.records] == [
        "s: poll failed: gone",
        "s: poll succeeded after 2 failed polls",
    ]
    assert [r.reason if isinstance(r, NoSample) else "" for r in got] == ["", "gone", "odd", "", ""]
    assert [report.failures for report in reports][:4] == [0, 1, 2, 0]


async def test_after_an_error_the_driver_is_closed_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A source that restarted needs new connections; the runner closes at the end, too.
    """
    _, _, driver = await run([nth(0), Unreachable("gone"), nth(1)], 3, monkeypatch)

    assert driver.calls == ["open", "close", "open", "close"]


async def test_a_poll_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The driver's time-out bounds every poll.
    """
    got, _, _ = await run([30.0], 1, monkeypatch)

    assert isinstance(got[0], NoSample)
    assert got[0].reason == "no answer within 0.05 s"


async def test_a_bug_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Only typed errors are a source's failure; anything else ends the daemon.
    """
    with pytest.raises(ZeroDivisionError):
        await run([ZeroDivisionError()], 1, monkeypatch)


def test_back_off_doubles_to_a_minute_with_jitter() -> None:
    """
    Spread over half to one and a half, so that the drivers of a fleet do not poll in step.
    """
    assert [backoff_s(n, 1.0, 0.5) for n in (1, 2, 3, 7, 50)] == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert backoff_s(1, 1.0, 0.0) == 0.5
    assert backoff_s(1, 1.0, 0.999) < 1.5


async def test_a_driver_with_a_requested_poll_is_polled_before_its_time_but_not_at_will(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device that calls is polled at once where its last poll is old enough, and a storm of calls makes no storm of polls."""
    monkeypatch.setattr("timesyncd.driver.MIN_REQUESTED_INTERVAL_S", 0.2)
    driver = Scripted("s", [nth(0), nth(1), nth(2), nth(3)], Path())
    driver.poll_interval_s = 3600.0
    runner, polled = Runner("s", driver, SystemClocks(), lambda _: None), 0

    async def call() -> None:
        while True:
            runner.request_poll()
            await asyncio.sleep(0.01)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        calling = tasks.create_task(call())
        async with aclosing(runner.samples()) as samples:
            async for _ in samples:
                polled += 1
                if polled == 3:
                    break
        calling.cancel()

    assert polled == 3


async def test_a_runner_counts_its_polls_and_their_packets_alone() -> None:
    """Of two sources in one event loop each has its own traffic."""

    class Talking(Scripted):
        size = 0

        async def poll(self) -> Sequence[Reading]:
            current_traffic().sent(self.size)
            current_traffic().received(2 * self.size)
            return [nth(0)]

    async def polled(name: str, size: int) -> Runner:
        driver = Talking(name, [], Path())
        driver.size = size
        runner = Runner(name, driver, SystemClocks(), lambda _: None)
        async with aclosing(runner.samples()) as samples:
            for _ in range(3):
                await anext(samples)
        return runner

    one, other = await asyncio.gather(asyncio.create_task(polled("a", 10)), asyncio.create_task(polled("b", 100)))

    assert (one.polls, one.traffic) == (3, Traffic(3, 3, 30, 60))
    assert (other.polls, other.traffic) == (3, Traffic(3, 3, 300, 600))
