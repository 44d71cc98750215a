"""
Steps that end at one instant on all ranks, and a task that runs while this rank waits for the last one.

    torchrun --standalone --nproc-per-node 2 examples/barrier.py [--fifo]
"""

import argparse
import time

import torch.distributed as dist

from timesyncd.client import BarrierReason, Job, SchedFifo
from timesyncd.client.torch import barrier


def main(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    job = Job()  # name, rank, world size and attempt from torchrun
    # One collective a step; ranks of one node need neither a daemon nor PTP for it.
    release = barrier(job, fused=True, scheduling=SchedFifo() if options.fifo else None)
    prefetch = release.run_in_slack(lambda: time.sleep(0.002), cost_ns=3_000_000, name="prefetch")
    lates, reasons = [], set()
    for step in range(options.steps):
        time.sleep(0.005 if job.rank == 0 else 0.02)  # the step's work: rank 1 takes longer
        verdict = release.wait(step)
        if verdict.on_time:
            lates.append(verdict.lateness_ns)
        if verdict.reason_code is not BarrierReason.OK:
            reasons.add(verdict.reason)
    on_time = f"{len(lates)} of {options.steps} released on time"
    late = f", {sorted(lates)[len(lates) // 2]} ns after the instant (median)" if lates else ""
    slack = release.slack()
    slack_text = slack.reason if slack.slack_ns is None else f"{slack.slack_ns / 1e6:.1f} ms"
    print(
        f"rank {job.rank}: {on_time}{late}; slack {slack_text}; prefetched {prefetch.runs} times; {reasons or ''}",
        flush=True,
    )
    dist.barrier()  # a rank that leaves while another still talks to it can abort that one
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--fifo", action="store_true", help="hold under SCHED_FIFO, where that is allowed")
    main(parser.parse_args())
