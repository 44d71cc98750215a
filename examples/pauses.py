"""
Garbage collection on all ranks at one instant of the common clock, instead of on each rank at its own time.

    torchrun --standalone --nproc-per-node 2 examples/pauses.py
"""

import argparse
import gc
import time

import torch.distributed as dist

from timesyncd.client import Job, Pauses, gc_disabled
from timesyncd.client.torch import barrier


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job()  # name, rank, world size and attempt from torchrun
    release = barrier(job, fused=True)
    # By the barrier's release instant: it is the same on all ranks, so all pause after the same step.
    pauses = Pauses(job, every_s=options.every_s, every_steps=50, barrier=release)
    paused_at = []
    gc.freeze()  # collections then skip what was imported
    with gc_disabled():  # no automatic collection
        for step in range(options.steps):
            time.sleep(0.005)  # the step's work
            release.wait(step)
            if pauses.due(step):
                gc.collect()
                paused_at.append(step)
    print(f"rank {job.rank}: paused after steps {paused_at}; by the clock {pauses.by_clock}, by steps {pauses.by_step}")
    dist.barrier()
    dist.destroy_process_group()
    # A job that is not in lock-step has no such barrier: a thread pauses it, wherever it is.
    collected = []
    with (
        gc_disabled(),
        Pauses(job, options.every_s, every_steps=50).in_background(lambda: collected.append(gc.collect())),
    ):
        time.sleep(3 * options.every_s)
    print(f"rank {job.rank}: {len(collected)} collections by the thread", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every-s", type=float, default=0.5)
    main(parser.parse_args())
