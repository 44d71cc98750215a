"""
A training script that knows nothing of timesyncd, whose ranks call collectives by imported names, in the groups of a mesh, and as
stages of a pipeline: VARIANT is what. torch's profiler counts what each rank issues from its third step on, C++'s calls too:
each rank writes it into its file in the folder COUNTS.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import all_reduce, barrier, distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 12

variant = os.environ["VARIANT"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
ones = torch.ones(4, 16)
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def is_inside_another(event: Any) -> bool:
    """A tensor that is still on its way calls the operator again, once it is there."""
    above = event.cpu_parent
    return above is not None and (above.name.startswith("c10d::") or is_inside_another(above))


def loss_of(found: torch.Tensor, _: torch.Tensor | None = None) -> torch.Tensor:
    return found.square().mean()


def backward() -> None:
    torch.autograd.backward(loss_of(model(ones)))


def imported() -> None:
    """Every rank calls what it imported, and the two halves of a coalesced call."""
    backward()
    for parameter in model.parameters():
        all_reduce(parameter.grad)
    work = all_reduce(torch.ones(1), async_op=True)
    with distributed_c10d._coalescing_manager():
        all_reduce(torch.ones(2))
        all_reduce(torch.ones(2))
    work.wait()
    barrier()


def functionals() -> None:
    """As a compiled graph or a DTensor calls them; experts' tokens go to other ranks and come back in backward."""
    group = distributed_c10d._get_default_group()
    tokens = functional.all_to_all_single_autograd(model(ones), None, None, group)
    torch.autograd.backward(loss_of(tokens))
    torch.sum(functional.all_reduce(torch.ones(4), "sum", group))


def stages() -> tuple[nn.Module, Callable[[], None]]:
    """dp x pp x tp."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "pp", "tp"))
    stage: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    parallelize_module(stage, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(stage, mesh=mesh["dp"])
    where = mesh["pp"].get_local_rank()
    made = PipelineStage(stage, where, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(made, 4, loss_fn=loss_of)

    def run() -> None:
        if where == 0:
            schedule.step(ones)
        else:
            schedule.step(target=ones)

    return stage, run


step_function = {"imported": imported, "functional": functionals}.get(variant, backward)
if variant == "hsdp":
    fully_shard(model, mesh=init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard")))
if variant == "unused":  # C++'s all-reduce of the parameters that were used
    model = DistributedDataParallel(model, find_unused_parameters=True)
if variant == "ddp_mesh":  # C++'s own all-reduce in groups, and the broadcast of buffers
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("dp", "tp"))
    model = DistributedDataParallel(nn.Sequential(model, nn.BatchNorm1d(16)), process_group=mesh["dp"].get_group())
if variant == "1f1b":
    model, step_function = stages()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
for step in range(STEPS):
    if step == 2:
        profiler.start()
    optimizer.zero_grad()
    step_function()
    optimizer.step()
profiler.stop()
events: Any = profiler.events()  # type: ignore[no-untyped-call]
issued = Counter(event.name for event in events if event.name.startswith("c10d::") and not is_inside_another(event))
Path(os.environ["COUNTS"], f"{rank}.json").write_text(json.dumps(issued))
dist.destroy_process_group()
