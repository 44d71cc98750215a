"""
A hub with 10,000 nodes on one core: what its messages take from being published to being known, its memory, and how long it takes to
know that all of them changed at once. Goals: p99 of the way under 1 s, memory under 500 MiB, all changes known in under 5 s.

The nodes are one process that publishes as each of them, a state each 5 s and a roll-up a minute, on a real Mosquitto; the hub is a
whole daemon with its store and its page. Beside it, in the same run, the bare cost of the same messages: received with paho, decoded
with `json` and stored with `sqlite3`, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import paho.mqtt.client as paho
from _grandmasters import cpu_s
from paho.mqtt.enums import CallbackAPIVersion

from timesyncd.config import TOPIC_PREFIX
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES, SECONDS, BURSTS = 10_000, 90, 3
#: The hub has this core to itself, but for what the machine does besides; broker and load have the others.
HUB_CORE = 0
BARE_MESSAGES = 10_000
#: To ask costs the hub some 20 ms: it is not asked more often.
LOOK_EVERY_S = 0.25


class Round(NamedTuple):
    lag_p50_s: float
    lag_p99_s: float
    busy: float
    peak_mib: float
    rollups: float


class Load:
    """The nodes."""

    def __init__(self, port: int, nodes: int, *options: str) -> None:
        command = [
            sys.executable,
            str(Path(__file__).with_name("_fleet_load.py")),
            f"--port={port}",
            f"--nodes={nodes}",
            *options,
        ]
        self._process = subprocess.Popen(
            host.dying_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line("ready")

    def _line(self, expected: str) -> None:
        assert self._process.stdout
        if self._process.stdout.readline().strip() != expected:
            raise SystemExit("the load generator ended")

    def change(self, status: str) -> float:
        """Every node's status at once. When the first message went out."""
        assert self._process.stdin
        began_s = time.monotonic()
        print(f"all {status}", file=self._process.stdin, flush=True)
        self._line("sent")
        return began_s

    def announce(self, status: str) -> None:
        """Every node's status from the next connection on."""
        assert self._process.stdin
        print(f"next {status}", file=self._process.stdin, flush=True)
        self._line("sent")

    def close(self) -> None:
        with self._process:
            self._process.kill()


@contextmanager
def fleet(nodes: int, *options: str) -> Iterator[tuple[DaemonProcess, Load]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        broker = stack.enter_context(Mosquitto())
        hub = stack.enter_context(DaemonProcess("hub", folder, "", new_marker(), broker, hub=True))
        for thread in Path(f"/proc/{hub.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {HUB_CORE})
        load = Load(broker.port, nodes, *options)
        stack.callback(load.close)
        yield hub, load


def ask(hub: DaemonProcess, what: str) -> Any:
    with urlopen(f"{hub.page}{what}", timeout=30) as response:
        return json.load(response)


def metrics(hub: DaemonProcess) -> dict[str, float]:
    with urlopen(f"{hub.page}metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def quantile_s(before: dict[str, float], after: dict[str, float], share: float) -> float:
    """The upper end of the histogram's step in which it lies, from one scrape to the other."""
    name = 'timesyncd_message_lag_seconds_bucket{le="'
    steps = [(float(key[len(name) : -2]), after[key] - before.get(key, 0)) for key in after if key.startswith(name)]
    total = max(count for _, count in steps)
    return min(limit for limit, count in steps if count >= share * total)


def peak_mib(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def steady(hub: DaemonProcess, nodes: int, seconds: float) -> Round:
    until(hub, lambda fleet: fleet["nodes"] >= nodes, 120)
    before, began_s, used_s = metrics(hub), time.monotonic(), cpu_s(hub.process.pid)
    time.sleep(seconds)
    after, passed_s = metrics(hub), time.monotonic() - began_s
    stored = after["timesyncd_history_stored_total"] - before["timesyncd_history_stored_total"]
    return Round(
        quantile_s(before, after, 0.5),
        quantile_s(before, after, 0.99),
        (cpu_s(hub.process.pid) - used_s) / passed_s,
        peak_mib(hub.process.pid),
        stored / passed_s * 60,
    )


def until(hub: DaemonProcess, holds: Any, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds(ask(hub, "api/v1/fleet")):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {within_s:g} s: {ask(hub, 'api/v1/fleet')}")
        time.sleep(LOOK_EVERY_S)


def drained_s(hub: DaemonProcess, load: Load, nodes: int, status: str) -> float:
    began_s = load.change(status)
    until(hub, lambda fleet: fleet["statuses"].get(status, 0) >= nodes, 60)
    return time.monotonic() - began_s


def bare_us(nodes: int) -> float:
    """CPU of one message that is received, decoded and stored, without anything else."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bare-")))
        broker = stack.enter_context(Mosquitto())
        payloads: list[bytes] = []
        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.on_message = lambda _client, _data, message: payloads.append(bytes(message.payload))
        client.connect("127.0.0.1", broker.port)
        client.subscribe(f"{TOPIC_PREFIX}/node/+/state")
        load = Load(broker.port, nodes)
        stack.callback(load.close)
        used_s = time.process_time()
        while len(payloads) < BARE_MESSAGES:
            client.loop(0.1)
        store = sqlite3.connect(folder / "bare.sqlite")
        store.execute("CREATE TABLE state (node TEXT, published INTEGER, status TEXT, bound INTEGER, growth INTEGER)")
        rows = [
            (
                state["node"],
                state["published_realtime_ns"],
                state["status"],
                state["gm"]["bound_ns"],
                state["gm"]["growth_ppb"],
            )
            for state in map(json.loads, payloads)
        ]
        with store:
            store.executemany("INSERT INTO state VALUES (?, ?, ?, ?, ?)", rows)
        return (time.process_time() - used_s) / len(payloads) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of steady load (%(default)s)")
    args = parser.parse_args()
    bare = statistics.median(bare_us(args.nodes) for _ in range(3))
    print(f"{args.nodes} nodes, a state each 5 s and a roll-up each minute, {args.seconds:g} s; the hub on one core")
    with fleet(args.nodes) as (hub, _):
        show("states that repeat the last one", steady(hub, args.nodes, args.seconds), args.nodes, bare)
    with fleet(args.nodes, "--changing") as (hub, load):
        show("states that all differ", steady(hub, args.nodes, args.seconds), args.nodes, bare)
        statuses = ("HOLDOVER", "SYNCHRONIZED") * BURSTS
        drained = [drained_s(hub, load, args.nodes, status) for status in statuses[:BURSTS]]
        print(f"  memory at its peak {peak_mib(hub.process.pid):.0f} MiB (goal 500)")
        print(
            f"  all change at once: known after {statistics.median(drained):.2f} s, worst {max(drained):.2f} s (goal 5)"
        )


def show(what: str, seen: Round, nodes: int, bare: float) -> None:
    each_us = seen.busy / (nodes / 5 + nodes / 60) * 1e6
    print(f"  {what}:")
    print(f"    from published to known: p50 <= {seen.lag_p50_s:g} s, p99 <= {seen.lag_p99_s:g} s (goal 1)")
    print(f"    roll-ups stored a minute: {seen.rollups:.0f}")
    print(f"    CPU {seen.busy:.0%} of the core: {each_us:.0f} us a message, all that the hub does included")
    print(f"    bare {bare:.0f} us: ratio {each_us / bare:.2f}")


if __name__ == "__main__":
    main()
