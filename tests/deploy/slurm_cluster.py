"""Debian's munged, slurmctld and three slurmds on this machine, in namespaces of their own (slurm_machine.sh)."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from timesyncd.simulation.bed.broker import free_port

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
NODES = ("node-a", "node-b", "node-c")

#: For what takes a second on an idle machine.
PATIENCE_S = 90.0


class SlurmCluster:
    """A context manager: the cluster, whose nodes are idle. It needs root, and slurmctld, slurmd and munge installed."""

    def __enter__(self) -> Self:
        ports = [str(free_port()) for _ in range(1 + len(NODES))]
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen([*command, "sh", str(HERE / "slurm_machine.sh"), str(PROJECT), *ports])
        self._pid = 0
        try:
            wait_until(self._is_ready, "the machine's processes are started")
            wait_until(lambda: self.states() == dict.fromkeys(NODES, "idle"), lambda: f"nodes idle: {self.log()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        """Also finds the first process inside."""
        assert self._process.poll() is None, "slurm_machine.sh ended"
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        self._pid = int(children[0]) if children else 0
        return self._pid > 0 and (self.root / "run/ready").exists()

    @property
    def root(self) -> Path:
        """The machine's file tree, as this process reaches it."""
        return Path(f"/proc/{self._pid}/root")

    def runtime_folder(self, node: str) -> Path:
        """What is /run/timesyncd on that node."""
        return self.root / "run/nodes" / node

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Runs a shell script on the machine, in the project's folder, as root."""
        enter = [
            "nsenter",
            f"--target={self._pid}",
            "--mount",
            "--pid",
            "--",
            "sh",
            "-euc",
            f"cd {PROJECT}; PATH=/run/bin:$PATH\n{script}",
        ]
        return subprocess.run(enter, check=False, capture_output=True, text=True, timeout=120)

    def output(self, script: str) -> str:
        done = self.run(script)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}{self.log()}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """The state of each node; empty while the controller does not answer."""
        done = self.run("sinfo --noheader --Node --format '%N %T'")
        return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}

    def submit(self, script: str, *options: str) -> str:
        """The id of a batch job; its output is /run/job.ID."""
        path = self.root / "run/job.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        words = " ".join(f"'{each}'" for each in options)
        return self.output(f"sbatch --parsable --output=/run/job.%j {words} /run/job.sh").strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        return dict(word.split("=", 1) for word in self.output(f"scontrol show job -o {number}").split() if "=" in word)

    def wait_for_job(self, number: str, is_met: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        wait_until(lambda: is_met(self.job(number)), lambda: f"job {number}: {self.job(number)}{self.log()}")
        return self.job(number)

    def log(self) -> str:
        """The ends of the daemons' logs."""
        logs = sorted([*self.root.glob("run/slurm/*.log"), *self.root.glob("run/slurm/*.out")])
        return "".join(f"\n== {path.name}\n{path.read_text()[-1500:]}" for path in logs)


def wait_until(is_met: Callable[[], bool], what: str | Callable[[], str]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_met():
        assert time.monotonic() < deadline_s, what if isinstance(what, str) else what()
        time.sleep(0.2)


def missing_programs() -> list[str]:
    return [name for name in ("munged", "slurmctld", "slurmd", "nsenter") if shutil.which(name) is None]
