"""Exchanges what all ranks report to each other between steps: rows, sent in one step and read some steps later."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist

from timesyncd.training.policy.schedule import ROW_WORDS, Row

#: With more ranks rows go through one rank, down a tree: each to each would be this number squared of messages.
MAX_RANKS_EACH_TO_EACH = 64


class PendingRows(Protocol):
    """Rows in transit, as torch's Work. `wait` raises RuntimeError where a rank has ended."""

    def is_completed(self) -> bool: ...

    def wait(self) -> object: ...


class TreeRows:
    """
    Gathers the rows of all ranks on rank 0 and spreads them down a tree, in a thread of its own: the second begins only after the first, and
    every rank runs both in the same order. The thread ends with the process.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._requests: SimpleQueue[tuple[FinishedRows, torch.Tensor, torch.Tensor]] = SimpleQueue()
        threading.Thread(target=self._run, name="rows", daemon=True).start()

    def send(self, own: torch.Tensor, all_rows: torch.Tensor) -> PendingRows:
        finished = FinishedRows()
        self._requests.put((finished, own, all_rows))
        return finished

    def _run(self) -> None:
        while True:
            finished, own, all_rows = self._requests.get()
            try:
                self._exchange(own, all_rows)
                finished.end(None)
            except Exception as error:  # noqa: BLE001  it is raised where the rows are waited for
                finished.end(error)

    def _exchange(self, own: torch.Tensor, all_rows: torch.Tensor) -> None:
        gather = dist.GatherOptions()
        gather.rootRank = 0
        parts = [list(all_rows.view(self._group.size(), -1).unbind())] if self._group.rank() == 0 else []
        self._group.gather(parts, [own], gather).wait()
        spread = dist.BroadcastOptions()
        spread.rootRank = spread.rootTensor = 0
        self._group.broadcast([all_rows], spread).wait()


class FinishedRows:
    """What `TreeRows.send` returns."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        self._error = error
        self._done.set()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error


class RowExchange:
    """
    Exchanges rows between all ranks that decide together, over a process group of its own on the CPU. Every rank sends
    and receives in the same steps.

    `rows_waited`, `rows_waited_ns`: how often, and how long, rows had not arrived when they counted. The methods raise
    RuntimeError where torch does: a rank has ended, or was silent for the group's time-out.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._in_flight: dict[int, tuple[PendingRows | None, torch.Tensor, torch.Tensor]] = {}
        self._tree = TreeRows(group) if group.size() > MAX_RANKS_EACH_TO_EACH else None
        self.rows_waited = 0
        self.rows_waited_ns = 0

    def send(self, row: Row) -> None:
        own = torch.tensor(row.words(), dtype=torch.int64)
        all_rows = own.new_empty(self.group.size() * len(own))
        work: PendingRows
        if self._tree is not None:
            work = self._tree.send(own, all_rows)
        else:
            # All pairs at once: gloo's all-gather is a ring, in which each rank waits until the rank before it is
            # scheduled.
            own = own.repeat(self.group.size())
            work = self.group.alltoall_base(all_rows, own, [], [])
        self._in_flight[row.step] = (work, all_rows, own)

    def receive(self, step: int) -> list[Row]:
        """The rows of that step, by rank. Waits for them."""
        work, all_rows, _ = self._in_flight.pop(step)
        self._wait(work)
        return [Row.from_words(words) for words in all_rows.view(-1, ROW_WORDS).tolist()]

    def _wait(self, work: PendingRows | None) -> None:
        if work is None or work.is_completed():
            if work is not None:
                work.wait()  # raises the error, if any
            return
        began_ns = time.monotonic_ns()
        work.wait()
        self.rows_waited += 1
        self.rows_waited_ns += time.monotonic_ns() - began_ns

    def state_dict(self) -> dict[str, Any]:
        """The rows of all ranks that have not counted yet. Waits for them."""
        for work, _, _ in self._in_flight.values():
            self._wait(work)
        return {"in_flight": {step: all_rows.tolist() for step, (_, all_rows, _) in self._in_flight.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._in_flight = {
            int(step): (None, torch.tensor(words, dtype=torch.int64), torch.empty(0))
            for step, words in state["in_flight"].items()
        }
