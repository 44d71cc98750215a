"""Exchanges what all ranks report to each other between steps: rows, sent in one step and read some steps later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import torch
import torch.distributed as dist

from timesyncd.training.policy.row import ROW_WORDS, Purpose, Row, check_in_step, check_passes

#: How long a rank sleeps between two looks at rows that it waits for: a share of its wait so far, within limits.
SLEEP_SHARE, MIN_SLEEP_S, MAX_SLEEP_S = 1 / 16, 20e-6, 2e-3

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


def _no_interrupt() -> None:
    pass


@dataclass(slots=True)
class _InFlight:
    """Rows in transit. `work`: None where they were loaded from a checkpoint."""

    work: PendingRows | None
    number: int
    all_rows: torch.Tensor
    own: torch.Tensor
    is_checked: bool = False

    def arrived(self) -> bool:
        return self.work is None or self.work.is_completed()


class RowExchange:
    """
    Exchanges rows between all ranks that decide together, over a process group of its own on the CPU. Every rank sends
    and receives in the same steps, and rows that arrive show whether it does.

    `replicas`: the ranks of this rank's data-parallel group. `interrupt`: called while rows are waited for; it may
    raise SyncError. `sent`: number of exchanges that this rank has begun. `awaited`: the number of the one that it waits
    for now; None: it does not wait. `rows_waited`, `rows_waited_ns`: how often,
    and how long, rows had not arrived when they counted. The methods raise RuntimeError where torch does: a rank has
    ended, or was silent for the group's time-out; and SyncError where a rank is in another step, or has left out an
    update.
    """

    def __init__(
        self, group: dist.ProcessGroup, replicas: Sequence[int] = (), interrupt: Callable[[], None] = _no_interrupt
    ) -> None:
        self.group = group
        self._replicas, self._interrupt = tuple(replicas), interrupt
        self._in_flight: dict[tuple[Purpose, int], _InFlight] = {}
        self._tree = TreeRows(group) if group.size() > MAX_RANKS_EACH_TO_EACH else None
        self.sent = 0
        self.awaited: int | None = None
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
        self.sent += 1
        self._in_flight[row.purpose, row.step] = _InFlight(work, self.sent, all_rows, own)

    def receive(self, step: int, purpose: Purpose = Purpose.MEASURE) -> list[Row]:
        """The rows of that step, by rank. Waits for them."""
        flight = self._in_flight.pop((purpose, step))
        try:
            self._wait(flight)
        except RuntimeError:
            self.check_arrived()  # rows before them may show why these do not come
            raise
        return self._checked(flight)

    def check_arrived(self) -> None:
        """Check the rows that have arrived since the last call, before they count."""
        for flight in self._in_flight.values():
            if not flight.is_checked and flight.work is not None and flight.arrived():
                flight.work.wait()
                self._checked(flight)

    def _checked(self, flight: _InFlight) -> list[Row]:
        rows = [Row.from_words(words) for words in flight.all_rows.view(-1, ROW_WORDS).tolist()]
        if not flight.is_checked and any(row.purpose is not Purpose.START for row in rows):
            check_in_step(rows)
            check_passes(rows, self._replicas)
        flight.is_checked = True
        return rows

    def _wait(self, flight: _InFlight) -> None:
        if flight.work is None:
            return
        if not flight.arrived():
            began_ns = time.monotonic_ns()
            self.awaited = flight.number
            try:
                self._poll(flight, began_ns)
            finally:
                self.awaited = None
            self.rows_waited += 1
            self.rows_waited_ns += time.monotonic_ns() - began_ns
        flight.work.wait()  # raises the error, if any

    def _poll(self, flight: _InFlight, began_ns: int) -> None:
        """Waits by short sleeps and not in torch, where nothing could interrupt it. They last a part of the wait."""
        while not flight.arrived():
            waited_s = (time.monotonic_ns() - began_ns) / 1e9
            time.sleep(min(MAX_SLEEP_S, max(MIN_SLEEP_S, waited_s * SLEEP_SHARE)))
            self._interrupt()

    def state_dict(self) -> dict[str, Any]:
        """The rows of all ranks that have not counted yet. Waits for them."""
        for flight in self._in_flight.values():
            self._wait(flight)
        return {
            "in_flight": [
                (int(purpose), step, flight.all_rows.tolist()) for (purpose, step), flight in self._in_flight.items()
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._in_flight = {
            (Purpose(purpose), step): _InFlight(None, 0, torch.tensor(words, dtype=torch.int64), torch.empty(0), True)
            for purpose, step, words in state["in_flight"]
        }
