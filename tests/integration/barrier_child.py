"""One rank of test_barrier_real.py: real gloo, and views that differ between the ranks. Writes its records as JSON."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rank_views import MS, VIEWS, job_with

from timesyncd.client import Job, SchedFifo
from timesyncd.client.barrier import Barrier
from timesyncd.client.torch import barrier

#: Rank 0's and rank 1's, in turn.
PAIRS = list(itertools.product(("timed", "no daemon", "plain", "other attempt", "all raises"), repeat=2))
STEPS = 3


def verdicts(job: Job, release: Barrier) -> list[dict[str, Any]]:
    """The verdict of each step, and the instant that the ranks agreed on."""
    return [asdict(release.wait(step)) | {"agreed_ns": release.agreed_ns} for step in range(STEPS)]


def differing(folder: Path, rank: int) -> list[Any]:
    """One barrier of each sort for each pair of views, in one process group: a collective too many would be seen at once."""
    seen = []
    for number, pair in enumerate(PAIRS):
        job = job_with(VIEWS[pair[rank]], folder / f"{rank}-{number}", rank, 2)
        results = [verdicts(job, barrier(job, fused=fused)) for fused in (False, True)]
        seen.append({"pair": pair, "two_collectives": results[0], "fused": results[1]})
    return seen


def without_daemon(folder: Path, rank: int) -> dict[str, Any]:
    """Rank 1 is always the later one; rank 0 has time."""
    job = Job("alone", rank, 2, 0, runtime_dir=folder / "nothing")
    plain, fused = barrier(job), barrier(job, fused=True, scheduling=SchedFifo())
    task = fused.run_in_slack(lambda: None, MS)
    first, released, agreed = [plain.wait(0).reason], [], []
    for step in range(40):
        time.sleep(0.01 * rank)
        released.append(fused.wait(step).mode)
        agreed.append(fused.agreed_ns)
    slack = fused.slack()
    job.close()
    return {
        "plain": first,
        "first_mode": released[0],
        "agreed": agreed,
        "slack_ns": slack.slack_ns,
        "runs": task.runs,
        "policy": os.sched_getscheduler(0),
    }


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = {"differing": differing(folder, rank), "without_daemon": without_daemon(folder, rank)}
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
