"""The complete system on one machine: two grandmasters, two nodes, a broker, a hub and a job, until it is ended."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from timesyncd.cli.render import DaemonReplies, DemoNodeState, bound_now_ns, demo_screen, unready_reason
from timesyncd.client.api import fetch_all
from timesyncd.errors import TimesyncdError, Unreachable
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import leftovers, new_marker
from timesyncd.simulation.bed.job import rank_process
from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l
from timesyncd.simulation.grandmaster import SCENARIOS, Device, SnmpAgent
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

FIRST_SAMPLE_WITHIN_S = 90.0

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: By node: the true offset of its clock, in ns. node-b receives its grandmaster's messages through a relay that shifts
#: them by 300 us.
TRUE_OFFSETS_NS = {"node-a": 0, "node-b": -300_000}

#: By simulated grandmaster: its scenario.
GRANDMASTERS = {"gm-1": "locked", "gm-2": "antenna-cut"}


@dataclass
class DemoResult:
    """
    The demo's result as JSON. `gm_bound_ns` is the largest of the nodes' medians. `contained` and
    `contained_without_offset` are shares of all nodes' samples, from 0 to 1. None: no data.
    """

    page: str
    ptp: str
    nodes: int
    samples_stored: int = 0
    gm_bound_ns: int | None = None
    contained: float | None = None
    contained_without_offset: float | None = None
    alignment_ns: int | None = None
    sync_overhead: float | None = None
    straggler_rank: int | None = None
    leftovers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A node's daemon and the true offset of its clock."""

    daemon: DaemonProcess
    true_offset_ns: int


@dataclass(frozen=True, slots=True)
class DemoSystem:
    """
    The running system. The first node's daemon polls the grandmasters and is the hub; `ptp` is "real" or "simulated".
    """

    ptp: str
    nodes: list[DemoNode]
    ranks: list[subprocess.Popen[bytes]]

    @property
    def page(self) -> str:
        return self.nodes[0].daemon.page

    def check(self) -> None:
        """Raises TimesyncdError if a daemon or a rank has ended."""
        for node in self.nodes:
            node.daemon.check()
        for rank, process in enumerate(self.ranks):
            if process.poll() is not None:
                raise TimesyncdError(f"rank {rank} of the job ended with status {process.returncode}")


async def demo(seconds: float | None, as_json: bool) -> int:
    """
    Returns the exit status: 0, or 130 if the demo was ended before every node had a valid sample.

    Ctrl-C, SIGTERM and SIGHUP end it in order, even when they are repeated. Raises TimesyncdError if not every node had
    a valid sample within FIRST_SAMPLE_WITHIN_S.
    """
    ended = _ended_by_signals()
    marker = new_marker()
    async with AsyncExitStack() as stack:
        system = await _start(stack, marker)
        result = DemoResult(system.page, system.ptp, len(system.nodes))
        valid = await _watch(system, seconds, None if as_json else Console(highlight=False), ended)
        if valid and as_json:
            _add_hub_results(result, system.page)
            _add_store_results(result, system.nodes)
    result.leftovers = leftovers(marker)
    if as_json and valid:
        print(json.dumps(asdict(result)))
    else:
        _print_progress("ended; leftovers: " + ("; ".join(result.leftovers) or "none"))
    return 0 if valid else 130


def _ended_by_signals() -> asyncio.Event:
    """
    Set by END_SIGNALS. The handlers outlive the loop, unlike asyncio's: a second Ctrl-C may come during the clean-up.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def end(_number: int, _frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    for number in END_SIGNALS:
        signal.signal(number, end)
    return ended


def _print_progress(text: str) -> None:
    """To stderr: stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


async def _start(stack: AsyncExitStack, marker: str) -> DemoSystem:
    """Starts all parts. A part that this machine cannot run is omitted or simulated, with a message."""
    _print_progress("starting; the first valid samples arrive after about 15 s")
    _install_missing_packages()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timesyncd-demo-")))
    broker = _broker(stack, marker)
    true_offsets = TRUE_OFFSETS_NS if broker else {"node-b": TRUE_OFFSETS_NS["node-b"]}
    devices = {name: _device(name, scenario) for name, scenario in GRANDMASTERS.items()}
    ptp, addresses = await _ptp(stack, true_offsets, folder, marker, devices["gm-1"].clock_identity)
    grandmasters = {name: await _serve(stack, device) for name, device in devices.items()}
    nodes: list[DemoNode] = []
    for name, true_offset_ns in true_offsets.items():
        daemon = DaemonProcess(name, folder / name, addresses[name], marker, broker)
        if not nodes:
            daemon.hub, daemon.grandmasters = True, grandmasters
        daemon.configure()
        daemon.launch()
        stack.callback(daemon.stop)
        nodes.append(DemoNode(daemon, true_offset_ns))
    return DemoSystem(ptp, nodes, _job(stack, (nodes[0].daemon, nodes[-1].daemon), marker))


def _install_missing_packages() -> None:
    """As root; other users get what is already installed."""
    missing = host.missing_packages()
    if not missing or os.geteuid() != 0:
        return
    _print_progress(f"installing Debian packages: {' '.join(missing)}")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        _print_progress(f"the packages could not be installed: {error}")
    if "mosquitto" in missing and Path("/run/systemd/system").exists():
        _print_progress("disabling the service of the package mosquitto, which the demo does not need")
        subprocess.run(["systemctl", "disable", "--now", "--quiet", "mosquitto"], check=False)


def _broker(stack: AsyncExitStack, marker: str) -> Mosquitto | None:
    try:
        return stack.enter_context(Mosquitto(marker=marker))
    except TimesyncdError as error:
        _print_progress(f"no broker: the demo runs one node with both ranks: {error}")
        return None


async def _ptp(
    stack: AsyncExitStack, true_offsets: dict[str, int], folder: Path, marker: str, identity: bytes
) -> tuple[str, dict[str, str]]:
    """
    Returns "real" or "simulated", and the address of each node's ptp4l. A true offset other than 0 needs a relay. The
    nodes follow a clock of this identity: that of a simulated grandmaster, so that the chain is whole.
    """
    written = f"{identity[:3].hex()}.{identity[3:5].hex()}.{identity[5:].hex()}"
    direct = tuple(name for name, offset_ns in true_offsets.items() if offset_ns == 0)
    relayed = tuple(name for name, offset_ns in true_offsets.items() if offset_ns != 0)
    try:
        bed = stack.enter_context(PtpBed(direct=direct, relayed=relayed, marker=marker, identity=written))
    except TimesyncdError as error:
        _print_progress(f"no real PTP on this machine: ptp4l is simulated: {error}")
        addresses = {name: folder / f"{name}.ptp4l" for name in true_offsets}
        for name, address in addresses.items():
            simulated = SimulatedPtp4l(address, true_offsets[name], grandmaster_identity=identity)
            await stack.enter_async_context(simulated)
        return "simulated", {name: str(address) for name, address in addresses.items()}
    for name in relayed:
        bed.set_relay(name, x_ns=-true_offsets[name])
    return "real", {name: process.uds_address for name, process in bed.nodes.items()}


def _device(name: str, scenario: str) -> Device:
    device = Device(name=name, serial=f"DEMO-{name}", kind="tp5000e")  # this model serves a table of alarms
    SCENARIOS[scenario](device)
    return device


async def _serve(stack: AsyncExitStack, device: Device) -> int:
    """Starts a simulated grandmaster; returns its SNMP port."""
    agent = await stack.enter_async_context(SnmpAgent(device))
    return agent.port


def _job(stack: AsyncExitStack, daemons: Sequence[DaemonProcess], marker: str) -> list[subprocess.Popen[bytes]]:
    """Starts one rank on each daemon's node."""
    ends = Pipe()
    with ends[0], ends[1]:
        return [
            stack.enter_context(rank_process(rank, end, daemon.folder, marker))
            for rank, (end, daemon) in enumerate(zip(ends, daemons, strict=True))
        ]


async def _watch(system: DemoSystem, seconds: float | None, view: Console | None, ended: asyncio.Event) -> bool:
    """
    Watches until `seconds` after every node had a valid sample (None: without end), or until `ended`.

    Returns whether every node had one. Raises TimesyncdError if not every node had one within FIRST_SAMPLE_WITHIN_S.
    """
    loop = asyncio.get_running_loop()
    deadline, end = loop.time() + FIRST_SAMPLE_WITHIN_S, None
    pending = {node.daemon.name for node in system.nodes}
    _print_progress(f"status page: {system.page}")
    with Live(console=view or Console(quiet=True), auto_refresh=False) as live:
        while not ended.is_set() and (end is None or loop.time() < end):
            states = await asyncio.to_thread(_node_states, system.nodes)
            live.update(demo_screen(states, system.ptp, system.page), refresh=True)
            system.check()
            pending -= {each.name for each in states if _has_bound(each.replies)}
            if end is None and not pending:
                end = loop.time() + (math.inf if seconds is None else seconds)
                if view is None:
                    _print_progress("every node has a valid sample")
            if end is None and loop.time() > deadline:
                reasons = "; ".join(unready_reason(each) for each in states)
                raise TimesyncdError(f"not every node had a valid sample within {FIRST_SAMPLE_WITHIN_S:g} s: {reasons}")
            await _pause(min(1.0, (end or math.inf) - loop.time()), ended)
    return end is not None


async def _pause(seconds: float, ended: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await ended.wait()
    except TimeoutError:
        pass


def _node_states(nodes: Sequence[DemoNode]) -> list[DemoNodeState]:
    return [DemoNodeState(node.daemon.name, _replies(node.daemon), node.true_offset_ns) for node in nodes]


def _has_bound(replies: DaemonReplies | None) -> bool:
    """Whether the node has had a valid sample; it may be in holdover since."""
    return replies is not None and bound_now_ns(replies.node.gm, replies.node.age_ns) is not None


def _replies(daemon: DaemonProcess) -> DaemonReplies | None:
    try:
        return DaemonReplies.of(fetch_all(daemon.page))
    except Unreachable:
        return None


def _add_hub_results(result: DemoResult, page: str) -> None:
    for job in DaemonReplies.of(fetch_all(page)).jobs:
        result.alignment_ns = job.alignment_ns
        result.sync_overhead = job.sync_overhead
        result.straggler_rank = job.straggler_rank


def _add_store_results(result: DemoResult, nodes: Sequence[DemoNode]) -> None:
    """Compares the stored samples with the true offsets, which checks the path from the wire to the disk."""
    medians, contained, contained_without = [], [], []
    for node in nodes:
        rows = list(history.samples(StoreLocation(node.daemon.store), f"ptp-{node.daemon.name}", 0, 2**62))
        result.samples_stored += len(rows)
        bounded = [(row["gm_bound_ns"], row["offset_ns"]) for row in rows if row["gm_bound_ns"] is not None]
        if bounded:
            medians.append(round(statistics.median(bound_ns for bound_ns, _ in bounded)))
        for bound_ns, offset_ns in bounded:
            contained.append(abs(node.true_offset_ns) <= bound_ns)
            contained_without.append(abs(node.true_offset_ns - offset_ns) <= bound_ns - abs(offset_ns))
    if medians:
        result.gm_bound_ns = max(medians)
        result.contained = statistics.fmean(contained)
        result.contained_without_offset = statistics.fmean(contained_without)
