"""
How long a hub on one core takes to know 10,000 nodes and 1,000 jobs again: after its broker was killed, and after it was killed itself
and finds all their states retained. Goal: 15 s each. Beside it, in the same run, the time in which a bare paho client receives and decodes
as many states.

The nodes and ranks are one process on one connection (`_fleet_load.py`); each node publishes as it connects. What the hub must know
again is what it knew before.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import paho.mqtt.client as paho
from fleet import HUB_CORE, Load, ask, until
from paho.mqtt.enums import CallbackAPIVersion

from timesyncd.config import TOPIC_PREFIX
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES, JOBS = 10_000, 1_000
WITHIN_S = 180.0
#: The map of 10,000 nodes costs the hub a tenth of a second.
LOOK_EVERY_S = 1.0


def pin(hub: DaemonProcess) -> None:
    for thread in Path(f"/proc/{hub.process.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {HUB_CORE})


@contextmanager
def fleet(nodes: int, jobs: int) -> Iterator[tuple[DaemonProcess, Mosquitto, Load]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recovery-")))
        broker = stack.enter_context(Mosquitto())
        hub = stack.enter_context(DaemonProcess("hub", folder, "", new_marker(), broker, hub=True))
        pin(hub)
        load = Load(broker.port, nodes, f"--jobs={jobs}")
        stack.callback(load.close)
        yield hub, broker, load


def job_steps(hub: DaemonProcess) -> dict[str, int]:
    """The newest closed step of each job that the hub joins; its state shows that only when the job was analyzed again."""
    return {job["job_id"]: newest_step(hub, job["job_id"], job["step"] or 0) for job in jobs_of(hub)}


def jobs_of(hub: DaemonProcess) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = ask(hub, "api/v1/jobs?limit=1000")["items"]
    return jobs


def newest_step(hub: DaemonProcess, job_id: str, from_step: int) -> int:
    """In the job's window from this step on; -1: none."""
    try:
        syncs = ask(hub, f"api/v1/jobs/{job_id}/window?limit=1000&from_step={from_step}")["syncs"]
    except HTTPError:  # a hub that starts does not know the job yet
        return -1
    return max((sync["step"] for sync in syncs), default=-1)


def settled_jobs(hub: DaemonProcess) -> dict[str, int]:
    """When their number no longer grows."""
    known = jobs_of(hub)
    while True:
        time.sleep(6)
        before, known = known, jobs_of(hub)
        if len(known) == len(before):
            return job_steps(hub)


def known_nodes(hub: DaemonProcess) -> int:
    """The nodes with a live state from after the fault: in the other hall, and not last known alone."""
    places: dict[str, list[list[Any]]] = ask(hub, "api/v1/fleet/map")["places"]
    return sum(
        status != "UNKNOWN" for place, nodes in places.items() if place.startswith("hall-2") for _, status, _ in nodes
    )


def known_again_s(hub: DaemonProcess, nodes: int, jobs: dict[str, int]) -> tuple[float, float]:
    """From now until every node has moved, and until each of these jobs has a later step."""
    began_s, waiting = time.monotonic(), dict(jobs)
    of_nodes = of_jobs = None
    while of_nodes is None or of_jobs is None:
        if time.monotonic() - began_s > WITHIN_S:
            raise SystemExit(f"not within {WITHIN_S:g} s: {known_nodes(hub)} nodes; {len(waiting)} jobs are not known")
        try:
            if of_nodes is None and known_nodes(hub) >= nodes:
                of_nodes = time.monotonic() - began_s
            if of_nodes is not None:
                waiting = {job: step for job, step in waiting.items() if newest_step(hub, job, step + 1) < 0}
                of_jobs = None if waiting else time.monotonic() - began_s
        except OSError:  # it starts
            pass
        time.sleep(LOOK_EVERY_S)
    return of_nodes, of_jobs


def bare_s(broker: Mosquitto, nodes: int) -> float:
    """A bare client that subscribes to as many retained states, and decodes each with json."""
    received = 0

    def accept(_client: object, _data: object, message: paho.MQTTMessage) -> None:
        nonlocal received
        json.loads(message.payload)
        received += 1

    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_message = accept
    client.connect(broker.host, broker.port)
    began_s = time.monotonic()
    client.subscribe(f"{TOPIC_PREFIX}/node/+/state")
    while received < nodes:
        client.loop(0.1)
    return time.monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    args = parser.parse_args()
    with fleet(args.nodes, args.jobs) as (hub, broker, load):
        until(hub, lambda fleet: fleet["nodes"] >= args.nodes, WITHIN_S)
        jobs = settled_jobs(hub)
        bare = bare_s(broker, args.nodes)
        print(
            f"{args.nodes} nodes, {args.jobs} jobs of 2 ranks, of which the hub joins {len(jobs)}; the hub on one core"
        )
        load.announce("MOVED")
        broker.stop()
        broker.start()
        nodes_s, jobs_s = known_again_s(hub, args.nodes, jobs)
        print(f"  broker killed: nodes known again after {nodes_s:.1f} s, jobs after {jobs_s:.1f} s (goal 15)")
        jobs = settled_jobs(hub)
        hub.kill()
        hub.launch()
        pin(hub)
        nodes_s, jobs_s = known_again_s(hub, args.nodes, jobs)
        print(f"  hub killed: nodes known again after {nodes_s:.1f} s, jobs after {jobs_s:.1f} s (goal 15)")
        print(f"  a bare client receives and decodes the states in {bare:.2f} s: ratio {nodes_s / bare:.1f}")


if __name__ == "__main__":
    main()
