"""
A two-rank job without torch. One rank is `python -m timesyncd.simulation.bed.job RANK FD`; FD is its end of a pipe to the other rank.

It begins when its daemon listens. Each step is some work and a barrier. How long a rank works, in seconds, is the newest line of its
standard input, and WORK_S before the first. Runs until it is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from timesyncd.client.barrier import Barrier
from timesyncd.client.job import Job
from timesyncd.ipc.job_datagram import SOCKET_NAME
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.host import marked_environment

NAME = "demo"
WORK_S = 0.010

#: A rank whose daemon does not come works without it, as every job does.
DAEMON_WITHIN_S = 60.0


@contextmanager
def rank_process(rank: int, end: Connection, runtime_dir: Path, marker: str) -> Iterator[subprocess.Popen[bytes]]:
    """One rank as a process of its own, on the node whose daemon has this folder."""
    process = subprocess.Popen(
        host.dying_with_parent([sys.executable, "-m", __name__, str(rank), str(end.fileno())]),
        env=marked_environment(marker) | {"TIMESYNCD_RUNTIME_DIR": str(runtime_dir)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[end.fileno()],
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(BrokenPipeError):  # of a line that the rank has not read
            process.stdin.close()  # type: ignore[union-attr]


def set_work(process: subprocess.Popen[bytes], seconds: float) -> None:
    """From its next step on, this rank works so long in each."""
    assert process.stdin
    with contextlib.suppress(BrokenPipeError):  # a rank that ended is noticed by its status
        process.stdin.write(f"{seconds}\n".encode())
        process.stdin.flush()


class _Work:
    """How long the rank works in each step, as its standard input says."""

    def __init__(self) -> None:
        self.seconds = WORK_S
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for line in sys.stdin:
            self.seconds = float(line)


def run(rank: int, peer: Connection) -> None:
    def collective() -> None:
        peer.send(None)
        peer.recv()

    def broadcast(number: int) -> int:
        if rank == 0:
            peer.send(number)
            return number
        received: int = peer.recv()
        return received

    job = Job(NAME, rank, world_size=2)
    _await_daemon(job)
    barrier = Barrier(job, collective, broadcast)
    work = _Work()
    for step in itertools.count():
        with job.meter.step(step):
            time.sleep(work.seconds)
            barrier.wait(step)


def _await_daemon(job: Job) -> None:
    """The marks before a daemon listens are lost, and the page states that; one that starts with the rank takes some seconds."""
    deadline_s = time.monotonic() + DAEMON_WITHIN_S
    while not (job.runtime_dir / SOCKET_NAME).exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)


if __name__ == "__main__":
    run(int(sys.argv[1]), Connection(int(sys.argv[2])))
