"""One rank, many times: a metered module outlives its process group, and its reducer goes just after a collective."""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch import metered

RUNS = 600


def run(folder: Path, number: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/{number}", rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(8, 2))
    metered(Job("end", 0, 1, runtime_dir=folder), model)
    model(torch.ones(4, 8)).sum().backward()
    dist.all_reduce(torch.zeros(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    for number in range(RUNS):
        faulthandler.dump_traceback_later(60, exit=True)
        run(Path(sys.argv[1]), number)
    print(json.dumps({"ended": RUNS}))
