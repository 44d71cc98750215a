"""The ptp4l driver against a real ptp4l pair."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from timesyncd.drivers.ptp4l.ptp4l import Ptp4l, Ptp4lOptions
from timesyncd.errors import Unreachable
from timesyncd.sample import ClockSample, NoSample, PortState, Reading
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import BedProcess, PtpBed
from timesyncd.simulation.bed.ptp4l import DOMAIN

pytestmark = pytest.mark.integration


def driver_of(bed: PtpBed, folder: Path, domain: int = DOMAIN) -> Ptp4l:
    return Ptp4l("a", Ptp4lOptions(uds_address=Path(bed.nodes["a"].uds_address), domain=domain), folder)


async def until(driver: Ptp4l, holds: Callable[[Reading], bool], within_s: float = 60.0) -> Reading:
    """The first reading of which it holds."""
    deadline = time.monotonic() + within_s
    seen: list[Reading] = []
    while time.monotonic() < deadline:
        for reading in await driver.poll():
            if holds(reading):
                return reading
            seen.append(reading)
        await asyncio.sleep(driver.poll_interval_s)
    raise AssertionError(f"never came: {seen[-3:]}")


def is_good(reading: Reading) -> bool:
    return isinstance(reading, ClockSample) and reading.path_delay_ns > 0


def pmc(bed: PtpBed, folder: Path, question: str) -> str:
    """What linuxptp's own client prints."""
    server = bed.nodes["a"].uds_address
    command = [host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", server, "-i", str(folder / "pmc"), question]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def test_a_sample_names_the_process_that_replied(ptp_pair: PtpBed, tmp_path: Path) -> None:
    """By the kernel's word, so that the doubt about this ptp4l's steering ends, and not that about another one."""
    driver = driver_of(ptp_pair, tmp_path)
    await driver.open()
    taken = await until(driver, is_good)
    await driver.close()

    assert isinstance(taken, ClockSample)
    assert taken.daemon_pid == ptp_pair.nodes["a"].pid


async def test_a_real_pair_gives_samples_at_the_sync_rate(ptp_pair: PtpBed, tmp_path: Path) -> None:
    """Offset and delay are small, the clock is the system's, and eight Syncs a second are followed."""
    driver = driver_of(ptp_pair, tmp_path)
    await driver.open()
    taken = await until(driver, is_good)
    interval_s = driver.poll_interval_s
    await driver.close()

    assert isinstance(taken, ClockSample)
    assert (taken.clock, taken.port_state, taken.steps_removed) == ("realtime", PortState.UNCALIBRATED, 1)
    assert (taken.clock_class, taken.clock_accuracy, taken.ptp_timescale) == (6, 0x21, False)
    assert abs(taken.offset_ns) < 1_000_000
    assert 0 < taken.path_delay_ns < 1_000_000
    assert 0.0625 <= interval_s <= 0.25
    assert list(tmp_path.iterdir()) == []


async def test_the_driver_reads_what_pmc_reads(ptp_pair: PtpBed, tmp_path: Path) -> None:
    """Identities as linuxptp's own client prints them."""
    driver = driver_of(ptp_pair, tmp_path)
    await driver.open()
    taken = await until(driver, is_good)
    await driver.close()
    shown = await asyncio.to_thread(pmc, ptp_pair, tmp_path, "GET PARENT_DATA_SET")

    assert isinstance(taken, ClockSample)
    assert re.search(rf"parentPortIdentity\s+{taken.parent_identity}-1\n", shown)
    assert re.search(rf"grandmasterIdentity\s+{taken.grandmaster_identity}\n", shown)


#: 802.1AS as in a car: the ports' roles are fixed, and no Announce is sent.
AUTOMOTIVE = {
    "time_stamping": "software", "free_running": 1, "domainNumber": DOMAIN + 1, "transportSpecific": "0x1",
    "network_transport": "L2", "delay_mechanism": "P2P", "BMCA": "noop", "inhibit_announce": 1, "asCapable": "true",
    "neighborPropDelayThresh": 100_000_000, "logSyncInterval": -3, "logMinPdelayReqInterval": -3,
}  # fmt: skip


def automotive(process: BedProcess, folder: Path, role: dict[str, int]) -> tuple[subprocess.Popen[bytes], Path]:
    """A second ptp4l beside one of the bed's, on the same link, and its socket."""
    folder.mkdir()
    uds, config = folder / "uds", folder / "cfg"
    lines = [f"{key} {value}" for key, value in (AUTOMOTIVE | role | {"uds_address": uds}).items()]
    config.write_text("\n".join(["[global]", *lines, ""]))
    links = subprocess.run(
        [*process.enter(), host.find("ip"), "-o", "link"], check=True, capture_output=True, text=True
    )
    interface = next(name for name in re.findall(r"\d+: ([^:@]+)", links.stdout) if name != "lo")
    command = [*process.enter(), host.find("ptp4l"), "-f", str(config), "-i", interface, "-m", "-q"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(host.dying_with_parent(command), stdout=log, stderr=log), uds


async def test_a_slave_without_announce_names_no_clock(ptp_pair: PtpBed, tmp_path: Path) -> None:
    """ptp4l names itself as parent and grandmaster; the bound is against a parent whose identity is unknown."""
    master, _ = automotive(ptp_pair.grandmaster, tmp_path / "master", {"masterOnly": 1})
    slave, uds = automotive(ptp_pair.nodes["a"], tmp_path / "slave", {"slaveOnly": 1, "ignore_source_id": 1})
    try:
        options = Ptp4lOptions(uds_address=uds, domain=DOMAIN + 1, transport_specific=1)
        deadline = time.monotonic() + 60
        while not uds.exists():
            assert time.monotonic() < deadline, (tmp_path / "slave" / "log").read_text()
            await asyncio.sleep(0.05)
        driver = Ptp4l("a", options, tmp_path)
        await driver.open()
        taken = await until(driver, lambda reading: isinstance(reading, ClockSample))
        await driver.close()
    finally:
        for process in (master, slave):
            process.kill()
            process.wait()

    assert isinstance(taken, ClockSample)
    assert (taken.parent_identity, taken.grandmaster_identity, taken.port_state) == (None, None, PortState.SLAVE)
    assert abs(taken.offset_ns) < 10_000_000


async def test_another_domain_is_silence(ptp_pair: PtpBed, tmp_path: Path) -> None:
    """A real ptp4l drops the questions of another domain, and the driver states what to look at."""
    driver = driver_of(ptp_pair, tmp_path, domain=DOMAIN + 1)

    with pytest.raises(Unreachable, match=f"they are {DOMAIN + 1} and 0 here"):
        await driver.open()
    await driver.close()


async def test_a_frozen_grandmaster_and_a_restarted_node(tmp_path: Path) -> None:
    """
    While the grandmaster is stopped there is no sample, though ptp4l repeats its last offset; when it goes on, samples come
    again. A killed and restarted ptp4l is reported as a restart, and followed.
    """
    with PtpBed(direct=("a",)) as bed:
        driver = driver_of(bed, tmp_path)
        await driver.open()
        await until(driver, is_good)
        os.kill(bed.grandmaster.pid, signal.SIGSTOP)
        overdue = await until(driver, lambda reading: isinstance(reading, NoSample), within_s=60)
        listening = await until(
            driver, lambda reading: isinstance(reading, NoSample) and reading.port_state is PortState.LISTENING
        )
        os.kill(bed.grandmaster.pid, signal.SIGCONT)
        await until(driver, is_good)
        bed.restart("a")
        reported = await until(driver, lambda reading: isinstance(reading, NoSample) and reading.restarted, within_s=60)
        await until(driver, is_good)
        await driver.close()

    assert isinstance(overdue, NoSample)
    assert overdue.reason.startswith("no Sync for ")
    assert isinstance(listening, NoSample)
    assert listening.reason == "no Sync received yet: the port is in state LISTENING"
    assert isinstance(reported, NoSample)
    assert reported.reason == "ptp4l restarted"
