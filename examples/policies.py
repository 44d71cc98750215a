"""
A policy decides when the ranks synchronize; the training loop stays as it is.

    torchrun --standalone --nproc-per-node 2 examples/policies.py --policy "selsync(quantile=0.9)"
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.training import synchronized


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job()  # name, rank and world size from torchrun
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(job.rank)
    with synchronized(job, model, optimizer, options.policy) as sync:
        for step in range(options.steps):
            inputs = torch.randn(32, 64)
            loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            sync.record_loss(loss)
            optimizer.step()  # the policy runs in here
            if step == options.steps // 2 and options.then:
                sync.use(options.then)  # rank 0 decides; all ranks change at the same step
    report = sync.report()
    if job.rank == 0:
        for change in report.changes:
            print(f"from step {change.step}: {change.policy} ({change.reason})")
        print(
            f"{report.steps} steps, {report.lssr or 0:.0%} of them local, {report.sync_ns / 1e6:.0f} ms in averagings",
            flush=True,
        )
    job.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--then", default="", help="the policy of the second half")
    main(parser.parse_args())
