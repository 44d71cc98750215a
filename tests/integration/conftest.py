"""
Real parts for every integration test. What is not installed fails the test and names the Debian package.

A bed is slow to start (its first good path delay comes after about 15 s), so tests share it: a test that stops, restarts or
delays something in `ptp_pair` makes a `PtpBed` of his own instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from simulated_timeprovider import COMMUNITY
from web_interface import PASSWORD, Lab, certificate

from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.broker import Mosquitto


@pytest.fixture(scope="session")
def ptp_pair() -> Iterator[PtpBed]:
    """A grandmaster and the direct node "a", whose true offset is exactly 0; for tests that change nothing."""
    with PtpBed(direct=("a",)) as bed:
        yield bed


@pytest.fixture(scope="module")
def relayed_pair() -> Iterator[PtpBed]:
    """A grandmaster and node "b" behind a relay; each module has its own, and sets the relay as it likes."""
    with PtpBed(relayed=("b",)) as bed:
        yield bed


@pytest.fixture
def mosquitto() -> Iterator[Mosquitto]:
    """A broker that anybody may use, stop and start again."""
    with Mosquitto() as broker:
        yield broker


@pytest.fixture(scope="session", autouse=True)
def net_snmp_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where net-snmp's programs keep their state; without the folder a program creates it and prints a line about it."""
    place = tmp_path_factory.mktemp("net-snmp")
    (place / "cert_indexes").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SNMP_PERSISTENT_DIR", str(place))
        yield


@pytest.fixture
def community(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GM_COMMUNITY", COMMUNITY)
    monkeypatch.setenv("WRONG_COMMUNITY", "guess")


@pytest.fixture
async def nothing_left(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Whatever a grandmaster answers: no socket stays open, and nothing fails unseen in the event loop."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    await asyncio.sleep(0)

    assert len(os.listdir("/proc/self/fd")) <= before
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> AsyncIterator[Lab]:
    """Where grandmasters with a web interface are served, and read."""
    monkeypatch.setenv("GM_WEB_PASSWORD", PASSWORD)
    async with AsyncExitStack() as stack:
        yield Lab(tmp_path, stack, certificate(tmp_path, "grandmaster"))
