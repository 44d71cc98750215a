"""
Two ranks under PyTorch's profiler, each with anchors beside its trace, so that the traces can be put on one axis.

    torchrun --standalone --nproc-per-node 2 examples/profile_job.py --out traces
    timesyncd merge-traces traces/rank*.json -o all.json      # then open all.json at https://ui.perfetto.dev
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from timesyncd.client import Anchors, Job


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    path = Path(options.out) / f"rank{job.rank}.json"
    with Anchors(job, path, record_function) as anchors, profile(activities=[ProfilerActivity.CPU]) as profiler:
        for step in range(options.steps):
            with record_function(f"step {step}"):
                inputs = torch.randn(32, 64)
                loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
                if job.rank == options.slow_rank:
                    time.sleep(options.slow_ms / 1000)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            anchors.step()  # a reading of a clock, and every two seconds a line in the file
    profiler.export_chrome_trace(str(path))
    print(f"rank {job.rank}: {path}; {anchors.problem or f'anchors in {anchors.path}'}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="traces")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--slow-rank", type=int, default=1)
    parser.add_argument("--slow-ms", type=float, default=5)
    main(parser.parse_args())
