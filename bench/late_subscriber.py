"""
A clustered broker without retained messages for wildcard subscriptions, as RabbitMQ 4: how long a hub takes to know nodes and jobs that
publish at another node of the cluster, and how long a second hub takes that starts late at a third one. Nothing is asked for: nodes,
hubs and jobs repeat their states.

Give the MQTT ports of the cluster's nodes, all on the loopback; docs/scaling.md has the settings of a cluster on one machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from fleet import Load, ask

from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

NODES, JOBS, EVERY_S, WITHIN_S = 120, 12, 5.0, 120.0


class RunningBroker(Mosquitto):
    """A broker that somebody else started on the loopback: only its address is used."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port


def hub(name: str, folder: Path, port: int) -> DaemonProcess:
    more = "\n[hub]\nshared = true\n"
    return DaemonProcess(name, folder / name, "", new_marker(), RunningBroker(port), more=more, has_store=False)


def knows_all(each: DaemonProcess) -> bool:
    fleet, jobs = ask(each, "api/v1/fleet"), ask(each, "api/v1/jobs?limit=1000")["items"]
    return (fleet["nodes"], fleet["incomplete"], len(jobs)) == (NODES, [], JOBS)


def until_known_s(each: DaemonProcess) -> float:
    began_s = time.monotonic()
    while not knows_all(each):
        if time.monotonic() - began_s > WITHIN_S:
            raise SystemExit(f"not within {WITHIN_S:g} s: {ask(each, 'api/v1/fleet')}")
        time.sleep(0.25)
    return time.monotonic() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs=3, help="of the cluster's nodes: first hub, late hub, publishers")
    first_port, late_port, publishers_port = parser.parse_args().ports
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="late-")))
        first = stack.enter_context(hub("hub-a", folder, first_port))
        load = Load(publishers_port, NODES, f"--jobs={JOBS}", f"--every-s={EVERY_S}", "--marks-every-s=1")
        stack.callback(load.close)
        print(f"first hub, publishers at another node: all known after {until_known_s(first):.1f} s")
        late = stack.enter_context(hub("hub-b", folder, late_port))
        print(f"late hub at a third node: all known {until_known_s(late):.1f} s after its page answers")
        print(f"states come each {EVERY_S:g} s")


if __name__ == "__main__":
    main()
