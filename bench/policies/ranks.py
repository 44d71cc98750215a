"""The ranks of one cell, and a parameter server's place: a lab of namespaces, and a waiting process in each of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "support"))

from policies.plan import Method
from rank_lab import INTERFACE, PORT, RankLab

from timesyncd.simulation.bed.host import dying_with_parent

#: Above the run's own limit: evaluations, the beginning, an ending.
PATIENCE_S = 40.0


class RanksLost(Exception):
    """The ranks did not end in time; they are to be started again."""


class Ranks:
    """`rate_mbit` None: unshaped links."""

    def __init__(self, task: str, ranks: int, rate_mbit: float | None) -> None:
        self.task, self.ranks, self.rate_mbit = task, ranks, rate_mbit
        self._stack = ExitStack()
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        rate = None if self.rate_mbit is None else f"{self.rate_mbit * 1000:.0f}kbit"
        lab = self._stack.enter_context(RankLab(self.ranks + 1, rate))
        self._folder = Path(tempfile.mkdtemp(prefix="policies-", dir="/dev/shm"))
        self._stack.callback(shutil.rmtree, self._folder)
        self._output = self._stack.enter_context((self._folder / "output").open("w+"))
        environ = {
            "PYTHONPATH": str(ROOT / "bench") + os.pathsep + os.environ.get("PYTHONPATH", ""),
            "WORLD_SIZE": str(self.ranks), "GROUP_WORLD_SIZE": str(self.ranks), "TP_SOCKET_IFNAME": INTERFACE,
        }  # fmt: skip
        self._orders, self._places = [], []
        for rank in range(self.ranks + 1):
            orders = self._folder / f"orders-{rank}"
            os.mkfifo(orders)
            # For both, since opening it for writing alone waits for a reader, which may never come.
            self._orders.append(self._stack.enter_context(orders.open("rb+", buffering=0)))
            command = dying_with_parent([sys.executable, "-m", "policies.rank", self.task, str(orders)])
            self._places.append(lab.start(rank, command, environ, self._output))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, kind: str, method: Method, **order: Any) -> dict[str, Any]:
        """
        Rank 0's result, with `sent_bytes` of each rank, then of the server; {"error": ...} where a rank failed. Raises RanksLost.
        """
        number = next(self._numbers)
        folder = self._folder / str(number)
        folder.mkdir()
        order_fields = {
            "kind": kind, "task": self.task, "method": dataclasses.asdict(method), "port": PORT + 1 + number,
            "folder": str(folder), **order,
        }  # fmt: skip
        for orders in self._orders:
            orders.write(json.dumps(order_fields).encode() + b"\n")
        done = [folder / f"done-{rank}.json" for rank in range(self.ranks + 1)]
        self._wait(done, order["limit_s"] * 2 + PATIENCE_S)
        result = folder / "result.json"
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {"error": "killed"}
        found["sent_bytes"] = [json.loads(path.read_text()) for path in done]
        shutil.rmtree(folder)
        return found

    def _wait(self, done: list[Path], within_s: float) -> None:
        until = time.monotonic() + within_s
        while not all(path.exists() for path in done):
            if time.monotonic() > until or any(place.poll() is not None for place in self._places):
                self._output.seek(0)
                raise RanksLost(f"no end within {within_s:.0f} s, or a place has gone\n{self._output.read()[-2000:]}")
            time.sleep(0.05)
