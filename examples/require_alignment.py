"""
Train only when the clocks of all ranks' nodes agree: each rank waits, and the job ends with one line where they do not.

    torchrun --nnodes 2 --nproc-per-node 1 ... examples/require_alignment.py --max-ns 1000
"""

import argparse

import torch
import torch.distributed as dist

from timesyncd.client import Job
from timesyncd.errors import AlignmentError


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job()
    try:
        signals = job.require_alignment(options.max_ns, timeout_s=options.timeout_s)
    except AlignmentError as error:
        raise SystemExit(f"rank {job.rank} does not start: {error}") from None
    print(f"rank {job.rank}: the nodes' clocks agree within {signals.alignment_ns} ns", flush=True)
    gradient = torch.ones(1_000)
    for step in range(options.steps):
        with job.meter.sync(step):
            dist.all_reduce(gradient)
    dist.barrier()  # a rank that leaves while another still talks to it can abort that one
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-ns", type=int, default=1_000)
    parser.add_argument("--timeout-s", type=float, default=30)
    parser.add_argument("--steps", type=int, default=100)
    main(parser.parse_args())
