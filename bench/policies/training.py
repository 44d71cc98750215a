"""One rank's part of one run: steps, evaluations that no clock counts, and rank 0's account of it."""

from __future__ import annotations

import copy
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from policies.adam_tasks import ADAM_TASKS, AdamTask
from policies.board import Board, write_replica
from policies.dealing import batches, epochs
from policies.makers import MAKERS, Given, Trainer
from policies.plan import TASKS, Method, Task
from policies.tasks import accuracy, digits, mlp
from torch import Tensor, nn
from torch.nn import functional

MOMENTUM, DECAY = 0.9, 2.0

#: Steps of a link's measurement, and those before them that do not count.
MEASURED, WARM_UP = 60, 15

#: A run without end would be a mistake of ours.
MOST_BUDGETS = 10

#: A transient straggler: in every so many steps the last rank sleeps for the computing of so many.
PAUSE_EVERY, PAUSED_STEPS = 20, 10


@dataclass(frozen=True)
class Order:
    """A run as the ranks receive it."""

    task: str
    method: Method
    seed: int
    limit_s: float
    compute_ms: float
    folder: str


class Stopwatch:
    """Counts while it runs."""

    def __init__(self) -> None:
        self._before_ns = 0
        self._began_ns: int | None = None

    def start(self) -> None:
        self._began_ns = time.monotonic_ns()

    def stop(self) -> float:
        """Seconds so far."""
        if self._began_ns is not None:
            self._before_ns += time.monotonic_ns() - self._began_ns
        self._began_ns = None
        return self._before_ns / 1e9


class Work(Protocol):
    """What a task trains: a network, an optimizer, batches, and how it is judged."""

    def network(self) -> nn.Module: ...
    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer: ...
    def rate_at(self, step: int) -> float: ...
    def batches(self, method: Method, rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def judge(self, network: nn.Module) -> float: ...

    @property
    def clip(self) -> float | None: ...


class SgdWork:
    """On digits."""

    clip: float | None = None

    def __init__(self, task: Task) -> None:
        self._task, self._data = task, digits()

    def network(self) -> nn.Module:
        return mlp()

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=self._task.learning_rate, momentum=MOMENTUM)

    def rate_at(self, step: int) -> float:
        """It falls with 1 / step, so that no method's steps end where another's do."""
        return self._task.learning_rate / (1 + DECAY * step / self._task.steps)

    def batches(self, method: Method, rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed * 1_000 + rank)
        for samples in batches(epochs(self._task, method, self._data, rank, ranks, seed), self._task.batch):
            yield self._data.draw(samples, generator)

    def judge(self, network: nn.Module) -> float:
        inputs, targets = self._data.held_out
        network.eval()
        with torch.no_grad():
            return accuracy(network(inputs), targets)


class AdamWork:
    """A task of `adam_tasks`, whose ranks draw independent batches of the same data."""

    def __init__(self, task: AdamTask) -> None:
        self._task, self.clip = task, task.clip
        self.network, self.optimizer, self.rate_at, self.judge = (
            task.network,
            task.optimizer,
            task.rate_at,
            task.held_out,
        )

    def batches(self, method: Method, rank: int, ranks: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed * 1_000 + rank)
        while True:
            yield self._task.draw(self._task.batch, generator)


def work_of(task: str) -> Work:
    adam = TASKS[task].adam
    return AdamWork(ADAM_TASKS[adam]) if adam else SgdWork(TASKS[task])


class Rank:
    def __init__(self, order: Order, network: nn.Module, work: Work) -> None:
        self.order, self.task, self.work = order, TASKS[order.task], work
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._batches = work.batches(order.method, self.rank, self.ranks, order.seed)
        self.network = network
        given = Given(network, work.optimizer(network), order.method, order.folder)
        self.trainer: Trainer = MAKERS[order.method.maker](given)
        self._pauses_s = 0.0
        if order.method.pauses and self.rank == self.ranks - 1:
            self._pauses_s = PAUSED_STEPS * order.compute_ms / 1e3

    def compute(self, step: int) -> Tensor:
        """Up to the gradients."""
        for group in self.trainer.optimizer.param_groups:
            group["lr"] = self.work.rate_at(step)
        inputs, targets = next(self._batches)
        loss = functional.cross_entropy(self.trainer.wrapped(inputs), targets)
        if self._pauses_s and step % PAUSE_EVERY == 0:
            time.sleep(self._pauses_s)
        self.trainer.optimizer.zero_grad(set_to_none=False)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.work.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.work.clip)
        return loss.detach()

    def update(self, loss: Tensor) -> None:
        self.trainer.before()
        self.trainer.optimizer.step()
        self.trainer.after(loss)


class Judge:
    """Rank 0 decides when a run is over; it keeps (seconds, value) of each evaluation."""

    def __init__(self, rank: Rank, board: Board) -> None:
        self._rank, self._board = rank, board
        self._judged = copy.deepcopy(rank.network)
        self.curve: list[tuple[float, float]] = []
        self.why = ""

    def value(self, parameters: Tensor) -> float:
        write_replica(self._judged, parameters)
        return self._rank.work.judge(self._judged)

    def judge(self, step: int, elapsed_s: float, parameters: Tensor) -> bool:
        """Whether the run is over."""
        order, task, value = self._rank.order, self._rank.task, self.value(parameters)
        is_number = bool(parameters.isfinite().all())
        self.curve.append((elapsed_s, value if is_number else math.inf if task.error else 0.0))
        if not is_number:
            self.why = "diverged"
        elif task.is_reached(value):
            self.why = "reached"
        elif elapsed_s > order.limit_s:
            self.why = "time"
        elif step >= task.steps * (1 if task.adam else MOST_BUDGETS):
            self.why = "steps"
        return bool(self.why)

    def in_step(self, step: int, clock: Stopwatch) -> bool:
        """All ranks pause, in this step all of them. What is still on its way holds the first barrier up, and counts."""
        dist.barrier()
        elapsed_s = clock.stop()
        self._board.put()
        dist.barrier()
        over = torch.zeros(1)
        if self._rank.rank == 0:
            over.fill_(self.judge(step, elapsed_s, self._board.mean()))
        dist.broadcast(over, 0)
        clock.start()
        return bool(over.item())

    def end_others(self) -> None:
        self._board.signal_others(signal.SIGKILL)

    def out_of_step(self, step: int, clock: Stopwatch) -> bool:
        """Rank 0 judges what it has, with the others frozen; they are ended when it is over."""
        if self._rank.rank != 0:
            return False
        self._board.signal_others(signal.SIGSTOP)
        try:
            elapsed_s = clock.stop()
            self._board.put()
            return self.judge(step, elapsed_s, self._board.own())
        finally:
            self._board.signal_others(signal.SIGCONT)
            clock.start()


def train(order: Order, network: nn.Module, work: Work) -> dict[str, Any]:
    """Rank 0's result of the run."""
    rank = Rank(order, network, work)
    judge = Judge(rank, Board(Path(order.folder), network, rank.rank, rank.ranks))
    evaluate: Callable[[int, Stopwatch], bool] = judge.out_of_step if order.method.is_served else judge.in_step
    clock = Stopwatch()
    dist.barrier()
    clock.start()
    step, is_over = 0, False
    while not is_over:
        rank.update(rank.compute(step))
        step += 1
        if step % rank.task.eval_every == 0:
            is_over = evaluate(step, clock)
    synchronizations = rank.trainer.synchronizations
    changes = rank.trainer.changes()
    synced = step if synchronizations is None else synchronizations()
    if not order.method.is_served:
        rank.trainer.close()
    elif rank.rank == 0:
        judge.end_others()
    return {"why": judge.why, "steps": step, "synchronizations": synced, "changes": changes, "curve": judge.curve}


def measure(order: Order, network: nn.Module, work: Work) -> dict[str, Any]:
    """Medians of computing and of communication, in ms, means over the ranks. The optimizer's part is computing."""
    rank = Rank(order, network, work)
    computing, communicating = [], []
    for step in range(WARM_UP + MEASURED):
        moments = [time.perf_counter()]
        rank.compute(step)
        moments.append(time.perf_counter())
        rank.trainer.before()
        moments.append(time.perf_counter())
        rank.trainer.optimizer.step()
        moments.append(time.perf_counter())
        computing.append(moments[1] - moments[0] + moments[3] - moments[2])
        communicating.append(moments[2] - moments[1])
    medians = [statistics.median(times[WARM_UP:]) * 1e3 for times in (computing, communicating)]
    mean = torch.tensor(medians) / rank.ranks
    dist.all_reduce(mean)
    compute_ms, communication_ms = mean.tolist()
    nbytes = sum(parameter.nbytes for parameter in network.parameters())
    return {"compute_ms": compute_ms, "communication_ms": communication_ms, "bytes": nbytes}
