"""One rank of a real gloo job that averages over groups of ranks and shares samples; prints its results as JSON."""

from __future__ import annotations

import argparse
import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.nn.parallel import DistributedDataParallel as DDP

from timesyncd.errors import SyncError
from timesyncd.training.policy.groups import Levels, groups_by_label
from timesyncd.training.torch.data import Injection
from timesyncd.training.torch.topology_groups import TwoLevel, two_level

Facts = dict[str, Any]

PATIENCE = timedelta(minutes=5)

LEVELS: dict[str, Levels] = {
    "2+2": (((0, 1), (2, 3)), ((0, 1, 2, 3),)),
    "3+1": (((0, 1, 2), (3,)), ((0, 1, 2, 3),)),
    "apart": (((0,), (1, 3), (2,)), ((0, 2), (1, 3)), ((0, 1, 2, 3),)),
    "flat": (((0, 1, 2, 3),),),
}


@dataclass
class Flat:
    """The part of a bucket that the hook uses."""

    tensor: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.tensor


def world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().reshape(-1).view(torch.int32).tolist()


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def means() -> Facts:
    """Rank r has r squared; then random numbers, through the hook, several buckets at once."""
    facts = {}
    for name, levels in LEVELS.items():
        groups = TwoLevel(levels, world(), PATIENCE)
        own = float(dist.get_rank() ** 2)
        means = [groups.hook(Flat(torch.tensor([own, -own]))).wait().tolist()]
        for level in range(len(levels)):
            tensors = [torch.full((2,), own), torch.full((1, 1), own, dtype=torch.float64)]
            groups.average(tensors, level)
            means.append([number for tensor in tensors for number in tensor.flatten().tolist()])
        sent = groups.sent_bytes
        torch.manual_seed(dist.get_rank())
        random = [groups.hook(Flat(torch.randn(1_000 + number))) for number in range(3)]
        facts[name] = {"means": means, "sent": sent, "random": [bits(future.wait()) for future in random]}
        groups.close()
        groups.close()
    return facts


def averager() -> Facts:
    """torch's own averager, pairs every 2 steps and all every 4, compared with ours; each rank trains alone in between."""
    ours, theirs = network(dist.get_rank()), network(dist.get_rank())
    averager = HierarchicalModelAverager(OrderedDict([(2, 2), (4, 4)]))  # type: ignore[no-untyped-call]
    groups = TwoLevel(LEVELS["2+2"], world(), PATIENCE)
    same = []
    for step in range(6):
        for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            change = torch.randn(parameter.shape)
            parameter.data.add_(change)
            other.data.add_(change)
            other.grad = change  # torch's averages no parameter that never had a gradient
        averager.average_parameters(theirs.parameters())
        if step % 2 == 0:
            groups.average(ours.parameters(), -1 if step % 4 == 0 else 0)
        same.append(all(map(torch.equal, ours.parameters(), theirs.parameters())))
    groups.close()
    return {"same": same}


def trained(model: DDP, steps: int) -> Iterator[list[torch.Tensor]]:
    """The gradients of each step; every rank has inputs of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5, generator=generator)).square().sum().backward()
        yield [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()


def hooked() -> Facts:
    """A DDP module with the hook, one bucket per layer, compared with the same module without it."""
    facts: Facts = {}
    for name, levels in LEVELS.items():
        groups = TwoLevel(levels, world(), PATIENCE)
        ours, theirs = (DDP(network(1), bucket_cap_mb=0.0001) for _ in range(2))
        ours.register_comm_hook(groups, two_level)
        close = True
        for own, plain in zip(trained(ours, 3), trained(theirs, 3), strict=True):
            close &= all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(own, plain, strict=True))
        facts[name] = {"close": close, "ended": [bits(parameter) for parameter in ours.parameters()]}
        if name != "flat":  # that one is left to the end of the process
            groups.close()
    return facts


def within() -> Facts:
    """Two data-parallel groups in one world, of one and three ranks, where rank 1 has more groups than the others."""
    rank = dist.get_rank()
    if rank == 1:
        dist.new_group([1], use_local_synchronization=True)
    alone, three = dist.new_group([0]), dist.new_group([1, 2, 3])
    group = alone if rank == 0 else three
    for _ in range(2):
        groups = TwoLevel(groups_by_label(["a", "b", "b"][-group.size() :]), group, PATIENCE)
        mean = groups.hook(Flat(torch.tensor([float(rank**2)]))).wait().item()
        tensor = torch.tensor([float(rank)])
        groups.average([tensor], 0)
        groups.close()
    return {"mean": mean, "inner": tensor.item()}


def differ() -> Facts:
    """Rank 3 has levels that differ from those of the others."""
    try:
        TwoLevel(LEVELS["3+1" if dist.get_rank() == 3 else "2+2"], world(), PATIENCE)
    except SyncError as error:
        return {"error": str(error)}
    return {}


def lost(gone: bool) -> Facts:
    """Rank 1 ends, or becomes silent, after two steps; the errors that the others get from backward, the hook and an averaging."""
    groups = TwoLevel(LEVELS["2+2"], world(), PATIENCE if gone else timedelta(seconds=8))
    model = DDP(network(1), bucket_cap_mb=0.0001)
    model.register_comm_hook(groups, two_level)
    facts: Facts = {"steps": 0}
    dist.barrier()
    try:
        for facts["steps"], _ in enumerate(trained(model, 9), 1):
            if facts["steps"] == 2 and dist.get_rank() == 1:
                return facts
    except RuntimeError as error:
        facts["backward"] = str(error)
    for name, call in (
        ("hook", lambda: groups.hook(Flat(torch.ones(1))).wait()),
        ("average", lambda: groups.average([torch.ones(1)], 0)),
    ):
        try:
            call()
        except SyncError as error:
            facts[name] = str(error)
    return facts


def leave() -> Facts:
    facts = lost(gone=True)
    if dist.get_rank() == 1:
        print(json.dumps({"leave": facts}), flush=True)
        os._exit(0)  # its sockets close as those of a killed process do
    return facts


def silent() -> Facts:
    """Rank 1 stays until the others have their errors."""
    facts = lost(gone=False)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"done {dist.get_rank()}", "")
    store.wait([f"done {rank}" for rank in range(dist.get_world_size())], PATIENCE)
    return facts


def batch(rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample i of rank r is 100 r + i, as a row of two; its target is that much above the integers of a float64."""
    numbers = torch.arange(size) + 100 * rank
    return torch.stack([numbers, -numbers], 1).float(), numbers + 2**60


def injected() -> Facts:
    """Four samples per rank, one on rank 0 in step 0 and none on rank 1 in step 3; odd octets; nothing; an error."""
    rank = dist.get_rank()
    injection = Injection(0.5, 0.5, world(), seed=13)
    steps = []
    for step in range(6):
        size = {(0, 0): 1, (3, 1): 0}.get((step, rank), 4)
        inputs, targets = injection.inject(step, *batch(rank, size))
        kinds = [str(inputs.dtype), str(targets.dtype)]
        steps.append({"inputs": inputs.tolist(), "targets": targets.tolist(), "kinds": kinds})
    odd = Injection(1, 1, world(), seed=1).inject(
        0, torch.full((1, 3), rank, dtype=torch.uint8), torch.full((1,), rank / 4, dtype=torch.float64)
    )
    none = Injection(0, 1, world(), seed=1)
    own = batch(rank, 2)
    assert none.inject(0, *own) == own and none.sent_bytes == none.received_bytes == 0
    return {
        "steps": steps,
        "octets": [injection.sent_bytes, injection.received_bytes],
        "odd": [part.tolist() for part in odd],
        "mistake": mistake(),
    }


def mistake() -> str:
    """Rank r's targets have r + 1 numbers."""
    try:
        Injection(1, 1, world(), 1).inject(0, torch.zeros(2), torch.zeros(2, 1 + dist.get_rank()))
    except ValueError as error:
        return str(error)
    return "nothing"


SCENES = (means, averager, hooked, within, differ, injected, leave, silent)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("scenes", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {scene.__name__: scene() for scene in SCENES if scene.__name__ in options.scenes}
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()
