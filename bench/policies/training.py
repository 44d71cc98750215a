"""One rank's part of one run: steps, evaluations that no clock counts, and rank 0's account of it."""

from __future__ import annotations

import copy
import math
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from policies.board import Board
from policies.dealing import batches, epochs, steps_per_epoch
from policies.makers import MAKERS, Given, Trainer, batch_of_own, injecting
from policies.plan import TASKS, Method
from policies.tasks import Data, accuracy, perplexity
from torch import Tensor, nn
from torch.nn import functional

MOMENTUM, DECAY = 0.9, 2.0

#: Steps of a link's measurement, and those before them that do not count.
MEASURED, WARM_UP = 60, 15

#: A run without end would be a mistake of ours.
MOST_BUDGETS = 40


@dataclass(frozen=True)
class Order:
    """A run as the ranks receive it. `target` and `limit_s` None: to the end of the budget."""

    task: str
    method: Method
    learning_rate: float
    seed: int
    target: float | None
    limit_s: float | None
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


class Rank:
    def __init__(self, order: Order, network: nn.Module, data: Data) -> None:
        self.order, self.task, self.data = order, TASKS[order.task], data
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._generator = torch.Generator().manual_seed(order.seed * 1_000 + self.rank)
        size = batch_of_own(order.method, self.task.batch, self.ranks)
        own_epochs = epochs(self.task, order.method, data, self.rank, self.ranks, order.seed)
        self._batches = batches(own_epochs, size)
        self._inject = injecting(order.method, order.seed)
        self.network = network
        optimizer = torch.optim.SGD(network.parameters(), lr=order.learning_rate, momentum=MOMENTUM)
        epoch = steps_per_epoch(self.task, order.method, data, size, self.ranks)
        self.trainer: Trainer = MAKERS[order.method.maker](Given(network, optimizer, order.method, order.folder, epoch))
        self._sleeps_s = order.method.slowed * order.compute_ms / 1e3 if self.rank == self.ranks - 1 else 0.0

    def compute(self, step: int) -> Tensor:
        """Up to the gradients. The learning rate falls with 1 / step, so that no method's steps end where another's do."""
        rate = self.order.learning_rate / (1 + DECAY * step / self.task.steps)
        for group in self.trainer.optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = self.data.draw(next(self._batches), self._generator)
        inputs, targets = self._inject(step, inputs, targets)
        loss = functional.cross_entropy(self.trainer.wrapped(inputs), targets)
        if self._sleeps_s:
            time.sleep(self._sleeps_s)
        self.trainer.optimizer.zero_grad(set_to_none=False)
        loss.backward()  # type: ignore[no-untyped-call]
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
        nn.utils.vector_to_parameters(parameters, self._judged.parameters())
        measure = perplexity if self._rank.task.error else accuracy
        inputs, targets = self._rank.data.held_out
        self._judged.eval()
        with torch.no_grad():
            return measure(self._judged(inputs), targets)

    def judge(self, step: int, elapsed_s: float, parameters: Tensor) -> bool:
        """Whether the run is over."""
        order, task, value = self._rank.order, self._rank.task, self.value(parameters)
        is_number = bool(parameters.isfinite().all())
        self.curve.append((elapsed_s, value if is_number else math.inf if task.error else 0.0))
        if not is_number:
            self.why = "diverged"
        elif order.target is not None and task.is_reached(value, order.target):
            self.why = "reached"
        elif order.limit_s is not None and elapsed_s > order.limit_s:
            self.why = "time"
        elif step >= task.steps * (1 if order.limit_s is None else MOST_BUDGETS):
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


def train(order: Order, network: nn.Module, data: Data) -> dict[str, Any]:
    """Rank 0's result of the run."""
    rank = Rank(order, network, data)
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


def measure(order: Order, network: nn.Module, data: Data) -> dict[str, Any]:
    """Medians of computing and of communication, in ms, means over the ranks. The optimizer's part is computing."""
    rank = Rank(order, network, data)
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
