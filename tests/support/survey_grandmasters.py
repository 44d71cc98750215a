"""Simulated grandmasters for the tests of probe and record: their addresses, and where the commands find the secrets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from timesyncd.__main__ import main
from timesyncd.drivers.timeprovider.timeprovider import TimeProvider, TimeProviderOptions
from timesyncd.sample import GrandmasterSample
from timesyncd.simulation.grandmaster.simulated import SimulatedGrandmaster, SimulationPlan, running

WRONG = "not it, by far"


class Secrets:
    """A grandmaster's secrets, in the environment that the commands read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def put(self, grandmaster: SimulatedGrandmaster) -> None:
        secrets = {
            "GM_C": grandmaster.agent.community, "GM_A": grandmaster.user.auth_pass, "GM_P": grandmaster.user.priv_pass,
            "GM_W": grandmaster.password, "WRONG": WRONG,
        }  # fmt: skip
        for name, value in secrets.items():
            self._monkeypatch.setenv(name, value)


@asynccontextmanager
async def simulated_grandmaster(
    secrets: Secrets, model: str = "tp4100", scenario: str = "steady"
) -> AsyncIterator[SimulatedGrandmaster]:
    """A grandmaster whose clock is stopped, or nearly so."""
    async with running(SimulationPlan(model=model, scenario=scenario, seed=7, speed=1e-9)) as grandmasters:
        secrets.put(grandmasters[0])
        yield grandmasters[0]


def secrets_of(grandmaster: SimulatedGrandmaster) -> set[str]:
    return {grandmaster.agent.community, grandmaster.user.auth_pass, grandmaster.user.priv_pass, grandmaster.password}


def v2c(grandmaster: SimulatedGrandmaster) -> list[str]:
    return [*where(grandmaster), "--community-env", "GM_C"]


def v3(grandmaster: SimulatedGrandmaster) -> list[str]:
    protocols = ["--auth", grandmaster.user.auth, "--priv", grandmaster.user.priv]
    return [
        *where(grandmaster),
        "--user",
        grandmaster.user.name,
        *protocols,
        "--auth-pass-env",
        "GM_A",
        "--priv-pass-env",
        "GM_P",
    ]


def where(grandmaster: SimulatedGrandmaster) -> list[str]:
    https = ["--https-port", str(grandmaster.web.port if grandmaster.web else closed_port())]
    return [grandmaster.agent.host, "--port", str(grandmaster.agent.port), "--timeout", "0.5", *https]


def web(grandmaster: SimulatedGrandmaster) -> list[str]:
    assert grandmaster.web is not None
    pinned = ["--fingerprint", grandmaster.web.certificate.fingerprint]
    return ["--https-username", grandmaster.username, "--https-password-env", "GM_W", *pinned]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(*arguments: str) -> int:
    """The command, while the grandmasters answer in this loop."""
    return await asyncio.to_thread(main, list(arguments))


async def polled(options: TimeProviderOptions) -> GrandmasterSample:
    """The driver's sample of a grandmaster; HTTPS may need more than the first poll."""
    driver = TimeProvider("gm", options, Path("/nonexistent"))
    sample = GrandmasterSample("gm", 0)
    await driver.open()
    try:
        for _ in range(5):
            found = (await driver.poll())[0]
            assert isinstance(found, GrandmasterSample)
            sample = found
            if options.https is None or sample.time_errors:
                break
    finally:
        await driver.close()
    return sample
