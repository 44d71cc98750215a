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
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from types import FrameType
from typing import Literal

from timesyncd.cli._demo_ptp import DemoPtp, start_real, start_simulated
from timesyncd.cli._demo_story import (
    ASSUMED_RATE_PPB,
    BRIDGING_S,
    GRANDMASTER_SPEED,
    RECOVERY_S,
    StoryActs,
    StoryEvent,
    announcements,
    due,
    line,
    story_of,
)
from timesyncd.cli._demo_view import LiveView, StoryNotes, live_view, print_progress
from timesyncd.cli.render import DaemonReplies, DemoNodeState, bound_now_ns, unready_reason
from timesyncd.client.api import fetch_all
from timesyncd.errors import TimesyncdError, Unreachable
from timesyncd.messages.simulation import SimulationFile
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import leftovers, new_marker
from timesyncd.simulation.bed.job import WORK_S, rank_process, set_work
from timesyncd.simulation.grandmaster import SCENARIOS, Device, SnmpAgent
from timesyncd.simulation.grandmaster.actions import Antenna
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation

FIRST_SAMPLE_WITHIN_S = 90.0

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: Each node with its place.
NODES = {"node-a": "hall-1/rack-1", "node-b": "hall-1/rack-2"}

#: It receives its grandmaster's messages through a relay that can shift them, so that its true offset is known and chosen.
RELAYED = "node-b"

#: With --json nothing happens, and the relay's error is there from the start: what is measured is a steady system.
STEADY_OFFSET_NS = -300_000

#: The simulated grandmasters; the nodes follow the first.
GRANDMASTERS = ("gm-1", "gm-2")

#: Polled more often than by default, so that what happens is seen before the next event of the story.
GRANDMASTER_OPTIONS = 'state_interval_s = 2.0\ntable_interval_s = 5.0\noscillator = "demo"'

#: Wide enough for software stamps on a busy machine, and narrower than what the relay's error makes of it.
LIMITS = "[limits]\nfleet_alignment_ns = 250_000\njob_alignment_ns = 250_000\n"

#: What a good oscillator loses in holdover, so that the grandmaster's error stays bounded in the story.
OSCILLATOR = "[oscillator]\ndemo = { holdover = [[0, 100], [14400, 1500]] }\n"

#: How long a slow rank works in each step; the other works half as long.
SLOW_WORK_S = 2 * WORK_S

#: By the kind of ptp4l: what of the demo is simulated.
SIMULATED = {
    "real": "simulated: the grandmasters' GNSS and management, and the relay of node-b; real: ptp4l, daemons, broker, job",
    "simulated": "simulated: the grandmasters and ptp4l; real: daemons, broker, job",
}


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
    """A node's daemon and the true offset of its clock at the start."""

    daemon: DaemonProcess
    true_offset_ns: int


@dataclass(frozen=True, slots=True)
class DemoSystem:
    """
    The running system. The first node's daemon polls the grandmasters and is the hub; `stated` is the file in which the
    demo states for the daemon what is simulated.
    """

    ptp: DemoPtp
    nodes: list[DemoNode]
    ranks: list[subprocess.Popen[bytes]]
    stated: Path
    story: list[StoryEvent]
    notes: StoryNotes

    @property
    def page(self) -> str:
        return self.nodes[0].daemon.page

    def state(self, story: str) -> None:
        """The known truth of now, and the story's line. The daemon never reads half of it."""
        offsets = {node.daemon.name: self.ptp.offset(node.daemon.name) for node in self.nodes}
        stated = SimulationFile(simulated=SIMULATED[self.ptp.kind], story=story, offsets=offsets)
        new = self.stated.with_suffix(".new")
        new.write_text(stated.model_dump_json())
        new.replace(self.stated)

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
        system = await _start(stack, marker, is_steady=as_json)
        system.state("starting: the first valid samples arrive after about 15 s")
        result = DemoResult(system.page, system.ptp.kind, len(system.nodes))
        async with live_view(system.page, as_json, ended) as view:
            valid = await _watch(system, seconds, view, ended)
        if valid and as_json:
            _add_hub_results(result, system.page)
            _add_store_results(result, system.nodes)
        print_progress("ending: everything that the demo started is removed")
    result.leftovers = leftovers(marker)
    if as_json and valid:
        print(json.dumps(asdict(result)))
    else:
        print_progress("ended; leftovers: " + ("; ".join(result.leftovers) or "none"))
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


async def _start(stack: AsyncExitStack, marker: str, is_steady: bool) -> DemoSystem:
    """
    Starts all parts. A part that this machine cannot run is omitted or simulated, with a message. `is_steady`: the relay's
    error and the slow rank are there from the start.
    """
    print_progress("starting the whole system on this machine; Ctrl-C ends it, and nothing stays behind")
    _install_missing_packages()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timesyncd-demo-")))
    broker = _broker(stack, marker)
    names = tuple(NODES) if broker else (RELAYED,)
    moved = {RELAYED: STEADY_OFFSET_NS if is_steady else 0}
    devices = [_device(name, clients=0 if at else len(names)) for at, name in enumerate(GRANDMASTERS)]
    ptp = await _ptp(stack, names, moved, folder, marker, devices[0].clock_identity)
    await ptp.announce(6)
    grandmasters = {device.name: await _serve(stack, device) for device in devices}
    stated = folder / "simulation.json"
    nodes: list[DemoNode] = []
    for name in names:
        daemon = DaemonProcess(name, folder / name, ptp.addresses[name], marker, broker, topology=NODES[name])
        if not nodes:
            daemon.hub, daemon.grandmasters = True, grandmasters
            daemon.grandmaster_options = GRANDMASTER_OPTIONS
            daemon.more = f'{OSCILLATOR}{LIMITS}[simulation]\nstate = "{stated}"\n'
        if name == RELAYED:
            daemon.bounds = {"grandmaster_rate_ppb": ASSUMED_RATE_PPB}
        daemon.configure()
        daemon.launch()
        stack.callback(daemon.stop)
        nodes.append(DemoNode(daemon, moved.get(name, 0)))
    ranks = _job(stack, (nodes[0].daemon, nodes[-1].daemon), marker)
    if is_steady:
        set_work(ranks[1], SLOW_WORK_S)
    story = [] if is_steady else story_of(_acts(devices[0], ptp, ranks[1]), RELAYED)
    return DemoSystem(ptp, nodes, ranks, stated, story, StoryNotes(broker))


def _acts(device: Device, ptp: DemoPtp, slow_rank: subprocess.Popen[bytes]) -> StoryActs:
    """What the story does: to the grandmaster that the nodes follow, to its PTP, and to a rank."""

    async def antenna(value: Literal["ok", "open"]) -> None:
        device.catch_up()
        device.schedule(0.0, Antenna(value=value).apply)
        device.advance(0.0)

    async def set_slow(is_slow: bool) -> None:
        set_work(slow_rank, SLOW_WORK_S if is_slow else WORK_S)

    async def move(rate_ppb: int) -> None:
        ptp.move(RELAYED, rate_ppb)

    return StoryActs(partial(antenna, "open"), partial(antenna, "ok"), ptp.announce, set_slow, move)


def _install_missing_packages() -> None:
    """As root; other users get what is already installed."""
    missing = host.missing_packages()
    if not missing or os.geteuid() != 0:
        return
    print_progress(f"installing Debian packages: {' '.join(missing)}")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        print_progress(f"the packages could not be installed: {error}")
    if "mosquitto" in missing and Path("/run/systemd/system").exists():
        print_progress("disabling the service of the package mosquitto, which the demo does not need")
        subprocess.run(["systemctl", "disable", "--now", "--quiet", "mosquitto"], check=False)


def _broker(stack: AsyncExitStack, marker: str) -> Mosquitto | None:
    try:
        return stack.enter_context(Mosquitto(marker=marker))
    except TimesyncdError as error:
        print_progress(f"no broker: the demo runs one node with both ranks: {error}")
        return None


async def _ptp(
    stack: AsyncExitStack, names: Sequence[str], moved: dict[str, int], folder: Path, marker: str, identity: bytes
) -> DemoPtp:
    try:
        return await start_real(stack, names, moved, marker, identity)
    except TimesyncdError as error:
        print_progress(f"no real PTP on this machine: ptp4l is simulated: {error}")
        return await start_simulated(stack, names, moved, folder, identity)


def _device(name: str, clients: int = 0) -> Device:
    """
    Locked, with as many PTP clients as nodes follow it; its time runs GRANDMASTER_SPEED times as fast. This model serves a table of
    alarms.
    """
    device = Device(name=name, serial=f"DEMO-{name}", kind="tp5000e", speed=GRANDMASTER_SPEED)
    device.dwell.bridging_s = BRIDGING_S * GRANDMASTER_SPEED
    device.dwell.recovery_s = RECOVERY_S
    SCENARIOS["locked"](device)
    device.client_total = clients
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


async def _watch(system: DemoSystem, seconds: float | None, view: LiveView, ended: asyncio.Event) -> bool:
    """
    Watches until `seconds` after every node had a valid sample (None: without end), or until `ended`.

    Returns whether every node had one. Raises TimesyncdError if not every node had one within FIRST_SAMPLE_WITHIN_S.
    """
    loop = asyncio.get_running_loop()
    deadline, end = loop.time() + FIRST_SAMPLE_WITHIN_S, None
    ready_s, played_s = math.inf, -math.inf
    pending = {node.daemon.name for node in system.nodes}
    while not ended.is_set() and (end is None or loop.time() < end):
        if pending or view.needs_states:
            states = await asyncio.to_thread(_node_states, system)
            view.show(states, system.ptp.kind)
            pending -= {each.name for each in states if _has_bound(each.replies)}
        system.check()
        if end is None and not pending:
            ready_s = loop.time()
            end = ready_s + (math.inf if seconds is None else seconds)
            view.ready()
        if end is None and loop.time() > deadline:
            reasons = "; ".join(unready_reason(each) for each in states)
            raise TimesyncdError(f"not every node had a valid sample within {FIRST_SAMPLE_WITHIN_S:g} s: {reasons}")
        if end is not None:
            played_s = await _play(system, view, played_s, loop.time() - ready_s)
        await _pause(min(1.0, (end or math.inf) - loop.time()), ended)
    return end is not None


async def _play(system: DemoSystem, view: LiveView, before_s: float, now_s: float) -> float:
    """Announces and does what is due since `before_s`; returns `now_s`. The truth is stated at once when it changes."""
    for text in announcements(system.story, before_s, now_s):
        view.announce(text)
    for event in due(system.story, before_s, now_s):
        await event.act()
        await system.notes.write(event.text)
    system.state(line(system.story, now_s))
    return now_s


async def _pause(seconds: float, ended: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await ended.wait()
    except TimeoutError:
        pass


def _node_states(system: DemoSystem) -> list[DemoNodeState]:
    daemons = [node.daemon for node in system.nodes]
    return [DemoNodeState(each.name, _replies(each), system.ptp.offset(each.name).offset_ns) for each in daemons]


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
