"""Simulated units for the tests of probe and record: how they are reached, and where the commands find the secrets."""

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
    """A unit's secrets, where the commands are told to look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def put(self, unit: SimulatedGrandmaster) -> None:
        secrets = {
            "GM_C": unit.agent.community, "GM_A": unit.user.auth_pass, "GM_P": unit.user.priv_pass,
            "GM_W": unit.password, "WRONG": WRONG,
        }  # fmt: skip
        for name, value in secrets.items():
            self._monkeypatch.setenv(name, value)


@asynccontextmanager
async def a_unit(
    secrets: Secrets, model: str = "tp4100", scenario: str = "steady"
) -> AsyncIterator[SimulatedGrandmaster]:
    """One that stands still, or nearly so."""
    async with running(SimulationPlan(model=model, scenario=scenario, seed=7, speed=1e-9)) as units:
        secrets.put(units[0])
        yield units[0]


def secrets_of(unit: SimulatedGrandmaster) -> set[str]:
    return {unit.agent.community, unit.user.auth_pass, unit.user.priv_pass, unit.password}


def v2c(unit: SimulatedGrandmaster) -> list[str]:
    return [*where(unit), "--community-env", "GM_C"]


def v3(unit: SimulatedGrandmaster) -> list[str]:
    protocols = ["--auth", unit.user.auth, "--priv", unit.user.priv]
    return [*where(unit), "--user", unit.user.name, *protocols, "--auth-pass-env", "GM_A", "--priv-pass-env", "GM_P"]


def where(unit: SimulatedGrandmaster) -> list[str]:
    https = ["--https-port", str(unit.web.port if unit.web else closed_port())]
    return [unit.agent.host, "--port", str(unit.agent.port), "--timeout", "0.5", *https]


def web(unit: SimulatedGrandmaster) -> list[str]:
    assert unit.web is not None
    pinned = ["--fingerprint", unit.web.certificate.fingerprint]
    return ["--https-username", unit.username, "--https-password-env", "GM_W", *pinned]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def run(*arguments: str) -> int:
    """The command, while the units answer in this loop."""
    return await asyncio.to_thread(main, list(arguments))


async def polled(options: TimeProviderOptions) -> GrandmasterSample:
    """What the driver makes of a unit; HTTPS may need more than the first poll."""
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
