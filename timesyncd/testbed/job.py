"""
One rank of a two-rank job without torch: `python -m timesyncd.testbed.job RANK SOCKET`, with a collective over a UNIX socket.

Each step is some work, 10 ms, and a barrier; rank 1 works 10 ms longer, so it is the slow one. Runs until it is killed.
"""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Client, Connection, Listener

from timesyncd.client.barrier import Barrier
from timesyncd.client.job import Job

NAME = "demo"
SLOW_RANK = 1
WORK_S = (0.010, 0.020)


def connect(rank: int, path: str) -> Connection:
    """Rank 0 listens, rank 1 finds it within ten seconds."""
    if rank == 0:
        with Listener(path, "AF_UNIX") as listener:
            return listener.accept()
    for _ in range(100):
        try:
            return Client(path, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.1)
    raise SystemExit(f"rank 0 does not listen on {path}")


def main() -> None:
    rank, path = int(sys.argv[1]), sys.argv[2]
    peer = connect(rank, path)

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
    barrier = Barrier(job, collective, broadcast)
    step = 0
    while True:
        time.sleep(WORK_S[rank])
        barrier.wait(step)
        step += 1


if __name__ == "__main__":
    main()
