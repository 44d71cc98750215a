"""One rank of a real gloo job with the policy `auto`; prints as JSON what it chose and the result."""

from __future__ import annotations

import argparse
import json
import math
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from timesyncd.client import Job
from timesyncd.training import synchronized
from timesyncd.training.torch.replicas import replica_hash

CLASSES, FEATURES, BATCH = 8, 32, 16


class Data:
    """Points around the centre of each class. `own`: each rank draws from its part of the classes alone."""

    def __init__(self, own: bool) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
        self.drawn = torch.Generator().manual_seed(2 + rank)
        each = CLASSES // ranks
        self.classes = torch.arange(CLASSES)[rank * each : (rank + 1) * each] if own else torch.arange(CLASSES)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        labels = self.classes[torch.randint(len(self.classes), (BATCH,), generator=self.drawn)]
        return self.centres[labels] + torch.randn(BATCH, FEATURES, generator=self.drawn), labels


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--steps", type=int)
    given.add_argument("--own", action="store_true")
    given.add_argument("--adam", action="store_true")
    given.add_argument(
        "--validate",
        action="store_true",
        help="record a validation loss: first none, then a steady one, later a rising one",
    )
    arguments = given.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = Data(arguments.own)
    losses: list[float] = []
    torch.manual_seed(0)
    ddp = DDP(nn.Sequential(nn.Linear(FEATURES, 2048), nn.ReLU(), nn.Linear(2048, CLASSES)))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    if arguments.adam:
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with synchronized(Job(runtime_dir="nowhere"), ddp, optimizer, "auto") as sync:
            for step in range(arguments.steps):
                inputs, labels = data.batch()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(ddp(inputs), labels)
                torch.autograd.backward(loss)
                sync.record_loss(loss)
                optimizer.step()
                losses.append(loss.item())
                if arguments.validate and step >= arguments.steps // 4 and step % 8 == 7:
                    with sync.averaged():
                        sync.record_validation(1.0 if step < arguments.steps // 2 else 1.0 + step / arguments.steps)
            changes = [
                [change.step, change.policy, change.reason_code, change.reason] for change in sync.report().changes
            ]
    results = {
        "changes": changes,
        "first": math.fsum(losses[:8]) / 8,
        "last": math.fsum(losses[-8:]) / 8,
        "closed": replica_hash(ddp.parameters()),
        "warned": [str(each.message) for each in warned],
    }
    print("RESULTS " + json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
