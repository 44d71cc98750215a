"""Links to a broker, at work while a test looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from timesyncd.mqtt.client import MqttLink


@asynccontextmanager
async def running(*links: MqttLink) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(link.run()) for link in links]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes


async def eventually(holds: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.02)
