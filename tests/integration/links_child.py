"""A training script that knows nothing of timesyncd: two all-reduces a step, a small one and a large one."""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    # The threads of gloo inherit it: load of the machine would be a latency of the job.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    dist.init_process_group("gloo")
    parameter = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    small, large = (torch.ones(size // 4) for size in (options.small, options.large))
    for _ in range(options.steps):
        optimizer.zero_grad()
        torch.autograd.backward(parameter.square().sum())
        if dist.get_rank() == options.slow:
            time.sleep(options.slow_ms / 1000)
        dist.all_reduce(small)
        dist.all_reduce(large)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--small", type=int, default=4 << 10)
    parser.add_argument("--large", type=int, default=64 << 10)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--slow-ms", type=int, default=30)
    main(parser.parse_args())
