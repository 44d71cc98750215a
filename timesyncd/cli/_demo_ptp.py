"""The demo's PTP: a real ptp4l grandmaster with its slaves, or simulated ones, with a true offset that can be moved."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol

from timesyncd.errors import TimesyncdError
from timesyncd.messages.simulation import StatedOffset
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.ptp4l import DOMAIN
from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l

#: pmc waits for a reply of every port that it asked; ptp4l answers within milliseconds.
PMC_WITHIN_S = 5.0


class DemoPtp(Protocol):
    """`kind` is "real" or "simulated"; `addresses` has the socket of each node's ptp4l."""

    @property
    def kind(self) -> str: ...

    @property
    def addresses(self) -> Mapping[str, str]: ...

    async def announce(self, clock_class: int) -> None:
        """The grandmaster announces this class from now on."""

    def move(self, node: str, rate_ppb: int) -> None:
        """From now on the true offset of this node grows by this rate."""

    def offset(self, node: str) -> StatedOffset:
        """The true offset of this node now."""


class RealPtp:
    """On a `PtpBed`: nodes behind a relay can be moved, and the others have the grandmaster's own clock."""

    kind = "real"

    def __init__(self, bed: PtpBed) -> None:
        self._bed = bed
        self.addresses = {name: process.uds_address for name, process in bed.nodes.items()}

    async def announce(self, clock_class: int) -> None:
        """
        By pmc, as traceable as the simulated grandmaster reports; the timescale stays arbitrary, since it is CLOCK_REALTIME.
        Where it fails the grandmaster announces what it did, which only the story misses.
        """
        settings = (
            f"SET GRANDMASTER_SETTINGS_NP clockClass {clock_class} clockAccuracy 0x21 offsetScaledLogVariance 0xffff "
            "currentUtcOffset 37 leap61 0 leap59 0 currentUtcOffsetValid 0 ptpTimescale 0 timeTraceable 1 "
            "frequencyTraceable 1 timeSource 0xa0"
        )
        address = self._bed.grandmaster.uds_address
        command = ["-u", "-b", "0", "-d", str(DOMAIN), "-s", address, "-i", f"{address}.pmc", settings]
        with suppress(OSError, TimesyncdError, TimeoutError):
            pmc = await asyncio.create_subprocess_exec(
                host.find("pmc"),
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(PMC_WITHIN_S):
                    await pmc.wait()
            finally:
                with suppress(ProcessLookupError):
                    pmc.kill()

    def move(self, node: str, rate_ppb: int) -> None:
        self._bed.set_relay(node, rate_ppb=-rate_ppb)

    def offset(self, node: str) -> StatedOffset:
        now_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        return StatedOffset(
            realtime_ns=now_ns,
            offset_ns=self._bed.true_offset_ns(node, now_ns),
            rate_ppb=self._bed.true_rate_ppb(node),
        )


class SimulatedPtp:
    """Of one `SimulatedPtp4l` for each node, which all follow the same grandmaster."""

    kind = "simulated"

    def __init__(self, ports: Mapping[str, SimulatedPtp4l], addresses: Mapping[str, str]) -> None:
        self._ports = ports
        self.addresses = addresses
        self._rates_ppb = dict.fromkeys(ports, 0)

    async def announce(self, clock_class: int) -> None:
        for port in self._ports.values():
            port.announce(clock_class)

    def move(self, node: str, rate_ppb: int) -> None:
        self._ports[node].move(rate_ppb)
        self._rates_ppb[node] = rate_ppb

    def offset(self, node: str) -> StatedOffset:
        now_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        offset_ns = self._ports[node].true_offset_ns(now_ns)
        return StatedOffset(realtime_ns=now_ns, offset_ns=offset_ns, rate_ppb=self._rates_ppb[node])


async def start_real(
    stack: AsyncExitStack, nodes: Sequence[str], moved: Mapping[str, int], marker: str, identity: bytes
) -> RealPtp:
    """
    `moved` are the nodes that can be moved, with their first true offset. All follow a clock of this identity: that of a
    simulated grandmaster, so that the chain is whole. Raises TimesyncdError where the machine cannot run it.
    """
    written = f"{identity[:3].hex()}.{identity[3:5].hex()}.{identity[5:].hex()}"
    direct = tuple(name for name in nodes if name not in moved)
    bed = PtpBed(direct=direct, relayed=tuple(moved), marker=marker, identity=written, is_transparent=True)
    stack.enter_context(bed)
    for name, offset_ns in moved.items():
        bed.set_relay(name, x_ns=-offset_ns)
    return RealPtp(bed)


async def start_simulated(
    stack: AsyncExitStack, nodes: Sequence[str], moved: Mapping[str, int], folder: Path, identity: bytes
) -> SimulatedPtp:
    """The same, without ptp4l."""
    addresses = {name: str(folder / f"{name}.ptp4l") for name in nodes}
    ports: dict[str, SimulatedPtp4l] = {}
    for name, address in addresses.items():
        port = SimulatedPtp4l(Path(address), moved.get(name, 0), is_traceable=True, grandmaster_identity=identity)
        ports[name] = await stack.enter_async_context(port)
    return SimulatedPtp(ports, addresses)
