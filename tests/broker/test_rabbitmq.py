"""
A cluster of three RabbitMQ 4, which sends no retained message to a wildcard subscription: hubs at other nodes of the cluster.

Debian 13 has it; the root is made once, into the matrix's cache. Needs root.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from debian_roots import check_needs, default_cache, extracted
from fleet import Load, ask
from lab import eventually
from late_hubs import check_late_hubs
from rabbitmq_cluster import BESIDE, PACKAGE, SUITE, RabbitMqCluster

from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitMqCluster]:
    check_needs()
    with RabbitMqCluster(extracted(default_cache(), SUITE, PACKAGE, BESIDE)) as running:
        running.wait()
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
