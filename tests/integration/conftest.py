"""
Real parts for every integration test. What is not installed fails the test and names the Debian package.

A bed is slow to start (its first good path delay comes after about 15 s), so tests share it: whoever stops, restarts or
delays something in `ptp_pair` makes a `PtpBed` of his own instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from timesyncd.testbed.bed import PtpBed
from timesyncd.testbed.broker import Mosquitto


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
