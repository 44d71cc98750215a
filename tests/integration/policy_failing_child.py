"""One rank of a real gloo job whose rank 1 ends or becomes silent; prints as JSON how it ended itself."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from policy_alone import linear, loss_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from timesyncd.client import Job
from timesyncd.client.torch.metering import metered
from timesyncd.errors import SyncError
from timesyncd.training.torch import synchronizer
from timesyncd.training.torch.entry import synchronized
from timesyncd.training.torch.synchronizer import Synchronizer

STEPS, FATAL = 20, 9


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def silent(*_: object) -> None:
    """Alive, but silent until the test closes its end of the pipe."""
    sys.stdin.read()
    os._exit(0)


def in_third(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The hook, which fails at the third chunk, when the other ranks have sent a part already."""
    return lambda chunk: die() if chunk.index() == 2 else hook(chunk)


class Skips(torch.optim.SGD):
    """As a loop that finds a reason on this rank only: it omits one update."""

    def __init__(self, parameters: Any, skipped: int | None) -> None:
        super().__init__(parameters, lr=0.05)
        self.calls, self.skipped = 0, skipped

    def maybe(self) -> None:
        self.calls += 1
        if self.calls - 1 != self.skipped:
            self.step()


def large() -> nn.Module:
    """Of some chunks."""
    return Wide().double()


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ParameterList(nn.Parameter(torch.ones(6, 100_000)) for _ in range(6))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = sum((inputs @ row for row in self.rows), torch.zeros(()))
        return total


def train(sync: Synchronizer, ddp: DDP, optimizer: Skips, case: str) -> None:
    rank = dist.get_rank()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        if rank == 1 and step == FATAL:
            {"killed": die, "silent": silent}.get(case, lambda: None)()
            if case == "averaging":
                sync._reducer.hook = in_third(sync._reducer.hook)  # type: ignore[assignment, method-assign]
            if case == "raised":
                raise ValueError("mine")
        optimizer.maybe()
    if rank == 1 and case == "closing":
        vars(synchronizer)["average_replicas"] = die
    sync.close()


def outcome_without_policy(job: Job, ddp: DDP, optimizer: Skips) -> dict[str, str]:
    """The module is metered only; rank 1 is killed."""
    metered(job, ddp, optimizer)
    try:
        for step in range(STEPS):
            optimizer.zero_grad()
            if dist.get_rank() == 1 and step == FATAL:
                die()
            loss_of(ddp, dist.get_rank(), step).backward()
            optimizer.step()
    except RuntimeError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": "", "text": ""}


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("--folder", type=Path)
    reader.add_argument("--policy")
    reader.add_argument("--case")
    reader.add_argument("--timeout", type=int)
    arguments = reader.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=arguments.timeout))
    job = Job("failing", runtime_dir=arguments.folder)
    ddp = DDP(large() if arguments.case == "averaging" else linear())
    skipped = FATAL if arguments.case == "skipped" and dist.get_rank() == 1 else None
    optimizer = Skips(ddp.parameters(), skipped)
    outcome = {"error": "", "text": ""}
    if arguments.policy == "none":
        print(json.dumps(outcome_without_policy(job, ddp, optimizer)), flush=True)
        os._exit(0)
    sync = synchronized(job, ddp, optimizer, arguments.policy)
    try:
        with sync:
            train(sync, ddp, optimizer, arguments.case)
    except (SyncError, RuntimeError, ValueError) as error:
        outcome = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(outcome | {"step": sync.step}), flush=True)
    os._exit(0)  # the groups are broken: to take them down could wait for a rank that is gone


if __name__ == "__main__":
    main()
