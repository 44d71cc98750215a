"""Real ranks of a torch job as processes, and what they mark."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch_processes import start

from timesyncd.ipc.job_datagram import SOCKET_NAME, Mark, decode
from timesyncd.simulation.bed.broker import free_port

#: Patience, not an expectation: two ranks on a machine that does other things too.
TIMEOUT_S = 300


class Marks:
    """What arrives where the daemon would listen: by job and rank, in the order of arrival; `lost` as last reported."""

    def __init__(self, folder: Path) -> None:
        self.of: defaultdict[tuple[str, int], list[Mark]] = defaultdict(list)
        self.lost: dict[tuple[str, int], int] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / SOCKET_NAME))
        self._stop = threading.Event()
        self._socket.settimeout(0.1)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            stopped = self._stop.is_set()  # before the look, so that what was sent before is seen by it
            try:
                datagram = decode(self._socket.recv(65_536))
            except TimeoutError:
                if stopped:
                    return
                continue
            place = (datagram.header.job, datagram.header.rank)
            self.of[place] += datagram.marks
            self.lost[place] = datagram.header.lost

    def close(self) -> None:
        """After all that was sent is read; once is enough."""
        self._stop.set()
        self._thread.join()
        self._socket.close()


@contextmanager
def listening() -> Iterator[tuple[Path, Marks]]:
    """A runtime folder, its path short enough for a socket, and the marks that are sent to it."""
    folder = Path(tempfile.mkdtemp(prefix="ts-"))
    marks = Marks(folder)
    try:
        yield folder, marks
    finally:
        marks.close()
        shutil.rmtree(folder)


def run_ranks(script: Path, arguments: Sequence[str], world_size: int = 2, **environ: str) -> list[Any]:
    """The last line that each rank printed, as JSON. Raises AssertionError with the output of a rank that failed."""
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        **environ,
    }
    ranks = [
        start(script, arguments, rank, shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=TIMEOUT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for number, (rank, (out, err)) in enumerate(zip(ranks, outputs, strict=True)):
        assert rank.returncode == 0, f"rank {number} ended with {rank.returncode}:\n{out[-2000:]}\n{err[-6000:]}"
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in outputs]
