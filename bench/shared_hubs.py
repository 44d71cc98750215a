"""
Hubs that share a fleet: what each costs, whether each answers for all, and how long the share of one is unavailable after `kill -9`
(goal 10 s). The nodes publish a state each 10 s from one process on one connection, whose CPU time is not the hubs'.

The cost of a message of another hub's share comes from the same run: with one hub owning everything, and then with several, the CPU
time of all of them is (messages owned) x (cost of a state) + (messages of others) x (cost of reading one).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _grandmasters import cpu_s
from fleet import Load, ask, peak_mib

from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES, JOBS, HUBS, SECONDS = 30_000, 100, 3, 60
WITHIN_S = 180.0
#: So long after a hub was killed its share is looked at.
WATCHED_S = 25.0
SHARED = "\n[hub]\nshared = true\n"


@contextmanager
def shared(count: int, nodes: int, jobs: int, every_s: float) -> Iterator[list[DaemonProcess]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shared-")))
        broker = stack.enter_context(Mosquitto())
        hubs = []
        for number in range(count):
            name = f"hub-{number}"
            hub = DaemonProcess(name, folder / name, "", new_marker(), broker, more=SHARED, has_store=False)
            hubs.append(stack.enter_context(hub))
        options = (f"--jobs={jobs}", f"--every-s={every_s}", "--marks-every-s=1", "--rollups-every-s=1000000")
        stack.callback(Load(broker.port, nodes, *options).close)
        yield hubs


def is_whole(hub: DaemonProcess, nodes: int) -> bool:
    """Whether the hub answers for all nodes. They are in HOLDOVER when their last state is older than 5 s."""
    fleet = ask(hub, "api/v1/fleet")
    statuses = fleet["statuses"]
    known = statuses.get("SYNCHRONIZED", 0) + statuses.get("HOLDOVER", 0) >= nodes and not fleet["incomplete"]
    return known and ask(hub, "api/v1/alignment")["alignment_ns"] is not None


def owners(hub: DaemonProcess) -> dict[str, str]:
    return {job["job_id"]: job["node"] for job in ask(hub, "api/v1/jobs?limit=1000")["items"]}


def until_whole_s(hubs: list[DaemonProcess], nodes: int) -> float:
    began_s = time.monotonic()
    while not all(is_whole(hub, nodes) for hub in hubs):
        if time.monotonic() - began_s > WITHIN_S:
            raise SystemExit(f"not within {WITHIN_S:g} s: {[ask(hub, 'api/v1/fleet') for hub in hubs]}")
        time.sleep(0.5)
    return time.monotonic() - began_s


def taken_over_s(hubs: list[DaemonProcess], nodes: int, gone: str) -> tuple[float, float]:
    """
    Of the time from now on: when one of these hubs last did not answer for all nodes, and when none of them named the
    killed hub as a job's owner any more.
    """
    began_s, of_nodes, of_jobs = time.monotonic(), 0.0, 0.0
    while (passed_s := time.monotonic() - began_s) < WATCHED_S:
        if not all(is_whole(hub, nodes) for hub in hubs):
            of_nodes = time.monotonic() - began_s
        if any(gone in owners(hub).values() for hub in hubs):
            of_jobs = time.monotonic() - began_s
        time.sleep(max(0.0, 0.25 - (time.monotonic() - began_s - passed_s)))
    return of_nodes, of_jobs


def measure(count: int, args: argparse.Namespace) -> None:
    with shared(count, args.nodes, args.jobs, args.every_s) as hubs:
        until_whole_s(hubs, args.nodes)
        pids = [hub.process.pid for hub in hubs]
        before, began_s = [cpu_s(pid) for pid in pids], time.monotonic()
        time.sleep(args.seconds)
        passed_s = time.monotonic() - began_s
        busy = [(cpu_s(pid) - spent) / passed_s for pid, spent in zip(pids, before, strict=True)]
        rate = args.nodes / args.every_s
        own = ask(hubs[0], "api/v1/hubs")["items"]
        print(
            f"{count} hubs, {args.nodes} nodes each {args.every_s:g} s, {args.jobs} jobs: "
            f"{rate:.0f} states a second to each hub; load average {os.getloadavg()[0]:.1f}"
        )
        for hub, part in zip(hubs, busy, strict=True):
            nodes = next(each["nodes_known"] for each in own if each["node"] == hub.name)
            print(f"  {hub.name}: {nodes} nodes, {part:.2f} cores, {peak_mib(hub.process.pid):.0f} MiB")
        if count > 1:
            killed = hubs.pop()
            killed.kill()
            of_nodes, of_jobs = taken_over_s(hubs, args.nodes, killed.name)
            print(f"  {killed.name} killed: nodes after {of_nodes:.1f} s, its jobs after {of_jobs:.1f} s (goal 10)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--hubs", type=int, nargs="+", default=[1, HUBS])
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--every-s", type=float, default=10.0)
    args = parser.parse_args()
    for count in args.hubs:
        measure(count, args)


if __name__ == "__main__":
    main()
