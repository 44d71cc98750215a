"""
Three hubs that share a fleet on a cluster of three RabbitMQ 4, each at another node of it: how many nodes they hold
on this machine's cores. A size that does not hold is halved.

It holds where each hub answers for all nodes throughout, and receives 99 of 100 states within a second. One process
publishes the states, on a few connections to the third node (`bench/_whole_sender.py`). The CPU of each process is
printed by itself. Needs root, as `make rabbitmq-test`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from _grandmasters import cpu_s
from debian_roots import check_needs, default_cache, extracted
from fleet import metrics, peak_mib, quantile_s
from rabbitmq_cluster import BESIDE, PACKAGE, SUITE, RabbitMqCluster
from shared_hubs import SHARED, is_whole
from whole_load import Part

from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES, EVERY_S, SECONDS, SMALLEST = 30_000, 10.0, 60.0, 500
#: Of the hubs from the first state on: each node has published twice by then, and they know one another.
KNOWN_WITHIN_S = 60.0
LOOK_EVERY_S, MAX_LAG_S, MAX_LATE_S = 5.0, 1.0, 1.0


def started_hubs(stack: ExitStack, cluster: RabbitMqCluster) -> list[DaemonProcess]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-load-")))
    return [
        stack.enter_context(DaemonProcess(name, folder / name, "", new_marker(), broker, more=SHARED, has_store=False))
        for name, broker in zip(("hub-a", "hub-b", "hub-c"), cluster.brokers, strict=True)
    ]


def become_whole(hubs: list[DaemonProcess], nodes: int) -> float | None:
    """After how many seconds each hub answered for all nodes; None: not in time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < KNOWN_WITHIN_S:
        if all(is_whole(hub, nodes) for hub in hubs):
            return time.monotonic() - began_s
        time.sleep(1)
    return None


class Load(NamedTuple):
    """What publishes, and the hubs that answer; `pids` are all processes, by their names."""

    hubs: list[DaemonProcess]
    sender: Part
    pids: dict[str, int]


@contextmanager
def loaded(cluster: RabbitMqCluster, nodes: int) -> Iterator[Load]:
    with ExitStack() as stack:
        hubs = started_hubs(stack, cluster)
        port = cluster.brokers[-1].port
        sender = Part("_whole_sender.py", f"--port={port}", f"--nodes={nodes}", f"--every-s={EVERY_S}")
        stack.callback(sender.close)
        pids = {hub.name: hub.process.pid for hub in hubs} | {"generator": sender.process.pid}
        pids |= {f"broker {number}": pid for number, pid in enumerate(cluster.pids(), 1)}
        yield Load(hubs, sender, pids)


def holds(cluster: RabbitMqCluster, nodes: int, seconds: float) -> bool:
    """Whether the hubs hold so many nodes; prints what it costs."""
    with loaded(cluster, nodes) as load:
        known_s = become_whole(load.hubs, nodes)
        if known_s is None:
            print(f"{nodes} nodes each {EVERY_S:g} s: not known within {KNOWN_WITHIN_S:g} s", flush=True)
            return False
        print(f"{nodes} nodes each {EVERY_S:g} s: known to each hub after {known_s:.0f} s")
        return measured(load, nodes, seconds)


def measured(load: Load, nodes: int, seconds: float) -> bool:
    used, before = {name: cpu_s(pid) for name, pid in load.pids.items()}, [metrics(hub) for hub in load.hubs]
    began_s, looks = time.monotonic(), list[bool]()
    while time.monotonic() - began_s < seconds:
        time.sleep(LOOK_EVERY_S)
        looks.append(all(is_whole(hub, nodes) for hub in load.hubs))
    passed_s = time.monotonic() - began_s
    busy = ", ".join(f"{name} {(cpu_s(pid) - used[name]) / passed_s:.2f}" for name, pid in load.pids.items())
    both = [(first, metrics(hub)) for first, hub in zip(before, load.hubs, strict=True)]
    p50_s, p99_s = (max(quantile_s(*each, share) for each in both) for share in (0.5, 0.99))
    memory = ", ".join(f"{peak_mib(hub.process.pid):.0f}" for hub in load.hubs)
    sent = load.sender.report()
    held = all(looks) and p99_s <= MAX_LAG_S and sent["late_p99_s"] <= MAX_LATE_S
    print(f"  {passed_s:.0f} s, load average {os.getloadavg()[0]:.1f}: {'held' if held else 'does not hold'}")
    print(f"  whole at {sum(looks)} of {len(looks)} looks; memory of the hubs {memory} MiB")
    print(f"  from publication to receipt: p50 <= {p50_s:g} s, p99 <= {p99_s:g} s")
    print(f"  {sent['connections']} connections of the generator, late p99 {sent['late_p99_s']:.2f} s")
    print(f"  cores: {busy}", flush=True)
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()
    check_needs()
    with RabbitMqCluster(extracted(default_cache(), SUITE, PACKAGE, BESIDE)) as cluster:
        cluster.wait()
        print(f"a cluster of {len(cluster.brokers)} RabbitMQ 4, {len(cluster.brokers)} hubs", flush=True)
        nodes = args.nodes
        while nodes >= SMALLEST and not holds(cluster, nodes, args.seconds):
            nodes //= 2


if __name__ == "__main__":
    main()
