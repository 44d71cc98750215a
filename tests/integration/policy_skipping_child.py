"""One rank of a real gloo job that reduces a metric after each step, and whose rank 1 leaves out one update; prints what happened as JSON."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from policy_alone import Alone, linear, loss_of, weighted
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel as DDP

from timesyncd.client import Job
from timesyncd.errors import SyncError
from timesyncd.training.torch.actions import replica_tensors
from timesyncd.training.torch.entry import synchronized
from timesyncd.training.torch.replicas import replica_hash
from timesyncd.training.torch.standstill import Standstill

STEPS, SKIPPING = 20, 1
#: The groups' time-out where nothing else ends the ranks.
SHORT = timedelta(seconds=12)
Facts = dict[str, Any]


class Loop:
    """A script's training loop with a metric that all ranks reduce on the default group, as large as the model."""

    def __init__(self, policy: str, folder: Path, fused: bool = False) -> None:
        self.rank = dist.get_rank()
        self.ddp = DDP(linear())
        self.optimizer = optimizer_of(self.ddp.parameters(), fused)
        self.sync = synchronized(Job(policy, runtime_dir=folder), self.ddp, self.optimizer, policy)
        self.wrong = 0

    def forward(self, step: int) -> Any:
        self.optimizer.zero_grad()
        return loss_of(self.ddp, self.rank, step)

    def reduce_metric(self) -> None:
        metric = torch.ones(sum(parameter.numel() for parameter in self.ddp.parameters()), dtype=torch.float64)
        dist.all_reduce(metric)
        self.wrong += not bool((metric == dist.get_world_size()).all())

    def off(self, alone: Alone) -> float:
        pairs = zip(replica_tensors(self.ddp), alone.replica(self.rank), strict=True)
        return max(float((mine.detach() - expected).abs().max()) for mine, expected in pairs)


def optimizer_of(parameters: Any, fused: bool = False) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.5, fused=fused)


def omitted(policy: str, folder: Path, at: int, omits: str) -> Facts:
    """
    Rank 1 leaves out one update and reports it to no one: all of it (`batch`), or `optimizer.step()` alone. Or it
    makes them all, and waits in a `barrier` that no other rank calls.
    """
    loop, outcome, apart = Loop(policy, folder), {"error": "", "text": ""}, dist.new_group()
    for group in (None, apart) if omits == "barrier" else ():
        distributed_c10d._set_pg_timeout(SHORT, group)
    try:
        with loop.sync:
            for step in range(STEPS):
                is_omitted = (loop.rank, step) == (SKIPPING, at)
                if is_omitted and omits == "batch":
                    continue
                loop.forward(step).backward()
                if not is_omitted or omits == "barrier":
                    loop.optimizer.step()
                loop.reduce_metric()
                if is_omitted and omits == "barrier":
                    dist.barrier(apart)
    except SyncError as error:
        outcome = {"error": type(error).__name__, "text": str(error)}
    return outcome | {"wrong": loop.wrong}


def skips_itself(loop: Loop, at: int) -> Iterator[None]:
    for step in range(STEPS):
        loop.forward(step).backward()
        if (loop.rank, step) == (SKIPPING, at):
            loop.sync.skip_update()
        else:
            loop.optimizer.step()
        yield


def skipped_by_scaler(loop: Loop, at: int) -> Iterator[None]:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS):
        loss = loop.forward(step)
        if (loop.rank, step) == (SKIPPING, at):
            loss = loss * torch.inf
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(loop.optimizer)
        scaler.update()
        yield


WAYS: dict[str, Callable[[Loop, int], Iterator[None]]] = {
    "itself": skips_itself, "scaler": skipped_by_scaler, "fused": skipped_by_scaler,
}  # fmt: skip


def agreed(policy: str, folder: Path, at: int, way: str) -> Facts:
    """The same with the ranks' knowledge: compared with one process in which rank 1 makes an empty update."""
    alone, loop = Alone(linear, optimizer_of, dist.get_world_size()), Loop(policy, folder, fused=way == "fused")
    for _ in WAYS[way](loop, at):
        loop.reduce_metric()
    (summed if policy.startswith("accumulate") else averaged)(alone, at)
    off, left = loop.off(alone), loop.sync.report().rounds
    loop.sync.close()
    return {"off": off, "wrong": loop.wrong, "rounds": left, "closed": replica_hash(loop.ddp.parameters())}


def averaged(alone: Alone, at: int, h: int = 4) -> None:
    for step in range(STEPS):
        alone.backward(step)
        for rank, optimizer in enumerate(alone.optimizers):
            if (rank, step) != (SKIPPING, at):
                optimizer.step()
        if step % h == h - 1:
            alone.average()


def summed(alone: Alone, at: int, k: int = 4) -> None:
    """Gradients of `k` steps; those of the step that is left out count as zero."""
    sums = [[torch.zeros_like(p) for p in module.parameters()] for module in alone.modules]
    for step in range(STEPS):
        alone.backward(step)
        for rank, module in enumerate(alone.modules):
            for total, parameter in zip(sums[rank], module.parameters(), strict=True):
                assert parameter.grad is not None
                total += parameter.grad * ((rank, step) != (SKIPPING, at))
        if step % k == k - 1:
            for module in alone.modules:
                for parameter, *totals in zip(module.parameters(), *sums, strict=True):
                    parameter.grad = weighted(totals) / k
            alone.update()
            sums = [[torch.zeros_like(total) for total in totals] for totals in sums]


def rescaled(folder: Path) -> Facts:
    """A scaler halves its scale on rank 1 alone; then BSP begins, where DDP reduces scaled gradients."""
    loop = Loop("local_sgd(h=4)", folder)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    if loop.rank == 0:
        loop.sync.use("bsp")
    scales, hashes = [], []
    for step in range(2 * STEPS):
        loss = loop.forward(step)
        torch.autograd.backward(scaler.scale(loss * torch.inf if (loop.rank, step) == (SKIPPING, 2) else loss))
        scaler.step(loop.optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        hashes.append(replica_hash(loop.ddp.parameters()))
    policy = loop.sync.policy
    loop.sync.close()
    return {"policy": policy, "scales": scales, "hashes": hashes[-5:]}


def read_late() -> None:
    read = Standstill._read_found

    def late(self: Standstill) -> bool:
        time.sleep(1)
        return read(self)

    Standstill._read_found = late  # type: ignore[method-assign]


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("--folder", type=Path)
    reader.add_argument("--policies", nargs="+")
    reader.add_argument("--at", type=int, nargs="+", default=[])
    reader.add_argument("--omits")
    reader.add_argument("--reads-late", action="store_true", help="the last rank needs a second to read the store")
    arguments = reader.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=200))
    if arguments.reads_late and dist.get_rank() == dist.get_world_size() - 1:
        read_late()
    if arguments.omits:
        facts = omitted(arguments.policies[0], arguments.folder, arguments.at[0], arguments.omits)
    else:
        facts = {
            f"{policy} {at} {way}": agreed(policy, arguments.folder, at, way)
            for policy in arguments.policies
            for at in arguments.at
            for way in WAYS
        } | {"rescaled": rescaled(arguments.folder)}
    print(json.dumps(facts), flush=True)
    os._exit(0)  # the groups may be broken: to take them down could wait for a rank that is gone


if __name__ == "__main__":
    main()
