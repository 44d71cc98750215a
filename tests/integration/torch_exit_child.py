"""One rank that ends right after its last collective, while a thread of gloo's still gives its callback back."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch import meter_ddp


class SlowToGo:
    """In a callback: it goes with the callback, in gloo's thread, and needs the GIL again after a while."""

    def __del__(self) -> None:
        time.sleep(0.02)


def hook(state, bucket):  # type: ignore[no-untyped-def]
    held = SlowToGo()

    def reduced(future):  # type: ignore[no-untyped-def]
        return future.value()[0] if held else None

    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(reduced)


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(8, 2))
    meter_ddp(Job("exit", 0, 1, runtime_dir=Path(sys.argv[1])), model, hook=hook)
    model(torch.ones(4, 8)).sum().backward()
    dist.destroy_process_group()
    print("{}", flush=True)
