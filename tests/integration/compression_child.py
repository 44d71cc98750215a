"""One rank of a real gloo job that trains DDP modules through compressors; prints its observations as JSON."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_models import ONE_LAYER_A_BUCKET, Sparse, network, parameters, same

from timesyncd.client import Job
from timesyncd.client.torch import meter_ddp
from timesyncd.training.compression import compression_hook, compressor
from timesyncd.training.policy.text import Compression, Fp16, Int8, PowerSGD, TopK

Facts = dict[str, Any]
KINDS: tuple[Compression, ...] = (Fp16(), PowerSGD(), TopK(0.1), TopK(), Int8())


class Trained:
    """A module that is metered and compressed; this rank's own gradients come from a copy of it."""

    def __init__(self, name: str, module: nn.Module, written: Compression, folder: Path, cap_mb: float) -> None:
        self.job = Job(name, runtime_dir=folder)
        self.ddp = DDP(module, bucket_cap_mb=cap_mb)
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        self.state: Any = compressor(written, self.ddp.process_group, module.parameters())
        self.buckets: list[list[tuple[int, ...]]] = []
        self.meter = meter_ddp(self.job, self.ddp, self.optimizer, hook=self._seen, state=self.state)

    def _seen(self, state: Any, bucket: Any) -> Any:
        if bucket.index() == 0:
            self.buckets.append([])
        places = {id(parameter): place for place, parameter in enumerate(self.ddp.parameters())}
        self.buckets[-1].append(tuple(places[id(parameter)] for parameter in bucket.parameters()))
        return compression_hook(state, bucket)

    _seen.__annotations__.clear()

    def step(self, inputs: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """This rank's own gradients, and those that were applied."""
        own = torch.autograd.grad(self.ddp.module(inputs).square().mean(), list(self.ddp.parameters()))
        self.optimizer.zero_grad()
        self.ddp(inputs).square().mean().backward()
        applied = [parameter.grad.clone() for parameter in self.ddp.parameters() if parameter.grad is not None]
        self.optimizer.step()
        return list(own), applied

    def close(self) -> None:
        self.meter.close()
        self.job.close()


def data() -> torch.Generator:
    return torch.Generator().manual_seed(100 + dist.get_rank())


def conserved(folder: Path) -> Facts:
    """DDP rebuilds its buckets after the first step: what each parameter received and its residual add up to all of its gradients."""
    facts: Facts = {}
    for written in KINDS[1:]:
        trained, generator = Trained(f"kept {written}", network().double(), written, folder, ONE_LAYER_A_BUCKET), data()
        missing = [torch.zeros_like(parameter) for parameter in trained.ddp.parameters()]
        for _ in range(12):
            own, applied = trained.step(torch.randn(16, 8, generator=generator, dtype=torch.float64))
            for total, gradient, average in zip(missing, own, applied, strict=True):
                total += gradient - average
        kept = trained.state.state_dict()["residuals"]
        for place, total in enumerate(missing):
            dist.all_reduce(total.sub_(kept[str(place)].view_as(total)))
        trained.close()
        facts[trained.state.name] = {
            "off": max(float(total.abs().max()) for total in missing),
            "kept": max(float(part.abs().max()) for part in kept.values()),
            "rebuilt": trained.buckets[0] != trained.buckets[-1] and len(trained.buckets[-1]) > 1,
            "same": agree(trained.ddp),
            "sent": [trained.state.sent_bytes, trained.state.raw_bytes],
            "lost": trained.job.meter.lost,
        }
    return facts


def agree(module: nn.Module) -> bool:
    """Whether all ranks have the same bits."""
    own = torch.cat([parameter.flatten() for parameter in parameters(module)])
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    return all(torch.equal(own, row) for row in rows)


def restarted(folder: Path) -> Facts:
    """Ten steps without interruption; and five, a checkpoint, and five with another compressor and module."""
    facts: Facts = {}
    for written in KINDS:
        whole, generator = Trained(f"whole {written}", network(), written, folder, 25), data()
        inputs = [torch.randn(16, 8, generator=generator) for _ in range(10)]
        for batch in inputs[:5]:
            whole.step(batch)
        file = io.BytesIO()
        torch.save({"state": whole.state.state_dict(), "module": whole.ddp.module.state_dict()}, file)
        for batch in inputs[5:]:
            whole.step(batch)
        file.seek(0)
        saved = torch.load(file)  # nothing but tensors and plain values
        module = network()
        module.load_state_dict(saved["module"])
        again = Trained(f"again {written}", module, written, folder, 25)
        again.state.load_state_dict(saved["state"])
        for batch in inputs[5:]:
            again.step(batch)
        whole.close()
        again.close()
        facts[whole.state.name] = {
            "same": same(whole.ddp, again.ddp),
            "state": alike(whole.state.state_dict(), again.state.state_dict()),
        }
    return facts


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)


def sparse(folder: Path) -> Facts:
    """An embedding's sparse gradients are sent as they are."""
    facts: Facts = {}
    for written in KINDS:
        trained, generator = Trained(f"sparse {written}", Sparse(), written, folder, ONE_LAYER_A_BUCKET), data()
        for _ in range(3):
            trained.step(torch.randn(16, 8, generator=generator))
        trained.close()
        facts[trained.state.name] = agree(trained.ddp)
    return facts


def learned(folder: Path) -> Facts:
    """
    How much of what there is to learn is missing, after training with two elements of 200 sent (of which what is not sent is kept, or dropped), and with all.

    A sample is one word. Of 20 words the ranks learn opposite things, more than of all others: those gradients are always the largest, and average to nothing.
    """
    facts = {}
    target = torch.randn(200, generator=torch.Generator().manual_seed(5))
    disputed = torch.zeros(200)
    disputed[:20] = 10 if dist.get_rank() % 2 else -10
    for name, written, keeps in (("all", Fp16(), True), ("kept", TopK(0.01), True), ("dropped", TopK(0.01), False)):
        module, generator = nn.Linear(200, 1, bias=False), data()
        nn.init.zeros_(module.weight)
        ddp = DDP(module)
        state = compressor(written, ddp.process_group, ddp.parameters())
        ddp.register_comm_hook(state, compression_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
        for _ in range(1_200):
            words = torch.randint(200, (64,), generator=generator)
            optimizer.zero_grad()
            error = ddp(torch.eye(200)[words]).squeeze(1) - (target + disputed)[words]
            error.square().mean().backward()
            optimizer.step()
            if not keeps:
                state.load_state_dict({"name": state.name, "residuals": {}})
        off = (module.weight.detach().squeeze(0) - target)[20:]
        facts[name] = float(off.norm() / target[20:].norm())
    return facts


SCENES = (conserved, restarted, sparse, learned)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for scene in SCENES:
        found[scene.__name__] = scene(options.folder)
        dist.barrier()
    print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()
