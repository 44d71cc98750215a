"""
One rank of a job of two, each in a machine of its own: rank.py RANK ADDRESS_OF_RANK_0 SECONDS

In each step both work as long as the file WORK_S says, wait for each other by the job's barrier, and then hold until an instant that
rank 0 names. A line for each step; tests/vm/vm_two_nodes.py reads them:

step released_raw_ns instant_ns mode reason straggler alignment_ns

CLOCK_MONOTONIC_RAW was read right after the release.
"""

from __future__ import annotations

import glob
import json
import socket
import sys
import time
from pathlib import Path

sys.path[:0] = glob.glob("/opt/timesyncd/lib/python3*/site-packages")

from timesyncd.client import Barrier, Job
from timesyncd.client.barrier import hold_until

PORT = 4321
WORK_S = Path("/run/vm/work_s")
HOLD_NS = 60_000_000
CONNECT_WAIT_S = 0.2


class Peer:
    """The other rank. Both call the same methods in the same order."""

    def __init__(self, rank: int, address: str) -> None:
        self._rank = rank
        self._file = _connected(rank, address).makefile("rw")

    def exchange(self, mine: int) -> int:
        """The other rank's number."""
        self._file.write(json.dumps(mine) + "\n")
        self._file.flush()
        return int(json.loads(self._file.readline()))

    def broadcast(self, number: int) -> int:
        """Rank 0's number."""
        other = self.exchange(number)
        return number if self._rank == 0 else other


def _connected(rank: int, address: str) -> socket.socket:
    if rank == 0:
        with socket.create_server((address, PORT)) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection((address, PORT))
        except OSError:
            time.sleep(CONNECT_WAIT_S)


def raw_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def main() -> None:
    rank, address, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    peer = Peer(rank, address)
    job = Job("pair", rank, world_size=2)
    barrier = Barrier(job, lambda: peer.exchange(0), peer.broadcast)
    end_ns = raw_ns() + round(seconds * 1e9)
    step = 0
    while peer.broadcast(int(raw_ns() < end_ns)):
        time.sleep(float(WORK_S.read_text()))
        verdict = barrier.wait(step)
        instant_ns = peer.broadcast(time.time_ns() + HOLD_NS)
        hold_until(instant_ns)
        released_ns = raw_ns()
        signals = job.signals()
        straggler, apart_ns = (None, None) if signals is None else (signals.straggler_rank, signals.alignment_ns)
        print(step, released_ns, instant_ns, verdict.mode, verdict.reason_code, straggler, apart_ns, flush=True)
        step += 1
    job.close()


if __name__ == "__main__":
    main()
