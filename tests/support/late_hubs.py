"""Nodes whose states are not due for an hour, and hubs that start after them: what a hub knows, it has requested."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES = ("n1", "n2")

#: The periodic states come an hour later, so only a request brings one within the test.
SELDOM = "state_every_s = 3600\n"


class RunningBroker(Mosquitto):
    """A broker, or a relay to one, that runs already on the loopback: daemons need its address alone."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port


def ask(daemon: DaemonProcess, path: str) -> Any:
    with urlopen(f"{daemon.page}api/v1/{path}", timeout=30) as answer:
        return json.load(answer)


async def running(stack: AsyncExitStack, daemon: DaemonProcess) -> DaemonProcess:
    """In a thread, since the relay of its messages works in this event loop."""
    await asyncio.to_thread(daemon.__enter__)
    stack.push_async_callback(asyncio.to_thread, daemon.__exit__)
    return daemon


async def knows(hub: DaemonProcess, nodes: set[str]) -> None:
    async with asyncio.timeout(120):
        while not nodes <= {state["node"] for state in (await asyncio.to_thread(ask, hub, "nodes"))["items"]}:
            await asyncio.sleep(0.1)


async def until_published(daemon: DaemonProcess) -> None:
    """Its first states are at the broker: what a hub learns of it from now on, it has requested."""
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(_has_published, daemon):
            await asyncio.sleep(0.1)


def _has_published(daemon: DaemonProcess) -> bool:
    with urlopen(f"{daemon.page}metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return any(float(line.split()[-1]) >= 1 for line in lines if line.startswith("timesyncd_mqtt_published_total"))


async def check_late_hubs(folder: Path, of_nodes: Mosquitto, of_hubs: Sequence[Mosquitto]) -> None:
    """
    Each hub, at its broker, knows all nodes at theirs and the hubs before it. Raises TimeoutError where one does not. The
    second hub starts while nodes may not answer again yet.
    """
    async with AsyncExitStack() as stack:
        nodes = [
            DaemonProcess(name, folder / name, "", new_marker(), of_nodes, more=SELDOM, has_store=False)
            for name in NODES
        ]
        for node in await asyncio.gather(*(running(stack, node) for node in nodes)):
            await until_published(node)
        hubs: list[str] = []
        for broker in of_hubs:
            hubs.append(f"hub-{len(hubs)}")
            more = f"{SELDOM}\n[hub]\n"
            hub = DaemonProcess(hubs[-1], folder / hubs[-1], "", new_marker(), broker, more=more, has_store=False)
            await knows(await running(stack, hub), {*NODES, *hubs})
