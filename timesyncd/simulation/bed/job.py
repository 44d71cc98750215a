"""
A two-rank job without torch. One rank is `python -m timesyncd.simulation.bed.job RANK FD`; FD is its end of a pipe to the other rank.

Each step is some work, 10 ms, and a barrier; rank 1 works 10 ms longer, so it is the slow one. Runs until it is killed.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from timesyncd.client.barrier import Barrier
from timesyncd.client.job import Job
from timesyncd.simulation.bed import host
from timesyncd.simulation.bed.host import marked_environment

NAME = "demo"
WORK_S = (0.010, 0.020)


@contextmanager
def rank_process(rank: int, end: Connection, runtime_dir: Path, marker: str) -> Iterator[subprocess.Popen[bytes]]:
    """One rank as a process of its own, on the node whose daemon has this folder."""
    process = subprocess.Popen(
        host.dying_with_parent([sys.executable, "-m", __name__, str(rank), str(end.fileno())]),
        env=marked_environment(marker) | {"TIMESYNCD_RUNTIME_DIR": str(runtime_dir)},
        stdin=subprocess.DEVNULL,
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

    barrier = Barrier(Job(NAME, rank, world_size=2), collective, broadcast)
    for step in itertools.count():
        time.sleep(WORK_S[rank])
        barrier.wait(step)


if __name__ == "__main__":
    run(int(sys.argv[1]), Connection(int(sys.argv[2])))
