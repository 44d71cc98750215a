"""
One rank of the job of `timesyncd claim`: `torchrun -m timesyncd.training.torch.claim_job FOLDER`.

It trains a small network on generated numbers. Rank 1 computes each sample longer, and each rank pauses now and then, as
for garbage collection. Blocks of the variants take turns, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job, Pauses
from timesyncd.errors import AlignmentError
from timesyncd.training.claim_plan import (
    AUDIT,
    BATCH,
    OUTCOME,
    PAUSE_S,
    PERIOD_S,
    SLOWER,
    STEPS_BETWEEN_PAUSES,
    Block,
    Variant,
    blocks,
)
from timesyncd.training.torch.entry import synchronized
from timesyncd.training.torch.synchronizer import Synchronizer

_INPUTS, _HIDDEN, _CLASSES = 256, 512, 16
#: Steps in which the shares of the batch settle, before anything is measured.
_SETTLING_STEPS = 64

#: Whether to pause after this step.
Due = Callable[[int], bool]


def at_random(rank: int) -> Due:
    """Once in each period at a random moment of it, as a collector that counts a rank's own allocations."""
    drawn = random.Random(rank)
    next_s = time.monotonic() + drawn.uniform(0, PERIOD_S)

    def due(_: int) -> bool:
        nonlocal next_s
        if time.monotonic() < next_s:
            return False
        next_s += drawn.uniform(0.5, 1.5) * PERIOD_S
        return True

    return due


class Training:
    """The network, its data, and the state of the shares between blocks."""

    def __init__(self, rank: int, folder: Path, daemon: Path | None) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.rank, self.folder, self.daemon = rank, folder, daemon
        layers = torch.nn.Linear(_INPUTS, _HIDDEN), torch.nn.ReLU(), torch.nn.Linear(_HIDDEN, _CLASSES)
        self.ddp = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)
        drawn = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(BATCH, _INPUTS, generator=drawn)
        self.labels = torch.randint(_CLASSES, (BATCH,), generator=drawn)
        self.shares: dict[str, Any] | None = None
        self.clocked = None if daemon is None else Job("claim", runtime_dir=daemon)

    def settle(self) -> None:
        """The shares by speed, which the blocks that balance then begin with."""
        with closing(Job("claim-settling", runtime_dir="nowhere")) as job:
            self.train(job, _SETTLING_STEPS, True, lambda _: False)

    def run(self, block: Block) -> None:
        variant = block.variant
        with closing(Job(f"claim-{block.name}", runtime_dir="nowhere", record=self.folder / block.name)) as job:
            self.train(job, block.steps, variant.is_balanced, self.pauses(variant, job))

    def pauses(self, variant: Variant, job: Job) -> Due:
        """At random moments; at one instant, by the clock; or in one step, which needs no clock."""
        if not variant.pauses_together:
            return at_random(self.rank)
        clocked = self.clocked if variant.by_clock else None
        return Pauses(clocked or job, PERIOD_S, STEPS_BETWEEN_PAUSES).due

    def train(self, job: Job, steps: int, balance: bool, due: Due) -> None:
        with synchronized(job, self.ddp, self.optimizer, "bsp", balance=balance) as sync:
            if balance and self.shares is not None:
                sync.batches.load_state_dict(self.shares)
            for step in range(steps):
                self.step(sync)
                if due(step):
                    time.sleep(PAUSE_S)
            if balance:
                self.shares = sync.batches.state_dict()

    def step(self, sync: Synchronizer) -> None:
        part = sync.batches.part(BATCH)
        inputs, labels = self.inputs[part], self.labels[part]
        if self.rank == 1:
            with torch.no_grad():  # what makes this rank slow: it computes some of its samples more often
                for _ in range(SLOWER):
                    self.ddp.module(inputs)
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.ddp(inputs), labels)
        torch.autograd.backward(sync.batches.weigh(loss))
        self.optimizer.step()


def clocks_reason(clocked: Job | None) -> str:
    """Why no rank pauses by the clock; empty: all know that they read one clock. Every rank calls it."""
    reason = "no daemon runs"
    if clocked is not None:
        try:
            clocked.require_alignment(0, timeout_s=120)
            reason = ""
        except AlignmentError as error:
            reason = str(error)
    reasons: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next(filter(None, reasons), "")


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("folder", type=Path)
    given.add_argument("--daemon", type=Path)
    given.add_argument("--rounds", type=int, required=True)
    given.add_argument("--steps", type=int, required=True)
    arguments = given.parse_args()
    dist.init_process_group("gloo")
    training = Training(dist.get_rank(), arguments.folder, arguments.daemon)
    reason = clocks_reason(training.clocked)
    training.run(AUDIT)
    training.settle()
    for block in blocks(arguments.rounds, arguments.steps, with_clocks=not reason):
        training.run(block)
        dist.barrier()
    if training.rank == 0:
        outcome = {"clocks_reason": reason, "shares": (training.shares or {})["shares"]}
        (arguments.folder / OUTCOME).write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
