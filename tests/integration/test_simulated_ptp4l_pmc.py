"""The simulated ptp4l, asked by linuxptp's own client."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

import pytest

from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.ptp4l import DOMAIN
from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l

pytestmark = pytest.mark.integration


async def test_pmc_reads_the_simulated_ptp4l() -> None:
    """What linuxptp's client prints is the simulation's configuration, give or take its noise."""
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder) / "ptp4l"
        async with SimulatedPtp4l(address, true_offset_ns=-300_000):
            await asyncio.sleep(2)  # two Syncs, with time to spare
            command = [host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", str(address), "-i", f"{folder}/pmc"]
            pmc = await asyncio.create_subprocess_exec(
                *command, "GET TIME_STATUS_NP", "GET PORT_STATS_NP", stdout=asyncio.subprocess.PIPE
            )
            words = (await pmc.communicate())[0].decode().split()
    shown = dict(itertools.pairwise(words))

    assert -305_000 <= int(shown["master_offset"]) <= -295_000
    assert shown["gmPresent"] == "true"
    assert int(shown["rx_Sync"]) >= 2
    assert not address.exists()
