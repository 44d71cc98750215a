"""One rank of `balance.py`: blocks of steps with a CPU quota, which the slow rank changes as it goes."""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.training.torch.entry import synchronized

#: The cases in the order in which each round runs them.
CASES = ("none", "constant", "transient", "drifting")

#: The quotas of a core: of a rank, and of the slow one where it is slow; and over which period they are enforced.
QUOTA, SLOW_QUOTA, PERIOD_US = 0.4, 0.2, 10_000
SLOW_RANK = 3

#: Of the controller: what else the machine does leaves the ranks their quotas.
MAX_SHARES = 262_144

BATCH, WIDTH = 256, 768


def quota_of(case: str, step: int, steps: int) -> float:
    """The slow rank's in this step."""
    part = step / steps
    if case == "constant":
        return SLOW_QUOTA
    if case == "transient":
        return SLOW_QUOTA if 1 / 3 <= part < 2 / 3 else QUOTA
    return QUOTA + part * (SLOW_QUOTA - QUOTA) if case == "drifting" else QUOTA


class CpuGroup:
    """A group of the kernel's cpu controller (version 1) with this process alone. Raises OSError without root."""

    def __init__(self, path: Path) -> None:
        self._path, self._quota_us = path, 0
        path.mkdir(exist_ok=True)
        (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (path / "cpu.shares").write_text(str(MAX_SHARES))
        self.set(QUOTA)
        (path / "cgroup.procs").write_text(str(os.getpid()))

    def set(self, quota: float) -> None:
        quota_us = round(quota * PERIOD_US)
        if quota_us != self._quota_us:
            self._quota_us = quota_us
            (self._path / "cpu.cfs_quota_us").write_text(str(quota_us))

    def leave(self) -> None:
        (self._path.parent / "cgroup.procs").write_text(str(os.getpid()))
        self._path.rmdir()


def block(rank: int, group: CpuGroup, case: str, balance: bool, steps: int, folder: Path) -> list[int]:
    """When each step ended, CLOCK_MONOTONIC ns, after the one before the first."""
    torch.manual_seed(1)
    layers = torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, WIDTH)
    record = None if balance else folder / case
    with closing(Job(f"balance-{case}", runtime_dir="nowhere", record=record)) as job:
        group.set(QUOTA)
        dist.barrier()
        ends = [time.monotonic_ns()]
        with synchronized(job, ddp, optimizer, "bsp", balance=balance) as sync:
            for step in range(steps):
                if rank == SLOW_RANK:
                    group.set(quota_of(case, step, steps))
                part = inputs[sync.batches.part(BATCH)]
                optimizer.zero_grad()
                for _ in range(4):  # as a deeper network, whose gradients are no larger
                    with torch.no_grad():
                        ddp.module(part)
                loss: Any = ddp(part).square().mean()
                torch.autograd.backward(sync.batches.weigh(loss))
                optimizer.step()
                ends.append(time.monotonic_ns())
    return ends


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("folder", type=Path)
    given.add_argument("cgroup", type=Path)
    given.add_argument("--rounds", type=int, required=True)
    given.add_argument("--steps", type=int, required=True)
    arguments = given.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = CpuGroup(arguments.cgroup / f"timesyncd-balance-{rank}")
    found = []
    try:
        for turn in range(arguments.rounds):
            for case in CASES:
                for balance in (False, True) if turn % 2 == 0 else (True, False):
                    folder = arguments.folder / f"marks-{turn}"
                    ends = block(rank, group, case, balance, arguments.steps, folder)
                    found.append({"case": case, "balance": balance, "turn": turn, "ends_ns": ends})
    finally:
        group.leave()
    if rank == 0:
        (arguments.folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
