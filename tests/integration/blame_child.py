"""A rank of a real gloo job that profiles itself: each rank sleeps as its computing, and rank 2 sleeps twice as long."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

STEPS = 12

#: torch has no public name for it.
recorder: Any = torch._C._distributed_c10d


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients = torch.ones(1000)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            time.sleep(0.06 if rank == 2 else 0.03)
            dist.all_reduce(gradients)
            time.sleep(0.01)
            dist.barrier()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json.gz"))
    (folder / f"recorder_{rank}").write_bytes(recorder._dump_fr_trace())
    dist.destroy_process_group()
    print(json.dumps({"rank": rank}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
