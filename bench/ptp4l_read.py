"""
Claim: reading TIME_STATUS_NP natively takes at most 1/300 of the wall time and 1/20 of the CPU time of running `pmc`.

Makes a real ptp4l pair in network namespaces (see timesyncd/testbed). Several runs, alternating; prints the ratios. Natively
it is measured twice: back to back, and at the pace of eight a second, where each read finds cold caches and wakes a core.
pmc is run back to back; it waits 100 ms in each run.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timesyncd.drivers.ptp4l._management import ALL_PORTS, ManagementId
from timesyncd.drivers.ptp4l._socket import ManagementClient, new_requester
from timesyncd.errors import TimesyncdError
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.ptp4l import DOMAIN

RUNS = 5
BACK_TO_BACK_READS = 1000
PACED_READS = 40
PACE_S = 0.125
PMC_READS = 10
KINDS = ("native back to back", "native eight a second")


def cpu_s() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(processes) for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def native(server: Path, folder: Path, reads: int, pause_s: float) -> tuple[float, float]:
    """Median wall seconds and mean CPU seconds of a read; the pauses' own CPU is taken out."""
    questions = ManagementClient(folder / "native", server, new_requester(DOMAIN, 0))
    walls: list[float] = []
    before = cpu_s()
    for _ in range(reads):
        await asyncio.sleep(pause_s)
    pausing, before = cpu_s() - before, cpu_s()
    for _ in range(reads):
        began = time.perf_counter()
        await questions.query([(ManagementId.TIME_STATUS_NP, ALL_PORTS)])
        walls.append(time.perf_counter() - began)
        await asyncio.sleep(pause_s)
    used = cpu_s() - before - pausing
    questions.close()
    return statistics.median(walls), used / reads


def with_pmc(server: Path, folder: Path) -> tuple[float, float]:
    """The same through a subprocess, as one would without a native client."""
    command = [host.find("pmc"), "-u", "-b", "0", "-d", str(DOMAIN), "-s", str(server), "-i", str(folder / "pmc")]
    walls: list[float] = []
    before = cpu_s()
    for _ in range(PMC_READS):
        began = time.perf_counter()
        subprocess.run([*command, "GET TIME_STATUS_NP"], check=True, stdout=subprocess.PIPE)
        walls.append(time.perf_counter() - began)
    return statistics.median(walls), (cpu_s() - before) / PMC_READS


def main() -> int:
    wall_ratios: list[list[float]] = [[], []]
    cpu_ratios: list[list[float]] = [[], []]
    with PtpBed(direct=("a",)) as bed, tempfile.TemporaryDirectory() as folder:
        server = Path(bed.nodes["a"].uds_address)
        for run in range(1, RUNS + 1):
            pmc_wall_s, pmc_cpu_s = with_pmc(server, Path(folder))
            print(f"run {run}: pmc {pmc_wall_s * 1e3:.1f} ms wall, {pmc_cpu_s * 1e3:.2f} ms CPU", end="")
            for kind, (reads, pause_s) in enumerate(((BACK_TO_BACK_READS, 0.0), (PACED_READS, PACE_S))):
                wall_s, used_s = asyncio.run(native(server, Path(folder), reads, pause_s))
                wall_ratios[kind].append(pmc_wall_s / wall_s)
                cpu_ratios[kind].append(pmc_cpu_s / used_s)
                print(f"; {KINDS[kind]} {wall_s * 1e6:.0f} us wall, {used_s * 1e6:.0f} us CPU", end="")
            print()
    for kind, name in enumerate(KINDS):
        wall, used = statistics.median(wall_ratios[kind]), statistics.median(cpu_ratios[kind])
        print(f"ptp4l_read, {name}: {wall:.0f}x less wall time (goal 300x), {used:.0f}x less CPU (goal 20x) than pmc")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TimesyncdError as error:
        sys.exit(f"ptp4l_read: {error}")
