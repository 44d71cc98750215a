"""The TimeProvider driver on a simulated grandmaster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from timesyncd.drivers.timeprovider.timeprovider import TimeProvider, TimeProviderOptions
from timesyncd.sample import GrandmasterSample
from timesyncd.simulation.grandmaster import SnmpAgent

COMMUNITY = "fifth-floor"


def driver_for(agent: SnmpAgent, **more: Any) -> TimeProvider:
    table = {"host": agent.host, "port": agent.port, "community": {"env": "GM_COMMUNITY"}, "timeout_s": 2}
    return TimeProvider("gm-a", TimeProviderOptions.model_validate(table | more), Path("/nonexistent"))


@asynccontextmanager
async def opened(agent: SnmpAgent, **more: Any) -> AsyncIterator[TimeProvider]:
    driver = driver_for(agent, **more)
    try:
        await driver.open()
        yield driver
    finally:
        await driver.close()


async def polled(driver: TimeProvider) -> GrandmasterSample:
    (sample,) = await driver.poll()
    assert isinstance(sample, GrandmasterSample)
    return sample


async def read(agent: SnmpAgent, **more: Any) -> GrandmasterSample:
    async with opened(agent, **more) as driver:
        return await polled(driver)
