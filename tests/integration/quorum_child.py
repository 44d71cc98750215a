"""One rank of a job whose ranks are lost and come again; it writes a line after each averaging."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroupGloo, TCPStore

from timesyncd.client import Job
from timesyncd.training.torch.quorum_averaging import QuorumAveraging

#: By this a step of rank r changes the one parameter: -LR (r + 1).
LR = 0.125


def fail_inside(rounds: int) -> None:
    """The process ends in the averaging after so many, when its group is made and the others may have sent."""
    kind: Any = ProcessGroupGloo
    allreduce, calls = kind.allreduce, 0

    def dying(group: Any, tensors: list[torch.Tensor]) -> Any:
        nonlocal calls
        calls += 1
        if calls > rounds:
            os.kill(os.getpid(), signal.SIGKILL)
        return allreduce(group, tensors)

    kind.allreduce = dying


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("folder", type=Path)
    given.add_argument("port", type=int)
    given.add_argument("rank", type=int)
    given.add_argument("ranks", type=int)
    given.add_argument("policy")
    given.add_argument("--fail-inside", type=int)
    arguments = given.parse_args()
    torch.set_num_threads(1)
    if arguments.fail_inside is not None:
        fail_inside(arguments.fail_inside)
    module = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(module.weight, float(arguments.rank))
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    job = Job("quorum", arguments.rank, arguments.ranks, runtime_dir="nowhere")
    store = TCPStore("127.0.0.1", arguments.port, is_master=False)
    lines = (arguments.folder / f"rank-{arguments.rank}-{os.getpid()}").open("w", buffering=1)
    written = 0
    with QuorumAveraging(job, module, optimizer, arguments.policy, store) as averaging:
        while not (arguments.folder / "end").exists() or averaging.step % 2:
            if averaging.rounds > written:
                written = averaging.rounds
                line = {"members": averaging.members, "step": averaging.step, "value": module.weight.item()}
                print(json.dumps(line | {"rounds": written}), file=lines)
            time.sleep(0.02)
            optimizer.zero_grad()
            (module.weight * (arguments.rank + 1)).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
