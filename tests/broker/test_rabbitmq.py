"""
A cluster of three RabbitMQ 4, which sends no retained message to a wildcard subscription: hubs at other nodes of the cluster.

Debian 13 has it; the root is made once, into the matrix's cache. Needs root.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from debian_roots import check_needs, default_cache, extracted
from fleet import Load, ask
from lab import eventually
from late_hubs import check_late_hubs
from paho.mqtt.enums import CallbackAPIVersion
from rabbitmq_cluster import BESIDE, PACKAGE, SUITE, RabbitMqCluster

from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

#: Three nodes of Erlang start together on a busy machine.
START_WITHIN_S = 300.0


def connected(port: int) -> paho.Client | None:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    try:
        client.connect("127.0.0.1", port)
    except OSError:
        return None
    client.loop_start()
    return client


def passes(cluster: RabbitMqCluster) -> bool:
    """Whether each node of the cluster brings what is published at the last one."""
    clients = [connected(broker.port) for broker in cluster.brokers]
    arrived: set[int] = set()
    try:
        for number, client in enumerate(clients):
            if client is None:
                return False
            client.on_message = lambda *_, number=number: arrived.add(number)
            client.subscribe("test/+/topic", qos=1)
        deadline_s = time.monotonic() + 5
        while len(arrived) < len(clients) and time.monotonic() < deadline_s:
            last = clients[-1]
            assert last is not None
            last.publish("test/a/topic", b"x", qos=1)
            time.sleep(0.5)
    finally:
        for client in clients:
            if client is not None:
                client.disconnect()
                client.loop_stop()
    return len(arrived) == len(clients)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitMqCluster]:
    check_needs()
    with RabbitMqCluster(extracted(default_cache(), SUITE, PACKAGE, BESIDE)) as running:
        deadline_s = time.monotonic() + START_WITHIN_S
        while not passes(running):
            assert time.monotonic() < deadline_s, running.output()
            time.sleep(1)
        yield running


async def test_late_hubs_know_every_node_of_another_node_of_the_cluster(cluster: RabbitMqCluster, folder: Path) -> None:
    """Nodes publish at the third one, whose states are not due for an hour; one hub is at the first, a later one at the second."""
    first, second, third = cluster.brokers
    await check_late_hubs(folder, third, (first, second))


def test_hubs_of_a_cluster_share_the_jobs(cluster: RabbitMqCluster, folder: Path) -> None:
    """Each at another node subscribes to the marks of its own jobs; both answer for all nodes and jobs."""
    nodes, jobs = 40, 8
    *of_hubs, of_load = cluster.brokers
    with ExitStack() as stack:
        hubs = [
            stack.enter_context(
                DaemonProcess(
                    name, folder / name, "", new_marker(), broker, more="\n[hub]\nshared = true\n", has_store=False
                )
            )
            for name, broker in zip(("hub-a", "hub-b"), of_hubs, strict=True)
        ]
        stack.callback(Load(of_load.port, nodes, f"--jobs={jobs}", "--every-s=2", "--marks-every-s=1").close)
        for hub in hubs:
            eventually(
                lambda hub=hub: (ask(hub, "api/v1/fleet")["nodes"], ask(hub, "api/v1/jobs?limit=1000")["items"]),  # type: ignore[misc]
                lambda found: (
                    found[0] == nodes
                    and len(found[1]) == jobs
                    and {job["node"] for job in found[1]} == {"hub-a", "hub-b"}
                ),
                within_s=120,
            )
