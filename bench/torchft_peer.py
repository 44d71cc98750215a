"""
DiLoCo of this package beside torchft's, on the same seeds: two replicas that are processes, float64, the same batches. After
each of STEPS inner steps the parameters of both are compared, on each replica.

    python -m pip install torchft==0.2.0 && python bench/torchft_peer.py

Printed: the largest difference of a parameter over all steps, by method. torchft is no dependency of this package: its
wheel has a server in Rust, and needs OpenTelemetry. Without `init_sync=False` its second replica would take the first
one's parameters in the first averaging, in place of the mean; equal seeds make that needless.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore

REPLICAS, STEPS, INTERVAL = 2, 24, 4

#: Of double precision, in sums of few numbers.
ROUNDING = 1e-12

Course = list[torch.Tensor]


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def inner(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, replica: int) -> Course:
    """The parameters after each step."""
    course = []
    for step in range(STEPS):
        drawn = torch.Generator().manual_seed(1_000 * step + replica)
        inputs = torch.randn(16, 6, generator=drawn, dtype=torch.float64)
        optimizer.zero_grad()
        torch.autograd.backward((module(inputs) - inputs[:, :4]).square().mean())
        optimizer.step()
        course.append(nn.utils.parameters_to_vector(module.parameters()).detach().clone())
    return course


def by_torchft(replica: int, lighthouse: str, method: str) -> Course:
    from torchft.local_sgd import DiLoCo, LocalSGD  # type: ignore[import-not-found,unused-ignore]
    from torchft.manager import Manager  # type: ignore[import-not-found,unused-ignore]
    from torchft.process_group import ProcessGroupGloo  # type: ignore[import-not-found,unused-ignore]

    module = network()
    optimizer = inner(module)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(), min_replica_size=REPLICAS, use_async_quorum=False, init_sync=False, replica_id=f"{method}-{replica}",
        load_state_dict=module.load_state_dict, state_dict=module.state_dict, store_addr="localhost", store_port=store.port,
        rank=0, world_size=1, lighthouse_addr=lighthouse, timeout=timedelta(seconds=60),
    )  # fmt: skip
    try:
        if method == "local_sgd":
            with LocalSGD(manager, module, optimizer, sync_every=INTERVAL):
                return trained(module, optimizer, replica)
        outer = torch.optim.SGD(module.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(manager, [module], optimizer, outer, sync_every=INTERVAL):
            return trained(module, optimizer, replica)
    finally:
        manager.shutdown(wait=False)


def by_timesyncd(replica: int, port: int, folder: Path, method: str) -> Course:
    from timesyncd.client import Job
    from timesyncd.training import QuorumAveraging

    module = network()
    optimizer = inner(module)
    store = TCPStore("localhost", port, is_master=False)
    job = Job(method, rank=replica, world_size=REPLICAS, runtime_dir=folder)
    with QuorumAveraging(job, module, optimizer, f"{method}(h={INTERVAL})", store, silent_s=120, timeout_s=300):
        course = trained(module, optimizer, replica)
    job.close()
    return course


def replica_main(replica: int, lighthouse: str, port: int, folder: Path) -> None:
    """Prints by method the largest difference."""
    found = {}
    for method in ("local_sgd", "diloco"):
        theirs = by_torchft(replica, lighthouse, method)
        own = by_timesyncd(replica, port, folder, method)
        found[method] = max(float((a - b).abs().max()) for a, b in zip(theirs, own, strict=True))
    print(json.dumps(found), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replica", type=int)
    parser.add_argument("--lighthouse", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.replica is not None:
        replica_main(given.replica, given.lighthouse, given.port, given.folder)
        return 0
    return compare()


def compare() -> int:
    os.environ.setdefault("RUST_LOG", "error")
    try:
        from torchft._torchft import LighthouseServer  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        print(f"torchft is not installed: {error}", file=sys.stderr)
        return 2
    lighthouse: Any = LighthouseServer(bind="[::]:0", min_replicas=REPLICAS, join_timeout_ms=1_000)
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            place = ["--lighthouse", lighthouse.address(), "--port", str(store.port), "--folder", folder]
            start: Callable[[int], subprocess.Popen[str]] = lambda replica: subprocess.Popen(
                [sys.executable, __file__, "--replica", str(replica), *place], stdout=subprocess.PIPE, text=True
            )
            outputs = [process.communicate(timeout=300)[0] for process in [start(each) for each in range(REPLICAS)]]
    finally:
        lighthouse.shutdown()
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    worst = {method: max(each[method] for each in found) for method in found[0]}
    for method, difference in worst.items():
        print(f"{method}(h={INTERVAL}): parameters differ from torchft's by at most {difference:.1e} in {STEPS} steps")
    return int(max(worst.values()) > ROUNDING)


if __name__ == "__main__":
    sys.exit(main())
