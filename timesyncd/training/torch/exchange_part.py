"""Rows of all ranks, told without waiting: sent in one step, read some steps later."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from timesyncd.training.policy.rows import ROW_WORDS, Row


class Exchange:
    """
    On a group of its own, on the CPU, of all ranks that have to agree: every rank makes it, sends and takes alike.

    Raises RuntimeError where torch does: a rank is gone, or silent for the group's time-out.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._on_way: dict[int, tuple[dist.Work | None, torch.Tensor, torch.Tensor]] = {}
        self.waited = 0  #: rows that were not there yet when they counted
        self.waited_ns = 0

    def send(self, row: Row) -> None:
        mine = torch.tensor(row.words(), dtype=torch.int64).repeat(self.group.size())
        everybodys = torch.empty_like(mine)
        # One round of all pairs: gloo's gather is a ring, in which each rank waits for the one before it to be scheduled.
        work = self.group.alltoall_base(everybodys, mine, [], [])
        self._on_way[row.step] = (work, everybodys, mine)

    def take(self, step: int) -> list[Row]:
        """By rank."""
        work, everybodys, _ = self._on_way.pop(step)
        self._wait(work)
        return [Row.of(words) for words in everybodys.view(-1, ROW_WORDS).tolist()]

    def _wait(self, work: dist.Work | None) -> None:
        if work is None or work.is_completed():
            if work is not None:
                work.wait()  # raises what went wrong
            return
        began_ns = time.monotonic_ns()
        work.wait()
        self.waited += 1
        self.waited_ns += time.monotonic_ns() - began_ns

    def state_dict(self) -> dict[str, Any]:
        """What was sent and has not counted yet, from all ranks, once it is there."""
        for work, _, _ in self._on_way.values():
            self._wait(work)
        return {"on_way": {step: everybodys.tolist() for step, (_, everybodys, _) in self._on_way.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._on_way = {
            int(step): (None, torch.tensor(words, dtype=torch.int64), torch.empty(0))
            for step, words in state["on_way"].items()
        }
