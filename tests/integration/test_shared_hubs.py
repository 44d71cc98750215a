"""Three hubs that share a fleet, as processes of their own on a real Mosquitto, and the death of one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import paho.mqtt.client as paho
import pytest
from lab import eventually
from paho.mqtt.enums import CallbackAPIVersion

from timesyncd.config import TOPIC_PREFIX
from timesyncd.fleet.ownership import job_key, owner
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import dying_with_parent, new_marker

NODES, JOBS = 120, 12
HUBS = ("hub-a", "hub-b", "hub-c")
LOAD = Path(__file__).parents[2] / "bench" / "_fleet_load.py"


class JobWatcher:
    """A client that records which hub published which job's state, with which version of its plan."""

    def __init__(self, broker: Mosquitto) -> None:
        self.states: dict[str, list[tuple[str, int]]] = {}
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = self._receive
        self._client.connect(broker.host, broker.port)
        self._client.subscribe(f"{TOPIC_PREFIX}/job/+/state")
        self._client.loop_start()

    def _receive(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        if message.payload:
            state = json.loads(message.payload)
            self.states.setdefault(state["job_id"], []).append((state["node"], state["plan"]["version"]))

    def publishers(self) -> dict[str, list[str]]:
        """By job, the hubs that published it, one after the other."""
        return {job: [hub for hub, _ in groupby(hub for hub, _ in states)] for job, states in self.states.items()}

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def hubs(tmp_path: Path) -> Iterator[tuple[dict[str, DaemonProcess], JobWatcher]]:
    """Their own share each, under a load of nodes in racks of 40 and of jobs of two ranks."""
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto())
        watcher = stack.enter_context(closing(JobWatcher(broker)))
        processes = {}
        for name in HUBS:
            hub = DaemonProcess(
                name, tmp_path / name, "", new_marker(), broker, more="\n[hub]\nshared = true\n", has_store=False
            )
            processes[name] = stack.enter_context(hub)
        numbers = {"port": broker.port, "nodes": NODES, "jobs": JOBS, "every-s": 2, "marks-every-s": 1}
        command = [sys.executable, str(LOAD), *(f"--{name}={number}" for name, number in numbers.items())]
        load = stack.enter_context(
            subprocess.Popen(dying_with_parent(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        stack.callback(load.terminate)
        yield processes, watcher


def ask(hub: DaemonProcess, path: str) -> Any:
    with urlopen(f"{hub.page}api/v1/{path}", timeout=30) as response:
        return json.load(response)


def whole_fleet(hub: DaemonProcess) -> tuple[Any, ...]:
    """What the hub answers of the whole fleet: nodes, missing shares, statuses, whether the alignment is known, jobs."""
    fleet, alignment = ask(hub, "fleet"), ask(hub, "alignment")
    jobs = len(ask(hub, "jobs?limit=1000")["items"])
    known = alignment["alignment_ns"] is not None
    return fleet["nodes"], fleet["incomplete"], fleet["statuses"], known, jobs


WHOLE: tuple[Any, ...] = (NODES, [], {"SYNCHRONIZED": NODES}, True, JOBS)


def owners(watcher: JobWatcher, hubs: tuple[str, ...]) -> dict[str, str]:
    """The jobs' owners while these hubs share, once each job was last published by its owner."""
    expected = {job: str(owner(job_key(job), hubs)) for job in watcher.states}
    eventually(
        lambda: {job: states[-1][0] for job, states in list(watcher.states.items())}, lambda found: found == expected
    )
    return expected


def test_hubs_share_a_fleet_and_take_over_the_share_of_one_that_is_killed(
    hubs: tuple[dict[str, DaemonProcess], JobWatcher],
) -> None:
    """
    Each hub answers for the whole fleet from its share and those of the others. After `kill -9` of one the others do so
    again, its jobs go on under their versions, and no job is published by two hubs in turns.
    """
    processes, watcher = hubs
    for hub in processes.values():
        eventually(lambda hub=hub: whole_fleet(hub), lambda found: found == WHOLE)  # type: ignore[misc]
    eventually(lambda: len(watcher.states), lambda found: found == JOBS)
    before = owners(watcher, HUBS)
    for states in watcher.states.values():
        del states[:-1]  # until the last hub joined, others owned its jobs
    states_of_hubs = ask(processes["hub-a"], "hubs")["items"]
    of_two_nodes = [ask(hub, "alignment?nodes=n00000,n00119") for hub in processes.values()]
    killed = before[min(before)]
    processes[killed].kill()
    left = {name: hub for name, hub in processes.items() if name != killed}
    after = owners(watcher, tuple(left))
    for hub in left.values():
        eventually(lambda hub=hub: whole_fleet(hub), lambda found: found == WHOLE)  # type: ignore[misc]

    assert [state["nodes_known"] for state in states_of_hubs] == [
        40 * sum(owner(f"hall-1/rack-{rack:03d}", HUBS) == state["node"] for rack in range(3))
        for state in states_of_hubs
    ]
    assert all(each["alignment_ns"] is not None for each in of_two_nodes)
    assert watcher.publishers() == {job: list(dict.fromkeys((before[job], after[job]))) for job in before}
    for states in watcher.states.values():
        versions = [version for _, version in states]
        assert versions == sorted(versions)
