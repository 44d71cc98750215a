"""One rank of a real gloo job that goes through every way to meter a module; prints what happened as JSON."""

from __future__ import annotations

import argparse
import copy
import io
import json
import pickle
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_models import ONE_LAYER_A_BUCKET, VARIANTS, Slow, network, same, sgd, train

from timesyncd.client import Job
from timesyncd.client.torch import meter_collectives, meter_ddp, metered

Facts = dict[str, Any]


def bits(folder: Path) -> Facts:
    """Each variant twice from one start, without and with the meter: are the parameters the same bits?"""
    facts = {}
    for name, (make, options) in VARIANTS.items():
        job = Job(f"bits {name}", runtime_dir=folder)
        torch.manual_seed(1)
        bare = DDP(make(), bucket_cap_mb=ONE_LAYER_A_BUCKET, **options)
        torch.manual_seed(1)
        with_meter = DDP(make(), bucket_cap_mb=ONE_LAYER_A_BUCKET, **options)
        bare.load_state_dict(with_meter.state_dict())
        optimizer = torch.optim.SGD(with_meter.parameters(), lr=0.05)
        meter = metered(job, with_meter, optimizer)
        train(bare, torch.optim.SGD(bare.parameters(), lr=0.05), 5)
        train(with_meter, optimizer, 5)
        meter.close()
        job.close()
        facts[name] = {"same": same(bare, with_meter), "step": meter.step, "lost": job.meter.lost}
    return facts


def hooks(folder: Path) -> Facts:
    """The user's own hooks, wrapped, against the same hooks registered as torch has it."""
    facts: Facts = {}
    for name in ("fp16", "powerSGD"):
        job = Job(f"hook {name}", runtime_dir=folder)
        # powerSGD chains collectives: those of two buckets would overtake each other, on gloo with or without a meter.
        size = ONE_LAYER_A_BUCKET if name == "fp16" else 1
        models = [DDP(network(), bucket_cap_mb=size) for _ in range(2)]
        hook: Any = fp16_compress_hook if name == "fp16" else powerSGD_hook
        states = [None if name == "fp16" else PowerSGDState(None, start_powerSGD_iter=2) for _ in models]
        models[0].register_comm_hook(states[0], hook)
        meter = meter_ddp(job, models[1], hook=hook, state=states[1])
        for model in models:
            train(model, torch.optim.SGD(model.parameters(), lr=0.05), 5)
        meter.close()
        job.close()
        facts[name] = {"same": same(*models), "lost": job.meter.lost}
    facts["registered before"] = registered_before(folder)
    facts["of another group"] = of_another_group(folder)
    facts["raises"] = [raised(folder, meter) for meter in (False, True)]
    return facts


def registered_before(folder: Path) -> list[str]:
    """The warnings for a module that has a hook already; it trains on."""
    job = Job("registered before", runtime_dir=folder)
    model = DDP(network())
    model.register_comm_hook(None, fp16_compress_hook)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        meter = metered(job, model)
    train(model, sgd(model), 2)
    meter.close()
    job.close()
    return [str(warning.message) for warning in warned if "timesyncd" in str(warning.message)]


def of_another_group(folder: Path) -> list[str]:
    """The warnings where the job has more ranks than the module's group."""
    job = Job("of another group", rank=dist.get_rank(), world_size=8, runtime_dir=folder)
    model = DDP(network())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        metered(job, model).close()
    job.close()
    return [str(warning.message) for warning in warned if "timesyncd" in str(warning.message)]


def raised(folder: Path, meter: bool) -> str:
    """The error of a hook, as it comes out of backward."""

    def fails(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        raise ValueError("mine")

    fails.__annotations__.clear()
    model = DDP(network())
    job = Job("raises", runtime_dir=folder)
    if meter:
        meter_ddp(job, model, hook=fails)
    else:
        model.register_comm_hook(None, fails)
    try:
        train(model, sgd(model), 1)
    except ValueError as error:
        return str(error)
    finally:
        job.close()
    return "nothing"


def accumulated(folder: Path) -> Facts:
    """Three backward passes an update, the last alone synchronized; the numbers are the user's own."""
    job = Job("accumulated", runtime_dir=folder)
    model = DDP(network(), bucket_cap_mb=ONE_LAYER_A_BUCKET)
    optimizer = sgd(model)
    meter = metered(job, model)  # finds the optimizer by itself
    for step in (10, 20, 30):
        meter.step = step
        optimizer.zero_grad()
        with model.no_sync():
            for _ in range(2):
                model(torch.ones(4, 8)).sum().backward()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    meter.close()
    job.close()
    return {"lost": job.meter.lost}


def uneven(folder: Path) -> Facts:
    """Rank 1 has three batches more; `by` as in join: the parameters are those of a run without the meter."""
    facts = {}
    for by_initial in (True, False):
        job = Job(f"uneven {by_initial}", runtime_dir=folder)
        models = [DDP(network(), bucket_cap_mb=ONE_LAYER_A_BUCKET) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
        meter = metered(job, models[1], optimizers[1])
        for model, optimizer in zip(models, optimizers, strict=True):
            with model.join(divide_by_initial_world_size=by_initial):
                train(model, optimizer, 4 + 3 * dist.get_rank())
        meter.close()
        job.close()
        facts[str(by_initial)] = {"same": same(*models), "step": meter.step, "lost": job.meter.lost}
    return facts


def adversaries(folder: Path) -> Facts:
    """Two modules of one job, each with its optimizer, one of them updated twice as often."""
    job = Job("adversaries", runtime_dir=folder)
    models = [DDP(network(), bucket_cap_mb=ONE_LAYER_A_BUCKET) for _ in range(2)]
    optimizers = [sgd(model) for model in models]
    meters = [metered(job, model) for model in models]
    for _ in range(3):
        for which in (0, 0, 1):
            train(models[which], optimizers[which], 1)
    for meter in meters:
        meter.close()
    job.close()
    return {"steps": [meter.step for meter in meters], "lost": job.meter.lost}


def compiled(folder: Path) -> Facts:
    """torch.compile around the module."""
    job = Job("compiled", runtime_dir=folder)
    bare, inner = (DDP(network()) for _ in range(2))
    model: Any = torch.compile(inner, backend="eager")
    meter = metered(job, model)
    train(model, sgd(model), 3)
    train(bare, sgd(bare), 3)
    meter.close()
    job.close()
    return {"same": same(bare, inner), "lost": job.meter.lost}


def saved(folder: Path) -> Facts:
    """A metered module is saved, loaded, copied, and what comes of it is metered again."""
    job = Job("saved", runtime_dir=folder)
    model = DDP(network())
    optimizer = sgd(model)
    metered(job, model, optimizer)
    train(model, optimizer, 1)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    copies = [loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    pickle.loads(pickle.dumps(optimizer))
    facts = {"same": [same(model, other) for other in copies]}
    again = Job("saved again", runtime_dir=folder)
    meter = metered(again, loaded)
    train(loaded, sgd(loaded), 2)
    meter.close()
    for each in (job, again):
        each.close()
    return facts | {"lost": again.meter.lost}


def twice(folder: Path) -> Facts:
    """Metered again after a close, then again without one: the later takes the earlier one's place."""
    job = Job("twice", runtime_dir=folder)
    model = DDP(network(), bucket_cap_mb=ONE_LAYER_A_BUCKET)
    optimizer = sgd(model)
    metered(job, model, optimizer).close()
    train(model, optimizer, 2)  # not metered
    meter = metered(job, model, optimizer)
    train(model, optimizer, 2)
    meter.close()
    job.close()
    return {"lost": job.meter.lost}


def called(folder: Path) -> Facts:
    """Collectives inside and outside of the context, of the default group and of another."""
    job = Job("called", runtime_dir=folder)
    before, alone = dist.all_reduce, dist.new_group([dist.get_rank()], use_local_synchronization=True)
    tensor, parts = torch.ones(4), [torch.zeros(4) for _ in range(dist.get_world_size())]
    with meter_collectives(job) as steps, meter_collectives(job):
        steps.step = 5
        dist.all_reduce(tensor)
        dist.barrier()
        dist.all_reduce(tensor, group=alone)
        before(tensor)
        work = dist.all_gather(parts, tensor, async_op=True)
        assert isinstance(work, dist.Work)
        time.sleep(0.05)
        work.wait()
        done = work.is_completed() and len(work.result()) > 0
        objects: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(objects, dist.get_rank())
        try:
            dist.all_reduce("no tensor")
        except TypeError:
            steps.step = 6
        dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)
    job.close()
    return {"restored": dist.all_reduce is before, "done": done, "objects": objects, "lost": job.meter.lost}


def hooked(folder: Path) -> Facts:
    """Collectives that a module's own hook calls are part of its buckets, and the optimizer ends the steps of both."""
    job = Job("hooked", runtime_dir=folder)
    model = DDP(network(), bucket_cap_mb=ONE_LAYER_A_BUCKET)
    optimizer = sgd(model)
    meter = meter_ddp(job, model, optimizer, fp16_compress_hook)
    with meter_collectives(job):
        for _ in range(2):
            train(model, optimizer, 1)
            dist.all_reduce(torch.ones(1))
    meter.close()
    job.close()
    return {"lost": job.meter.lost}


def sharded(folder: Path) -> Facts:
    """FSDP2 on the CPU, against the same module without the meter."""
    job = Job("sharded", runtime_dir=folder)
    models = [network() for _ in range(2)]
    for model in models:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizers = [sgd(model) for model in models]
    meter = metered(job, models[1], optimizers[1])
    train(models[0], optimizers[0], 3)
    with meter_collectives(job):
        train(models[1], optimizers[1], 3)
    meter.close()
    train(models[1], optimizers[1], 1)
    train(models[0], optimizers[0], 1)
    job.close()
    whole = [[p.full_tensor() for p in model.parameters()] for model in models]  # type: ignore[attr-defined]
    return {"same": all(map(torch.equal, *whole)), "lost": job.meter.lost}


def broken(folder: Path) -> Facts:
    """A meter whose every number fails: the module trains on, and the loss is counted."""
    job = Job("broken", runtime_dir=folder)
    bare, model = (DDP(network(), bucket_cap_mb=ONE_LAYER_A_BUCKET) for _ in range(2))
    optimizer = sgd(model)
    meter = metered(job, model, optimizer)
    with failing(job), meter_collectives(job):
        train(model, optimizer, 3)
        dist.all_reduce(torch.ones(1))
    train(bare, sgd(bare), 3)
    meter.close()
    job.close()
    return {"same": same(bare, model), "lost": job.meter.lost > 0, "step": meter.step}


@contextmanager
def failing(job: Job) -> Iterator[None]:
    def fails(step: int) -> int:
        raise RuntimeError("broken")

    meter: Any = job.meter
    whole, meter.next_sync = meter.next_sync, fails
    try:
        yield
    finally:
        meter.next_sync = whole


def late(folder: Path) -> Facts:
    """Rank 1 is late by 50 ms in the middle of each backward pass."""
    job = Job("late", runtime_dir=folder)
    layers = iter((nn.Linear, Slow, nn.Linear, nn.Linear))
    model = DDP(network(lambda a, b: next(layers)(a, b)), bucket_cap_mb=ONE_LAYER_A_BUCKET)
    optimizer = sgd(model)
    meter = metered(job, model, optimizer)
    train(model, optimizer, 8)
    meter.close()
    job.close()
    return {"lost": job.meter.lost}


SCENES = (
    bits, hooks, accumulated, uneven, adversaries, compiled, saved, twice, called, hooked, sharded, broken, late,
)  # fmt: skip

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for scene in SCENES:
        if not options.only or scene.__name__ in options.only:
            found[scene.__name__] = scene(options.folder)
            dist.barrier()
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()
