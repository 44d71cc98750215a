"""One rank of a real gloo job that trains under each policy, and computes the expected result alone; prints its observations as JSON."""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import policy_alone
import torch
import torch.distributed as dist
from low_communication_alone import desynced, mixed, outer_averaged, streamed
from policy_alone import Alone, Make, Optimize, PaperFlag, adam, averaged, linear, loss_of, momentum, normalized, plain
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from timesyncd.client import Job
from timesyncd.errors import SyncError
from timesyncd.training.policy.policies import FedAvg
from timesyncd.training.policy.selsync import SelSync, Voter
from timesyncd.training.torch import averaging
from timesyncd.training.torch.actions import replica_tensors
from timesyncd.training.torch.entry import synchronized
from timesyncd.training.torch.replicas import replica_hash

Facts = dict[str, Any]
STEPS = 30


class Run:
    """A module in training under a policy."""

    def __init__(
        self,
        policy: str,
        folder: Path,
        make: Make = linear,
        optimize: Optimize = plain,
        epoch: int | None = None,
        **ddp: Any,
    ) -> None:
        self.job = Job(policy, runtime_dir=folder)
        self.rank = dist.get_rank(ddp.get("process_group"))
        self.ddp = DDP(make(), **ddp)
        self.optimizer = optimize(list(self.ddp.parameters()))
        self.sync = synchronized(self.job, self.ddp, self.optimizer, policy, epoch)
        self.synced: list[int] = []
        self.hashes: list[int] = []
        self.policies: list[str] = []

    def train(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            self.optimizer.zero_grad()
            loss_of(self.ddp, self.rank, step).backward()
            self.update(step)

    def update(self, step: int) -> None:
        self.policies.append(self.sync.policy)
        rounds = self.sync.report().rounds
        self.optimizer.step()
        if self.sync.report().rounds > rounds:
            self.synced.append(step)
            self.hashes.append(self.hashed())

    def hashed(self) -> int:
        return replica_hash(self.ddp.parameters())

    def off(self, alone: Alone) -> float:
        pairs = zip(replica_tensors(self.ddp), alone.replica(self.rank), strict=True)
        return max(float((mine.detach() - expected).abs().max()) for mine, expected in pairs)

    def outcome(self, alone: Alone) -> Facts:
        """The result and the expected result, including the final average."""
        report = self.sync.report()
        facts = {"off": self.off(alone), "synced": self.synced, "hashes": self.hashes, "lssr": report.lssr}
        self.close()
        return facts | {"closed": replica_hash(replica_tensors(self.ddp)), "differed": report.replicas_differed}

    def close(self) -> None:
        self.sync.close()
        self.job.close()


def every(h: int) -> Callable[[int], bool]:
    return lambda step: step % h == h - 1


#: By policy, with what should come of it, written from the papers.
REFERENCES: dict[str, Callable[[Alone], None]] = {
    "bsp": lambda alone: policy_alone.bsp(alone, STEPS),
    "accumulate(k=4)": lambda alone: policy_alone.accumulated(alone, STEPS, 4),
    "local_sgd(h=4)": lambda alone: averaged(alone, STEPS, every(4)),
    "local_sgd(h=6, delay=4)": lambda alone: averaged(alone, STEPS, every(6), delay=4),
    "post_local_sgd(start=5, h=4)": lambda alone: averaged(alone, STEPS, lambda step: step < 5 or step % 4 == 0),
    "fedavg(c=1.0, e=0.25)": lambda alone: averaged(alone, STEPS, every(3)),
    "fedavg(c=0.5, e=0.25)": lambda alone: averaged(
        alone, STEPS, every(3), weights=lambda rounds: FedAvg(0.5, 0.25).weights(len(alone.modules), rounds)
    ),
    "qsr(h=2, alpha=0.11)": lambda alone: averaged(alone, STEPS, every(4)),  # (0.11 / 0.05)^2 = 4.84
}


def numbers(folder: Path) -> Facts:
    """Each policy whose synchronizations are known beforehand."""
    facts: Facts = {}
    for optimize in (plain, momentum):
        for policy, reference in REFERENCES.items():
            alone, run = (
                Alone(linear, optimize, dist.get_world_size()),
                Run(policy, folder, optimize=optimize, epoch=12),
            )
            reference(alone)
            run.train(0, STEPS)
            facts[f"{policy} {optimize.__name__}"] = run.outcome(alone)
    return facts


#: The low-communication methods with AdamW inside, beside their papers' algorithms. Top-k of all elements sends what no
#: compression does; all that these steps change is visible.
LOW_COMMUNICATION: dict[str, Callable[[Alone], None]] = {
    "diloco(h=4)": lambda alone: outer_averaged(alone, STEPS, every(4), (0.7, 0.9)),
    "diloco(h=4) + topk(ratio=1.0)": lambda alone: outer_averaged(alone, STEPS, every(4), (0.7, 0.9)),
    "diloco(h=4) + visible": lambda alone: outer_averaged(alone, STEPS, every(4), (0.7, 0.9)),
    "diloco(h=3, lr=1.0, momentum=0.0)": lambda alone: averaged(alone, STEPS, every(3)),
    "streaming_diloco(h=6, fragments=2, delay=2, alpha=0.25)": lambda alone: streamed(
        alone, STEPS, 6, [(0, 1, 4, 5), (2, 3)], 2, 0.25
    ),
    "streaming_diloco(h=6, fragments=3, alpha=0.0)": lambda alone: streamed(
        alone, STEPS, 6, [(0, 1), (2, 3), (4, 5)], 0, 0.0
    ),
    "des_loc(kx=2, ku=3, kv=8)": lambda alone: desynced(alone, STEPS, 2, 3, 8),
    "post_local_sgd(start=5, h=4) + outer(lr=0.5)": lambda alone: outer_averaged(
        alone, STEPS, lambda step: step < 5 or step % 4 == 0, (0.5, 0.9)
    ),
    "fedavg(c=0.5, e=0.25) + outer": lambda alone: outer_averaged(
        alone, STEPS, every(3), (0.7, 0.9), lambda rounds: FedAvg(0.5, 0.25).weights(len(alone.modules), rounds)
    ),
}


def low_communication(folder: Path) -> Facts:
    """DiLoCo and those after it, and the outer optimizer behind other policies."""
    facts: Facts = {}
    for policy, reference in LOW_COMMUNICATION.items():
        alone = Alone(mixed, adam, dist.get_world_size())
        run = Run(policy, folder, mixed, adam, epoch=12)
        reference(alone)
        run.train(0, STEPS)
        facts[policy] = run.outcome(alone)
    return facts


def balanced(folder: Path) -> Facts:
    """Rank 1 takes four times as long for a sample. The parameters are those of one process with whole batches."""
    rank, samples = dist.get_rank(), 24
    alone, ddp = linear(), DDP(linear())
    optimizers = [momentum(list(module.parameters())) for module in (alone, ddp)]
    facts: Facts = {"off": 0.0, "parts": []}
    with (
        closing(Job("balanced", runtime_dir=folder)) as job,
        synchronized(job, ddp, optimizers[1], "bsp", balance=True) as sync,
    ):
        for step in range(2 * STEPS):
            inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            part = sync.batches.part(samples)
            time.sleep((part.stop - part.start) * (0.001 if rank == 1 else 0.00025))
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.autograd.backward(alone(inputs).square().mean())
            torch.autograd.backward(sync.batches.weigh(ddp(inputs[part]).square().mean()))
            for optimizer in optimizers:
                optimizer.step()
            pairs = zip(alone.parameters(), ddp.parameters(), strict=True)
            facts["off"] = max(facts["off"], *(float((a - b).detach().abs().max()) for a, b in pairs))
            facts["parts"].append((part.start, part.stop))
        return facts | {"shares": sync.batches.shares}


def ordered(folder: Path) -> Facts:
    """Averages that the step waits for, and those that arrive in the next forward pass in chunks of one tensor: hashes after 30 steps."""
    facts: Facts = {}
    averaging.CHUNK_BYTES = 1
    for policy in ("local_sgd(h=3)", "diloco(h=4)", "local_sgd(h=2) + fp16", "selsync(quantile=0.5)", "des_loc(kx=2)"):
        hashes: list[list[int]] = []
        for order in (None, "forward"):
            job, ddp = Job(policy, runtime_dir=folder), DDP(mixed())
            optimizer = adam(list(ddp.parameters()))
            with closing(job), synchronized(job, ddp, optimizer, policy, order=order) as sync:
                hashes.append([])
                for step in range(STEPS):
                    optimizer.zero_grad()
                    loss_of(ddp, dist.get_rank(), step).backward()
                    optimizer.step()
                    if step % 7 == 5:  # a state dictionary waits for what has not arrived
                        hashes[-1].append(replica_hash(ddp.module.state_dict().values()))
                if order is not None:
                    facts.setdefault("pending", []).append(bool(sync._order and sync._order.is_pending))
            hashes[-1].append(replica_hash(replica_tensors(ddp)))
        facts[policy] = hashes
    averaging.CHUNK_BYTES = 8 << 20
    return facts


def selsync(folder: Path) -> Facts:
    """Votes, averages and the share of local steps, compared with Alg. 1."""
    facts: Facts = {}
    ranks = dist.get_world_size()
    for late in (0, 1, 2):
        for aggregate in ("parameters", "gradients"):
            for threshold in ("delta=0.04", "quantile=0.7"):
                policy = f"selsync({threshold}, late={late}, aggregate={aggregate})"
                voters = [Voter(SelSync(quantile=0.7), rank, ranks) for rank in range(ranks)]
                flag = (
                    PaperFlag(ranks, 0.04) if "delta" in threshold else lambda rank, norm, v=voters: v[rank].vote(norm)
                )
                alone, run = Alone(linear, momentum, ranks), Run(policy, folder, optimize=momentum)
                expected = policy_alone.selected(alone, 2 * STEPS, flag, late, aggregate)
                run.train(0, 2 * STEPS)
                facts[policy] = run.outcome(alone) | {"expected": expected}
    return facts


def modules(folder: Path) -> Facts:
    """Batch normalization, views of buckets, parameters that only some ranks use, and the user's own no_sync."""
    facts: Facts = {}
    ranks = dist.get_world_size()
    alone, run = Alone(normalized, adam, ranks), Run("local_sgd(h=3)", folder, normalized, adam)
    averaged(alone, STEPS, every(3))
    run.train(0, STEPS)
    facts["normalized"] = run.outcome(alone)
    for policy in ("bsp", "local_sgd(h=4)", "accumulate(k=4)"):
        alone, run = (
            Alone(linear, momentum, ranks),
            Run(policy, folder, optimize=momentum, gradient_as_bucket_view=True),
        )
        REFERENCES[policy](alone)
        run.train(0, STEPS)
        facts[f"view {policy}"] = run.outcome(alone)
        facts[f"uneven {policy}"] = uneven(folder, policy)
        facts[f"no_sync {policy}"] = by_halves(folder, policy)
    return facts


class Uneven(nn.Module):
    """One layer that only rank 0 uses."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.first = linear(), linear()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.all(inputs)
        return output + self.first(inputs) if dist.get_rank() == 0 else output


def uneven(folder: Path, policy: str) -> Facts:
    run = Run(policy, folder, Uneven, plain, find_unused_parameters=True)
    run.train(0, STEPS)
    run.close()
    return {"hashes": run.hashes, "closed": run.hashed()}


def by_halves(folder: Path, policy: str) -> Facts:
    """Two passes per step, the first in no_sync, give the same as one pass over both."""
    runs = [Run(policy, folder, optimize=momentum) for _ in range(2)]
    for step in range(STEPS):
        whole, halves = runs
        whole.optimizer.zero_grad()
        halves.optimizer.zero_grad()
        (loss_of(whole.ddp, whole.rank, step) + loss_of(whole.ddp.module, whole.rank, step + 1)).backward()
        with halves.ddp.no_sync():
            loss_of(halves.ddp, halves.rank, step).backward()
        loss_of(halves.ddp, halves.rank, step + 1).backward()
        for run in runs:
            run.update(step)
    pairs = zip(*(run.ddp.parameters() for run in runs), strict=True)
    facts = {"off": max(float((a - b).detach().abs().max()) for a, b in pairs), "hashes": runs[1].hashes}
    for run in runs:
        run.close()
    return facts


def switched(folder: Path) -> Facts:
    """One policy after another, while ranks are sometimes slow."""
    run = Run("bsp", folder, normalized, momentum)
    drawn = random.Random(dist.get_rank())
    requests = {15: "local_sgd(h=3)", 40: "selsync(delta=0.02, late=2)", 65: "local_sgd(h=5, delay=4)", 90: "bsp"}
    for step in range(125):
        if drawn.random() < 0.2:
            time.sleep(drawn.random() * 0.02)
        if step in requests and dist.get_rank() == 0:
            run.sync.use(requests[step])
        run.train(step, step + 1)
    facts = {"policies": run.policies, "synced": run.synced, "hashes": run.hashes}
    run.close()
    return facts | {"closed": run.hashed()}


def scalar() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(6, 1).double()


def momentum_united(folder: Path) -> Facts:
    """A bias of one number has a momentum of one number, which is averaged too before BSP begins."""
    run = Run("local_sgd(h=50)", folder, scalar, momentum)
    run.train(0, 10)
    if dist.get_rank() == 0:
        run.sync.use("bsp")
    run.train(10, 60)
    facts = {"policies": run.policies, "hashes": run.hashes[-5:]}
    run.close()
    return facts


def gathered(folder: Path) -> Facts:
    """A change is requested in the middle of an interval: the gradients up to there make one update."""
    alone, run = Alone(linear, momentum, dist.get_world_size()), Run("accumulate(k=20)", folder, optimize=momentum)
    if dist.get_rank() == 0:
        run.sync.use("bsp")
    run.train(0, 10)
    turned = run.policies.index("bsp")
    policy_alone.accumulated(alone, turned, turned)
    policy_alone.bsp(alone, 10, turned)
    return {"policies": run.policies} | run.outcome(alone)


def conserved(folder: Path) -> Facts:
    """The sum over the ranks, when an averaging in the background begins and ends: gradients that do not depend on parameters."""
    run = Run("local_sgd(h=5, delay=3)", folder, linear, plain)
    moved = [parameter.detach().clone() for parameter in run.ddp.parameters()]
    off = 0.0
    for step in range(STEPS):
        run.optimizer.zero_grad()
        inputs = policy_alone.batch(run.rank, step)
        run.ddp(inputs).sum().backward()
        for total, parameter in zip(moved, run.ddp.parameters(), strict=True):
            assert parameter.grad is not None
            total -= 0.05 * parameter.grad
        run.optimizer.step()
        for total, parameter in zip(moved, run.ddp.parameters(), strict=True):
            difference = total - parameter.detach()
            dist.all_reduce(difference)
            off = max(off, float(difference.abs().max()))
    apart = run.hashed()
    run.close()
    return {"off": off, "apart": apart, "closed": run.hashed()}


def shared(folder: Path) -> Facts:
    """Within an interval, the mean of the replicas and of a moving average of each; then training continues as if nothing had happened."""
    facts: Facts = {}
    schedules: dict[str, Callable[[int], bool]] = {"local_sgd(h=4)": every(4), "bsp": lambda step: False}
    for policy, when in schedules.items():
        ranks = dist.get_world_size()
        alone, run = Alone(normalized, momentum, ranks), Run(policy, folder, normalized, momentum)
        ema, emas = moving_average(run.ddp.module), [moving_average(module) for module in alone.modules]
        for step in range(10):
            run.train(step, step + 1)
            ema.update_parameters(run.ddp.module)
            alone.backward(step)
            if policy == "bsp":
                alone.average_gradients()
            alone.update()
            if when(step):
                alone.average()
            for module, moving in zip(alone.modules, emas, strict=True):
                moving.update_parameters(module)
        own, sent = run.hashed(), run.sync.report().sent_bytes
        with run.sync.averaged(ema):
            expected = [mean_of(alone.modules), mean_of(emas)]
            found = [list(run.ddp.parameters()), list(ema.parameters())]
            off = max(
                float((a - b).detach().abs().max())
                for f, e in zip(found, expected, strict=True)
                for a, b in zip(f, e, strict=True)
            )
            inside = [replica_hash(run.ddp.parameters()), replica_hash(ema.parameters())]
            error = update_error(run.optimizer)
        facts[policy] = {"off": off, "inside": inside, "is_own": run.hashed() == own, "error": error, "own": own}
        run.train(10, STEPS)
        if policy != "bsp":
            for step in range(10, STEPS):
                alone.backward(step)
                alone.update()
                if when(step):
                    alone.average()
            facts[policy]["later"] = run.off(alone)
        facts[policy]["sent"] = run.sync.report().sent_bytes - sent
        run.close()
    return facts


def moving_average(module: nn.Module) -> Any:
    averaging: Any = get_ema_multi_avg_fn
    return AveragedModel(module, multi_avg_fn=averaging(0.5), use_buffers=True)


def mean_of(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    return [torch.stack(list(each)).mean(0) for each in zip(*(module.parameters() for module in modules), strict=True)]


def update_error(optimizer: torch.optim.Optimizer) -> str:
    try:
        optimizer.step()
    except SyncError as error:
        return str(error)
    return ""


RESUMED = [
    "bsp", "accumulate(k=4)", "local_sgd(h=8, delay=5)", "local_sgd(h=8, delay=5) + fp16", "selsync(quantile=0.6, late=2)",
    "selsync(delta=0.04, late=2, aggregate=gradients)", "fedavg(c=0.5, e=0.5)", "bsp + topk(ratio=0.25)", "local_sgd(h=4) + topk(ratio=0.25)",
    "diloco(h=5) + visible", "streaming_diloco(h=8, fragments=2, delay=2)", "des_loc(kx=3)", "local_sgd(h=8, delay=5) + outer + int8",
]  # fmt: skip


def saved(folder: Path) -> Facts:
    """Saved at step 13, within an interval, with rows and averages in transit; then training continues."""
    facts = {}
    for number, policy in enumerate(RESUMED):
        run = Run(policy, folder, normalized, momentum, 12)
        run.train(0, 13)
        state = [thing.state_dict() for thing in (run.ddp, run.optimizer, run.sync)]
        torch.save(state, folder / f"{number} {run.rank}")
        facts[policy] = trained_on(run)
    return facts


def resumed(folder: Path) -> Facts:
    """In a new process, from the saved state."""
    facts = {}
    for number, policy in enumerate(RESUMED):
        run = Run(policy, folder, normalized, momentum, 12)
        state = torch.load(folder / f"{number} {run.rank}", weights_only=False)
        things: tuple[Any, ...] = (run.ddp, run.optimizer, run.sync)
        for thing, its in zip(things, state, strict=True):
            thing.load_state_dict(its)
        facts[policy] = trained_on(run)
    return facts


def trained_on(run: Run) -> Facts:
    if dist.get_rank() == 0:
        run.sync.use("local_sgd(h=3)")
    before = len(run.synced)
    run.train(13, 45)
    facts = {
        "synced": run.synced[before:],
        "policy": run.sync.policy,
        "replica": replica_hash(replica_tensors(run.ddp)),
    }
    run.close()
    return facts


def wide() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def mesh(folder: Path) -> Facts:
    """Tensor parallelism within pairs, data parallelism across them; compared with two replicas in one process."""
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    place = whole["dp"].get_local_rank()
    facts: Facts = {}
    for policy in ("local_sgd(h=2)", "selsync(delta=0.1, late=1)", "bsp"):
        module = parallelize_module(wide(), whole["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        run = Run(policy, folder, partial(nn.Module.train, module), momentum, device_mesh=whole["dp"])
        run.rank = place
        alone = Alone(wide, momentum, 2)
        own: Sequence[torch.Tensor] = run.optimizer.param_groups[0]["params"]
        for step in range(STEPS):
            run.train(step, step + 1)
            alone.backward(step)
            if policy == "bsp":
                alone.average_gradients()
            alone.update()
            if step in run.synced and policy != "bsp":
                alone.average()
        expected = shards(alone.replica(place), whole["tp"].get_local_rank())
        off = max(float((mine.detach() - part).abs().max()) for mine, part in zip(own, expected, strict=True))
        steps = run.sync.step
        run.close()
        facts[policy] = {"synced": run.synced, "off": off, "closed": replica_hash(own), "steps": steps}
    return facts


def shards(replica: Sequence[torch.Tensor], place: int) -> list[torch.Tensor]:
    """Rows of the first layer, columns of the second; its bias is whole."""
    first, first_bias, second, second_bias = replica
    return [first.chunk(2)[place], first_bias.chunk(2)[place], second.chunk(2, dim=1)[place], second_bias]


SCENES = {
    scene.__name__: scene
    for scene in (
        numbers,
        low_communication,
        ordered,
        balanced,
        selsync,
        modules,
        switched,
        momentum_united,
        gathered,
        conserved,
        shared,
        saved,
        resumed,
        mesh,
    )
}


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("--folder", type=Path)
    reader.add_argument("--scenes", nargs="+", choices=SCENES)
    arguments = reader.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts = {scene: SCENES[scene](arguments.folder) for scene in arguments.scenes}
    facts["warnings"] = sorted({str(warning.message) for warning in caught})  # type: ignore[assignment]
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
