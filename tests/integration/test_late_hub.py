"""A hub that starts late on a broker that keeps no messages: it requests the states, and every daemon answers."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from broker_relay import BrokerRelay

from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES = ("n1", "n2", "n3")

#: The periodic states come an hour later, so only a request brings one within the test.
SELDOM = "state_every_s = 3600\n"


class RelayedBroker(Mosquitto):
    """A broker behind a relay: daemons only need its address."""

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


async def test_late_hubs_know_every_node_although_no_state_is_due(mosquitto: Mosquitto, folder: Path) -> None:
    """The first hub has what it requests, and so has another one that starts while nodes may not answer again yet."""
    async with BrokerRelay(mosquitto.port, keeps=False) as relay, AsyncExitStack() as stack:
        broker = RelayedBroker(relay.port)
        for name in NODES:
            node = DaemonProcess(name, folder / name, "", new_marker(), broker, more=SELDOM, has_store=False)
            await until_published(await running(stack, node))
        for name in ("hub-a", "hub-b"):
            more = f"{SELDOM}\n[hub]\n"
            hub = DaemonProcess(name, folder / name, "", new_marker(), broker, more=more, has_store=False)
            await knows(await running(stack, hub), {*NODES, "hub-a", name})
