"""The whole system on one machine: two grandmasters, two nodes, a broker, a hub and a job, for as long as somebody looks."""

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
from timesyncd.store.engine import Place

FIRST_SAMPLE_WITHIN_S = 90.0

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: True offsets. Node-a hears its grandmaster as it is; node-b through a relay, which makes it look 300 us ahead.
TRUE_OFFSETS_NS = {"node-a": 0, "node-b": -300_000}

#: Each in a state of its own.
GRANDMASTERS = {"gm-1": "locked", "gm-2": "antenna-cut"}


@dataclass
class DemoResult:
    """
    The demo's last line. `gm_bound_ns` is the median of the node where it is largest; shares are of samples of all nodes.
    None = there was nothing to compute it from.
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
    """A daemon of the demo and the true offset of its clock."""

    daemon: DaemonProcess
    true_offset_ns: int


@dataclass(frozen=True, slots=True)
class DemoSystem:
    """What runs. The first node's daemon polls the grandmasters and has the hub; `ptp` is "real" or "simulated"."""

    ptp: str
    nodes: list[DemoNode]
    ranks: list[subprocess.Popen[bytes]]

    @property
    def page(self) -> str:
        return self.nodes[0].daemon.page

    def check(self) -> None:
        """Raises TimesyncdError when something has ended by itself."""
        for node in self.nodes:
            node.daemon.check()
        for rank, process in enumerate(self.ranks):
            if process.poll() is not None:
                raise TimesyncdError(f"rank {rank} of the job ended with status {process.returncode}")


async def demo(seconds: float | None, as_json: bool) -> int:
    """
    The exit status: 0, or 130 when it was ended before every node had a valid sample. Ctrl-C, SIGTERM and SIGHUP end it in
    order, whenever and however often they come. Raises TimesyncdError when no valid sample of every node came in time.
    """
    ended = _ended_by_signals()
    marker = new_marker()
    async with AsyncExitStack() as stack:
        scene = await _start(stack, marker)
        result = DemoResult(scene.page, scene.ptp, len(scene.nodes))
        valid = await _look(scene, seconds, None if as_json else Console(highlight=False), ended)
        if valid and as_json:
            _ask_hub(result, scene.page)
            _ask_stores(result, scene.nodes)
    result.leftovers = leftovers(marker)
    if as_json and valid:
        print(json.dumps(asdict(result)))
    else:
        _say("ended; left behind: " + ("; ".join(result.leftovers) or "nothing"))
    return 0 if valid else 130


def _ended_by_signals() -> asyncio.Event:
    """Their handlers outlive the loop (asyncio's own do not): a second Ctrl-C may come when the first is nearly done."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def end(_number: int, _frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ended.set)

    for number in END_SIGNALS:
        signal.signal(number, end)
    return ended


def _say(text: str) -> None:
    """Progress; stdout is the result's."""
    print(text, file=sys.stderr, flush=True)


async def _start(stack: AsyncExitStack, marker: str) -> DemoSystem:
    """What cannot be had here is left out or simulated, and said."""
    _say("starting; the first valid samples come after some 15 s")
    _install_what_is_missing()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timesyncd-demo-")))
    broker = _broker(stack, marker)
    true_offsets = TRUE_OFFSETS_NS if broker else {"node-b": TRUE_OFFSETS_NS["node-b"]}
    ptp, addresses = await _ptp(stack, true_offsets, folder, marker)
    units = {name: await _grandmaster(stack, name, scenario) for name, scenario in GRANDMASTERS.items()}
    nodes: list[DemoNode] = []
    for name, true_offset_ns in true_offsets.items():
        daemon = DaemonProcess(name, folder / name, addresses[name], marker, broker)
        if not nodes:
            daemon.hub, daemon.grandmasters = True, units
        daemon.configure()
        daemon.launch()
        stack.callback(daemon.stop)
        nodes.append(DemoNode(daemon, true_offset_ns))
    return DemoSystem(ptp, nodes, _job(stack, (nodes[0].daemon, nodes[-1].daemon), marker))


def _install_what_is_missing() -> None:
    """Only root may."""
    missing = host.missing_packages()
    if not missing or os.geteuid() != 0:
        return
    _say(f"installing Debian packages: {' '.join(missing)}")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        _say(f"they could not be installed: {error}")
    if "mosquitto" in missing and Path("/run/systemd/system").exists():
        _say("the package's own mosquitto service is not needed here: switched off")
        subprocess.run(["systemctl", "disable", "--now", "--quiet", "mosquitto"], check=False)


def _broker(stack: AsyncExitStack, marker: str) -> Mosquitto | None:
    try:
        return stack.enter_context(Mosquitto(marker=marker))
    except TimesyncdError as error:
        _say(f"no broker, so one node alone, with both ranks on it: {error}")
        return None


async def _ptp(
    stack: AsyncExitStack, true_offsets: dict[str, int], folder: Path, marker: str
) -> tuple[str, dict[str, str]]:
    """ "real" or "simulated", and where each node's ptp4l listens. A true offset that is not 0 needs a relay."""
    direct = tuple(name for name, offset_ns in true_offsets.items() if offset_ns == 0)
    relayed = tuple(name for name, offset_ns in true_offsets.items() if offset_ns != 0)
    try:
        bed = stack.enter_context(PtpBed(direct=direct, relayed=relayed, marker=marker))
    except TimesyncdError as error:
        _say(f"no real PTP here, so its answers are simulated: {error}")
        addresses = {name: folder / f"{name}.ptp4l" for name in true_offsets}
        for name, address in addresses.items():
            await stack.enter_async_context(SimulatedPtp4l(address, true_offsets[name]))
        return "simulated", {name: str(address) for name, address in addresses.items()}
    for name in relayed:
        bed.set_relay(name, x_ns=-true_offsets[name])
    return "real", {name: process.uds_address for name, process in bed.nodes.items()}


async def _grandmaster(stack: AsyncExitStack, name: str, scenario: str) -> int:
    """Its SNMP port."""
    device = Device(name=name, serial=f"DEMO-{name}", kind="tp5000e")  # the family that serves its alarms
    SCENARIOS[scenario](device)
    agent = await stack.enter_async_context(SnmpAgent(device))
    return agent.port


def _job(stack: AsyncExitStack, daemons: Sequence[DaemonProcess], marker: str) -> list[subprocess.Popen[bytes]]:
    """One rank on each daemon's node."""
    ends = Pipe()
    with ends[0], ends[1]:
        return [
            stack.enter_context(rank_process(rank, end, daemon.folder, marker))
            for rank, (end, daemon) in enumerate(zip(ends, daemons, strict=True))
        ]


async def _look(scene: DemoSystem, seconds: float | None, view: Console | None, ended: asyncio.Event) -> bool:
    """
    Until so long after every node had a valid sample (None: for ever), or until `ended`. Returns whether they all had one;
    raises TimesyncdError when they do not within 90 s: the first good path delay comes after some 15 s.
    """
    loop = asyncio.get_running_loop()
    deadline, end = loop.time() + FIRST_SAMPLE_WITHIN_S, None
    waited_for = {node.daemon.name for node in scene.nodes}
    _say(f"status page: {scene.page}")
    with Live(console=view or Console(quiet=True), auto_refresh=False) as live:
        while not ended.is_set() and (end is None or loop.time() < end):
            seen = await asyncio.to_thread(_seen, scene.nodes)
            live.update(demo_screen(seen, scene.ptp, scene.page), refresh=True)
            scene.check()
            waited_for -= {each.name for each in seen if _has_bound(each.answers)}
            if end is None and not waited_for:
                end = loop.time() + (math.inf if seconds is None else seconds)
                if view is None:
                    _say("every node has a valid sample")
            if end is None and loop.time() > deadline:
                reasons = "; ".join(unready_reason(each) for each in seen)
                raise TimesyncdError(f"no valid sample of every node within {FIRST_SAMPLE_WITHIN_S:g} s: {reasons}")
            await _pause(min(1.0, (end or math.inf) - loop.time()), ended)
    return end is not None


async def _pause(seconds: float, ended: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await ended.wait()
    except TimeoutError:
        pass


def _seen(nodes: Sequence[DemoNode]) -> list[DemoNodeState]:
    return [DemoNodeState(node.daemon.name, _answers(node.daemon), node.true_offset_ns) for node in nodes]


def _has_bound(answers: DaemonReplies | None) -> bool:
    """A valid sample came: as the view shows it, also when the node fell into holdover since."""
    return answers is not None and bound_now_ns(answers.node.gm, answers.node.age_ns) is not None


def _answers(daemon: DaemonProcess) -> DaemonReplies | None:
    try:
        return DaemonReplies.of(fetch_all(daemon.page))
    except Unreachable:
        return None


def _ask_hub(result: DemoResult, page: str) -> None:
    for job in DaemonReplies.of(fetch_all(page)).jobs:
        result.alignment_ns = job.alignment_ns
        result.sync_overhead = job.sync_overhead
        result.straggler_rank = job.straggler_rank


def _ask_stores(result: DemoResult, nodes: Sequence[DemoNode]) -> None:
    """What the daemons stored, held against the truth: the end of the whole way from the wire to the disk."""
    medians, held, held_without = [], [], []
    for node in nodes:
        rows = list(history.samples(Place(node.daemon.store), f"ptp-{node.daemon.name}", 0, 2**62))
        result.samples_stored += len(rows)
        bounded = [(row["gm_bound_ns"], row["offset_ns"]) for row in rows if row["gm_bound_ns"] is not None]
        if bounded:
            medians.append(round(statistics.median(bound_ns for bound_ns, _ in bounded)))
        for bound_ns, offset_ns in bounded:
            held.append(abs(node.true_offset_ns) <= bound_ns)
            held_without.append(abs(node.true_offset_ns - offset_ns) <= bound_ns - abs(offset_ns))
    if medians:
        result.gm_bound_ns = max(medians)
        result.contained = statistics.fmean(held)
        result.contained_without_offset = statistics.fmean(held_without)
