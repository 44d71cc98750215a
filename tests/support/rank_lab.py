"""
Ranks of a real job, each in a network namespace of its own name, joined by a switch over links that `tc tbf` shapes.

    with RankLab(2, rate="200mbit") as lab:
        outputs = lab.run([sys.executable, "examples/train.py", "--steps", "20"], {"TIMESYNCD_RUNTIME_DIR": ...})

The namespaces are named <prefix>-<our pid>-<counter>-<rank>, the switch's ends with -switch. They go when the lab closes; what a lab left that
was killed goes when the next one opens. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import pytest

from timesyncd.simulation.bed.host import find, run

PREFIX = "timesyncd-ranks"
INTERFACE = "eth0"
PORT = 29_500

#: Patience, not an expectation.
TIMEOUT_S = 300

_TC = "tc"
_counter = itertools.count()

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which(_TC, path="/usr/sbin:/sbin:/usr/bin:/bin") is None,
    reason="network namespaces and tc need root and iproute2",
)


class RankLab:
    """
    `rate` is what each rank's link carries either way, as tc writes it ("1gbit"); None: unshaped. `latency_ms` is the longest that tbf queues.
    """

    def __init__(self, ranks: int, rate: str | None = None, latency_ms: int = 100) -> None:
        self.ranks = ranks
        self._rate = rate
        self._latency_ms = latency_ms
        self._name = f"{PREFIX}-{os.getpid()}-{next(_counter)}"
        self._running: list[subprocess.Popen[str]] = []
        self._outputs: list[IO[str]] = []

    @property
    def namespaces(self) -> list[str]:
        """Of the ranks, in their order."""
        return [f"{self._name}-{rank}" for rank in range(self.ranks)]

    @property
    def _switch(self) -> str:
        return f"{self._name}-switch"

    def __enter__(self) -> Self:
        remove_abandoned()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for rank, name in enumerate(self.namespaces):
            _ip("netns", "add", name)
            far = f"port{rank}"
            peer = ("peer", "name", far, "netns", self._switch)
            _ip("-n", name, "link", "add", INTERFACE, "type", "veth", *peer)
            _ip("-n", name, "address", "add", f"{self.address(rank)}/24", "dev", INTERFACE)
            for namespace, interface in ((name, "lo"), (name, INTERFACE), (self._switch, far)):
                _ip("-n", namespace, "link", "set", interface, "up")
            _ip("-n", self._switch, "link", "set", far, "master", "switch")
            self._shape(name, INTERFACE)
            self._shape(self._switch, far)

    def _shape(self, namespace: str, interface: str) -> None:
        if self._rate is not None:
            tbf = ("tbf", "rate", self._rate, "burst", "128kb", "latency", f"{self._latency_ms}ms")
            run([_tool(_TC), "-n", namespace, "qdisc", "add", "dev", interface, "root", *tbf])

    def address(self, rank: int) -> str:
        return f"10.77.0.{rank + 1}"

    def start(
        self, rank: int, command: Sequence[str], environ: Mapping[str, str] | None = None, output: IO[str] | None = None
    ) -> subprocess.Popen[str]:
        """One rank, with its place in the environment as by torchrun; it is killed when the lab closes."""
        placement = {
            "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(self.ranks), "GROUP_WORLD_SIZE": str(self.ranks), "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": self._name,
        }  # fmt: skip
        inside = [find("ip"), "netns", "exec", self.namespaces[rank], *command]
        environment = {**os.environ, **placement, **(environ or {})}
        process = subprocess.Popen(
            inside, env=environment, text=True, start_new_session=True, stdout=output, stderr=subprocess.STDOUT if output else None
        )  # fmt: skip
        self._running.append(process)
        return process

    def run(
        self, command: Sequence[str], environ: Mapping[str, str] | None = None, within_s: float = TIMEOUT_S
    ) -> list[str]:
        """The same command on every rank, to its end; what each wrote. Fails with that when one does, and then ends the others."""
        outputs = [_unlinked() for _ in range(self.ranks)]
        self._outputs += outputs
        processes = [self.start(rank, command, environ, output) for rank, output in enumerate(outputs)]
        until = time.monotonic() + within_s
        while any(process.poll() is None for process in processes):
            failed = [rank for rank, process in enumerate(processes) if process.poll()]
            if failed or time.monotonic() > until:
                break
            time.sleep(0.05)
        statuses = [process.poll() for process in processes]
        for process in processes:
            _kill(process)
        written = [_read(output) for output in outputs]
        assert statuses == [0] * self.ranks, f"exit statuses {statuses} (None: still running)\n" + "\n".join(written)
        return written

    def close(self) -> None:
        for process in self._running:
            _kill(process)
        for output in self._outputs:
            output.close()
        for name in (*self.namespaces, self._switch):
            _remove(name)


def remove_abandoned() -> None:
    """The namespaces of labs whose process is gone."""
    for path in Path("/run/netns").glob(f"{PREFIX}-*"):
        found = re.fullmatch(rf"{PREFIX}-(\d+)-.*", path.name)
        if found is not None and not Path(f"/proc/{found[1]}").exists():
            _remove(path.name)


def _remove(name: str) -> None:
    if Path("/run/netns", name).exists():
        _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    run([find("ip"), *words])


def _tool(name: str) -> str:
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    assert path is not None, f"{name} is not installed"
    return path


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _unlinked() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8")


def _read(output: IO[str]) -> str:
    output.seek(0)
    return output.read()
