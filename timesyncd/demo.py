"""The whole system on one machine: two grandmasters, two nodes, a broker, a hub and a job, for as long as somebody looks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from timesyncd.errors import TimesyncdError
from timesyncd.simulate import SCENARIOS, Device, SnmpAgent
from timesyncd.store import history
from timesyncd.terminal import fetch, screen
from timesyncd.testbed import tools
from timesyncd.testbed.bed import PtpBed
from timesyncd.testbed.broker import Mosquitto
from timesyncd.testbed.daemon import DaemonProcess
from timesyncd.testbed.leftovers import leftovers, marked_environment, new_marker

FIRST_SAMPLE_WITHIN_S = 90.0

#: What the relay makes node-b's grandmaster be ahead by: the node's true offset is the negative of it.
X_NS = 300_000

UNITS = {"gm-1": "locked", "gm-2": "antenna-cut"}


@dataclass
class Result:
    """The demo's last line. Shares are of samples; None = there was nothing to compute it from."""

    page: str
    ptp: str
    nodes: int
    samples_stored: int = 0
    gm_bound_ns: int | None = None
    contained: float | None = None
    contained_without_offset: float | None = None
    alignment_ns: int | None = None
    sync_overhead: float | None = None
    slow_rank: int | None = None
    leftovers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Node:
    """A daemon of the demo and the true offset of its clock."""

    daemon: DaemonProcess
    true_offset_ns: int


async def demo(seconds: float | None, as_json: bool) -> int:
    """The exit status: 1 when no valid sample of every node came within 90 s. Ctrl-C and SIGTERM end it in order."""
    say = Console(stderr=as_json, highlight=False)
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    marker = new_marker()
    async with AsyncExitStack() as stack:
        result = await _run(stack, marker, seconds, None if as_json else say, say)
    if result is None:
        say.print("no valid sample of every node within 90 s")
        return 1
    result.leftovers = leftovers(marker)
    if as_json:
        print(json.dumps(asdict(result)))
    return 0


async def _run(
    stack: AsyncExitStack, marker: str, seconds: float | None, view: Console | None, say: Console
) -> Result | None:
    nodes = await _start(stack, say, marker)
    result = Result(nodes[0].daemon.page, "real", len(nodes))
    say.print(f"status page: {result.page}   Ctrl-C ends the demo")
    try:
        if not await _all_valid(nodes, say):
            return None
        await _look(nodes, seconds, view)
    except asyncio.CancelledError:
        say.print("ending")
    _ask_hub(result, nodes[0].daemon)
    _ask_stores(result, nodes)
    return result


async def _start(stack: AsyncExitStack, say: Console, marker: str) -> list[Node]:
    _install_what_is_missing(say)
    say.print(
        "starting: ptp4l grandmaster and two slaves in namespaces, a relay, Mosquitto, two daemons, a job of two ranks"
    )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timesyncd-demo-")))
    bed = stack.enter_context(PtpBed(direct=("node-a",), relayed=("node-b",), marker=marker))
    bed.set_relay("node-b", x_ns=X_NS)
    broker = stack.enter_context(Mosquitto(marker=marker))
    units = {name: await _grandmaster(stack, name, scenario) for name, scenario in UNITS.items()}
    addresses = {name: process.uds_address for name, process in bed.nodes.items()}
    daemons = [
        DaemonProcess("node-a", folder / "a", addresses["node-a"], marker, broker, True, units),
        DaemonProcess("node-b", folder / "b", addresses["node-b"], marker, broker),
    ]
    for rank, daemon in enumerate(daemons):
        stack.enter_context(daemon)
        stack.enter_context(_rank(rank, daemon, folder / "job.sock", marker))
    return [Node(daemons[0], 0), Node(daemons[1], -X_NS)]


def _install_what_is_missing(say: Console) -> None:
    """Root gets the Debian packages; raises TimesyncdError that names them to anybody else."""
    missing = tools.missing_packages()
    if not missing:
        return
    if os.geteuid() != 0:
        raise TimesyncdError(f"missing Debian packages: as root, apt-get install {' '.join(missing)}")
    say.print(f"installing Debian packages: {' '.join(missing)}")
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
    ):
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        )


async def _grandmaster(stack: AsyncExitStack, name: str, scenario: str) -> int:
    """Its SNMP port."""
    device = Device(name=name)
    SCENARIOS[scenario](device)
    agent = await stack.enter_async_context(SnmpAgent(device))
    return agent.port


@contextmanager
def _rank(rank: int, daemon: DaemonProcess, socket: Path, marker: str) -> Iterator[None]:
    command = [sys.executable, "-m", "timesyncd.testbed.job", str(rank), str(socket)]
    environment = marked_environment(marker) | {"TIMESYNCD_RUNTIME_DIR": str(daemon.folder)}
    process = subprocess.Popen(
        tools.dying_with_parent(command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _all_valid(nodes: Sequence[Node], say: Console) -> bool:
    """Wait until every node has a bound. The first good path delay comes after some 15 s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + FIRST_SAMPLE_WITHIN_S
    with say.status("waiting for the first valid sample of both nodes") as status:
        while loop.time() < deadline:
            states = [(await asyncio.to_thread(fetch, node.daemon.page))["node"] for node in nodes]
            if all(state["status"] == "SYNCHRONIZED" for state in states):
                return True
            status.update("; ".join(f"{state['node']}: {state['reason'] or state['status']}" for state in states))
            await asyncio.sleep(0.5)
    return False


async def _look(nodes: Sequence[Node], seconds: float | None, view: Console | None) -> None:
    """Until the time is over; None: until Ctrl-C. With a console, what the hub's node knows, live."""
    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    page = nodes[0].daemon.page
    with Live(console=view or Console(quiet=True), auto_refresh=False) as live:
        while end is None or loop.time() < end:
            if view is not None:
                live.update(Group(*screen(await asyncio.to_thread(fetch, page)), f"status page: {page}"), refresh=True)
            await asyncio.sleep(1.0 if end is None else min(1.0, max(0.0, end - loop.time())))


def _ask_hub(result: Result, hub: DaemonProcess) -> None:
    jobs: list[dict[str, Any]] = fetch(hub.page)["jobs"]
    for job in jobs[:1]:
        result.alignment_ns = job["alignment_ns"]
        result.sync_overhead = job["sync_overhead"]
        result.slow_rank = job["slow_rank"]


def _ask_stores(result: Result, nodes: Sequence[Node]) -> None:
    """What the daemons stored, held against the truth: the end of the whole way from the wire to the disk."""
    bounds, held, held_without = [], [], []
    for node in nodes:
        for row in history.samples(node.daemon.store, f"ptp-{node.daemon.name}", 0, 2**62):
            result.samples_stored += 1
            bound_ns, offset_ns = row["gm_bound_ns"], row["offset_ns"]
            if bound_ns is None:
                continue
            bounds.append(bound_ns)
            held.append(abs(node.true_offset_ns) <= bound_ns)
            held_without.append(abs(node.true_offset_ns - offset_ns) <= bound_ns - abs(offset_ns))
    if bounds:
        result.gm_bound_ns = round(statistics.median(bounds))
        result.contained = statistics.fmean(held)
        result.contained_without_offset = statistics.fmean(held_without)
