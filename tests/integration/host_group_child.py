"""One of three ranks whose default group serves CUDA tensors alone, as NCCL's does; prints what became of each call as JSON."""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_models import sgd

from timesyncd.client import Job
from timesyncd.client.torch import barrier, meter_collectives, meter_ddp, meter_fsdp, metered
from timesyncd.training import QuorumAveraging, near_ranks, synchronized
from timesyncd.training.torch.data import Injection
from timesyncd.training.torch.replicas import average_replicas
from timesyncd.training.torch.topology_groups import TwoLevel

POLICIES = ["bsp", "local_sgd(h=2)", "selsync(quantile=0.5)", "bsp + topk(ratio=0.1)", "bsp + int8", "auto"]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("cuda:gloo")
    world = distributed_c10d._get_default_group()
    cpu = dist.new_group(backend="gloo")  # the modules are on the CPU, for want of a card
    part = dist.new_group([1, 2])
    job = Job("job", runtime_dir=tempfile.mkdtemp())
    outcomes: dict[str, str] = {}

    def call(name: str, run: Callable[[], object]) -> None:
        try:
            run()
            outcomes[name] = "works"
        except Exception as error:  # noqa: BLE001  the test reads it
            traceback.print_exc()
            outcomes[name] = f"{type(error).__name__}: {error}"

    for is_fused in (False, True):
        call(f"barrier, fused={is_fused}", lambda: barrier(job, fused=is_fused).wait(0))  # noqa: B023
    if dist.get_rank() in (1, 2):
        call("barrier of a part", lambda: barrier(Job("part", dist.get_rank() - 1, 2), part).wait(0))
    call("metered", lambda: train(metered, job, cpu))
    call("meter_ddp", lambda: train(meter_ddp, job, cpu))
    call("meter_fsdp", lambda: train_sharded(job, cpu))
    call("meter_collectives", lambda: reduce_metered(job, cpu))
    call("near_ranks", lambda: near_ranks(job))
    call("TwoLevel", lambda: TwoLevel(((((0, 1), (2,))), ((0, 1, 2),)), world).close())
    for policy in POLICIES:
        call(f"synchronized, {policy}", lambda: train_by(policy, cpu))  # noqa: B023
    call("synchronized with levels", lambda: train_by("bsp", cpu, levels=(((0, 1), (2,)), ((0, 1, 2),))))
    call("QuorumAveraging", lambda: train_in_quorum(job))
    call("average_replicas", lambda: average_replicas([], sgd(nn.Linear(2, 2)), world))
    call("Injection", lambda: Injection(0.5, 0.5, world, 0).inject(0, torch.ones(4, 2), torch.ones(4)))
    print(json.dumps(outcomes))


def module_of(group: dist.ProcessGroup) -> DDP:
    torch.manual_seed(0)
    return DDP(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), process_group=group)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def train_in_quorum(job: Job) -> None:
    """Its groups are its own, made over the store."""
    model = nn.Linear(8, 1)
    optimizer = sgd(model)
    with QuorumAveraging(job, model, optimizer, "local_sgd(h=2)", distributed_c10d._get_default_store()):
        steps(model, optimizer, 4)


def train(meter: Callable[..., Any], job: Job, group: dist.ProcessGroup) -> None:
    model = module_of(group)
    optimizer = sgd(model)
    handle = meter(job, model, optimizer)
    steps(model, optimizer, 3)
    handle.close()


def train_sharded(job: Job, group: dist.ProcessGroup) -> None:
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = sgd(model)
    handle = meter_fsdp(job, model, optimizer)
    steps(model, optimizer, 3)
    handle.close()


def reduce_metered(job: Job, group: dist.ProcessGroup) -> None:
    with meter_collectives(job, group):
        dist.all_reduce(torch.ones(3), group=group)


def train_by(policy: str, group: dist.ProcessGroup, levels: Any = None) -> None:
    """With a change of the policy to one under which the replicas are equal."""
    model = module_of(group)
    optimizer = sgd(model)
    with synchronized(Job(policy, runtime_dir=tempfile.mkdtemp()), model, optimizer, policy, levels=levels) as sync:
        steps(model, optimizer, 5)
        sync.use("bsp + fp16")
        steps(model, optimizer, 45)


main()
