"""A job's policy is changed while it runs: real daemons, ranks that are processes, the command, and a broker between two nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from timesyncd.simulation.bed.broker import Mosquitto, free_port

pytestmark = pytest.mark.integration

#: A rank that marks steps until its plan has the policy of the last line that it read, and then prints what the plan has.
RANK = """
import json, sys, time
from timesyncd.client import Job
job = Job("job", int(sys.argv[2]), 2, 0, runtime_dir=sys.argv[1])
step, deadline = 0, time.monotonic() + 120
for line in sys.stdin:
    while job.plan().policy != line.strip() and time.monotonic() < deadline:
        with job.meter.step(step), job.meter.sync(step):
            time.sleep(0.01)
        step += 1
    plan = job.plan()
    print(json.dumps([plan.policy, plan.policy_version, plan.version]), flush=True)
"""


class Node:
    """A daemon with a page, `more` in its configuration, and a rank of the job."""

    def __init__(self, name: str, folder: Path, more: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.url = f"http://127.0.0.1:{free_port()}/"
        self._config = self.folder / "timesyncd.toml"
        self._config.write_text(
            f'[node]\nname = "{name}"\nruntime_dir = "{self.folder}"\n[web]\nport = {self.url.split(":")[2][:-1]}\n{more}'
        )
        self.start()

    def start(self) -> None:
        self.daemon = subprocess.Popen([sys.executable, "-m", "timesyncd", "run", "--config", str(self._config)])

    def policy(self, *words: str) -> tuple[int, str]:
        """The command's exit status and output."""
        command = [sys.executable, "-m", "timesyncd", "policy", "job", *words]
        places = ["--url", self.url, "--runtime-dir", str(self.folder)]
        done = subprocess.run([*command, *places], check=False, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


class Ranks:
    def __init__(self, folders: Sequence[Path]) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(folder), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, folder in enumerate(folders)
        ]

    def want(self, policy: str) -> None:
        """They mark steps from now on until their plan has it."""
        for process in self.processes:
            assert process.stdin is not None
            print(policy, file=process.stdin, flush=True)

    def plans(self) -> list[Any]:
        """What each rank's plan has, once it has what is wanted."""
        return [json.loads(process.stdout.readline()) for process in self.processes if process.stdout is not None]


@contextmanager
def running(nodes: Sequence[Node], ranks_at: Sequence[Path]) -> Iterator[Ranks]:
    ranks = Ranks(ranks_at)
    try:
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()
            process.communicate()
        for node in nodes:
            node.daemon.kill()
            node.daemon.wait()


def answered(node: Node, *words: str) -> str:
    """The command's output once it succeeds; a hub that has just started neither knows the job nor publishes."""
    for _ in range(100):
        code, output = node.policy(*words)
        if code == 0:
            return output
    raise AssertionError(output)


def test_a_running_job_s_policy_changes(folder: Path) -> None:
    """From the configuration to the plan of both ranks; the same request again changes nothing."""
    node = Node("node-a", folder, '[[job]]\nname = "job"\npolicy = "asp"\n')
    with running([node], [node.folder] * 2) as ranks:
        ranks.want("asp")
        first = ranks.plans()
        ranks.want("local_sgd(h=8)")
        changed = answered(node, "local_sgd( h=8 )")
        second = ranks.plans()
        again = answered(node, "local_sgd(h=8)", "--json")

    assert [rank[:2] for rank in first + second] == [["asp", 1]] * 2 + [["local_sgd(h=8)", 2]] * 2
    assert second[0][2] > first[0][2]
    assert changed.endswith(": local_sgd(h=8) (change 2)\n")
    assert json.loads(again)["policy_version"] == 2


def test_a_policy_crosses_the_broker_and_outlives_the_hub(mosquitto: Mosquitto, folder: Path) -> None:
    """
    Asked for on a node that is no hub, planned by the hub of another, read by the ranks of both. A hub that is killed and comes back has it,
    and counts on from there.
    """
    mqtt = f'[mqtt]\nhost = "{mosquitto.host}"\nport = {mosquitto.port}\n'
    hub, node = Node("node-a", folder, mqtt + "[hub]\n"), Node("node-b", folder, mqtt)
    with running([hub, node], [hub.folder, node.folder]) as ranks:
        ranks.want("selsync(quantile=0.9) + topk")
        changed = answered(node, "selsync(quantile=0.9)+topk", "--json")
        first = ranks.plans()
        hub.daemon.kill()
        hub.daemon.wait()
        hub.start()
        ranks.want("bsp")
        again = answered(node, "bsp", "--json")
        second = ranks.plans()

    assert [rank[:2] for rank in first] == [["selsync(quantile=0.9) + topk", 1]] * 2
    assert [rank[:2] for rank in second] == [["bsp", 2]] * 2
    assert [json.loads(output)["policy_version"] for output in (changed, again)] == [1, 2]
