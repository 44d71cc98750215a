"""A rank of a job with a parameter server, or the server, in scripted scenes; prints its observations as JSON."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client import Job
from timesyncd.client.torch import metered
from timesyncd.errors import SyncError
from timesyncd.training.torch.server import serve
from timesyncd.training.torch.shard import Shard
from timesyncd.training.torch.stale import StaleSync

Facts = dict[str, Any]

#: With something kept back, which a checkpoint has to hold.
COMPRESSED = "ssp(s=0) + topk(ratio=0.2)"

#: Patience, not an expectation.
LONG = timedelta(seconds=200)


class Child:
    """This process's role, and events that other processes wait for."""

    def __init__(self, folder: Path, ranks: int, servers: int, timeout_s: float) -> None:
        self.rank = int(os.environ["RANK"])
        #: Groups, of which a reducer must not be the last holder: it joins their threads with the GIL held (torch 2.13), for which they may wait.
        self.kept: list[dist.ProcessGroup] = []
        self.folder, self.ranks, self.servers, self.timeout_s = folder, ranks, servers, timeout_s
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.store = TCPStore(
            host, port, is_master=self.rank == 0, timeout=LONG, wait_for_workers=False, multi_tenant=True
        )

    def report(self, event: str) -> None:
        self.store.set(event, "")

    def wait(self, event: str) -> None:
        self.store.wait([event], LONG)

    def job(self, name: str) -> Job:
        return Job(name, self.rank, self.ranks, 0, runtime_dir=self.folder)

    def sync(self, job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, policy: str) -> StaleSync:
        return StaleSync(job, model, optimizer, policy, servers=self.servers, timeout_s=self.timeout_s)


class Mixed(nn.Module):
    """Parameters of two types, a frozen one, and a buffer."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64) * (1 + rank))
        self.bias = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.tensor(float(rank)), requires_grad=False)
        self.register_buffer("seen", torch.tensor(float(rank)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


INPUTS = [[1.0, 2.0, -1.0], [0.5, -1.0, 2.0]]
TARGETS = [2.0, -1.0]


def together(child: Child) -> Facts:
    """`s=0`: three steps of SGD with momentum, from rank 0's parameters, with dyadic numbers."""
    job, model = child.job("together"), Mixed(child.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    after = []
    with child.sync(job, model, optimizer, "ssp(s=0)"):
        metered(job, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            error = model(torch.tensor(INPUTS[child.rank], dtype=torch.float64)) - TARGETS[child.rank]
            (0.5 * error**2).backward()
            optimizer.step()
            after.append([*model.weight.tolist(), model.bias.item()])
    job.close()
    return {"after": after, "own": [model.frozen.item(), model.get_buffer("seen").item()]}


class Stepper:
    """A parameter that each update of rank 0 raises by 1 and of rank 1 by 100, before the server halves it."""

    def __init__(self, child: Child) -> None:
        self.at = nn.Parameter(torch.zeros(3))
        self.model = nn.ParameterList([self.at])
        self.optimizer = torch.optim.SGD([self.at], lr=1.0)
        self._gradient = torch.full((3,), -1.0 if child.rank == 0 else -100.0)
        self.after: list[float] = []

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.at.grad = self._gradient.clone()
            self.optimizer.step()
            self.after += self.at.tolist()[:1]
            assert len(set(self.at.tolist())) == 1, "the shards are at the same version where this is scripted"


def ahead(child: Child) -> Facts:
    """`s=2`: rank 0 runs ahead until it must wait; rank 1 continues when the server has the update at which rank 0 waits."""
    job, stepper = child.job("ahead"), Stepper(child)
    sync = child.sync(job, stepper.model, stepper.optimizer, "ssp(s=2)")
    if child.rank == 0:
        stepper.step(2)
        child.report("ahead two")
        child.wait("ahead one")
        stepper.step(3)
    else:
        child.wait("ahead two")
        stepper.step()
        child.report("ahead one")
        wait_for_version(sync, 5)
        stepper.step()
    sync.close()
    sync.close()
    job.close()
    return {"after": stepper.after, "final": stepper.at.tolist()}


def wait_for_version(sync: StaleSync, version: int) -> None:
    """Wait until all shards have this version."""
    for host in sync._hosts:
        while sync._connection.reply(host, sync._connection.request(host, Shard.read, 1)).version < version:
            pass


def followed(child: Child) -> Facts:
    """Rank 1 waits under `s=0`, until rank 0, which makes no updates, changes the policy so that no rank waits."""
    job, stepper = child.job("followed"), Stepper(child)
    sync = child.sync(job, stepper.model, stepper.optimizer, "ssp(s=0)")
    if child.rank == 0:
        sync.use("asp")
        child.wait("released")
    else:
        sync.use("ssp(s=7)")  # only rank 0's word counts
        stepper.step(5)
        child.report("released")
    sync.close()
    job.close()
    return {"after": stepper.after, "final": stepper.at.tolist()}


def restarted(child: Child) -> Facts:
    """Six steps without interruption; and three, a checkpoint, and three from another start: the same bits?"""
    whole, _ = trained(child, "whole", 0, 6, b"")
    _, saved = trained(child, "first half", 0, 3, b"")
    halves, ended = trained(child, "second half", 3, 6, saved)
    state = torch.load(io.BytesIO(ended), weights_only=True)["sync"]
    same = [torch.equal(one, other) for one, other in zip(whole, halves, strict=True)]
    return {"same": same, "clock": state["clock"], "version": state.get("version")}


def compressed(child: Child) -> Facts:
    """Each compression: the total change of the ranks' updates, what the server received, and the ranks' residuals."""
    facts: Facts = {}
    for text in ("fp16", "int8", "topk(ratio=0.1)", "topk"):
        job, at = child.job(f"by {text}"), nn.Parameter(torch.zeros(4_000))
        optimizer = torch.optim.SGD([at], lr=1.0)
        sync = child.sync(job, nn.ParameterList([at]), optimizer, f"ssp(s=0) + {text}")
        generator, wanted = torch.Generator().manual_seed(child.rank), torch.zeros(4_000, dtype=torch.float64)
        for _ in range(20):
            at.grad = torch.randn(4_000, generator=generator)
            wanted -= at.grad / child.ranks
            optimizer.step()
        kept = sync.state_dict()["encoder"]["residuals"][0]
        sent_bytes = sync._encoder.sent_bytes
        sync.close()
        job.close()
        sides = [wanted, kept.double(), at.detach().double()]
        facts[text] = {"sides": [side.tolist() for side in sides], "sent_bytes": sent_bytes}
    return facts


def trained(child: Child, name: str, begin: int, end: int, saved: bytes) -> tuple[list[torch.Tensor], bytes]:
    torch.manual_seed(5 if not saved else 77 + child.rank)
    job, model = child.job(name), nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    sync = child.sync(job, model, optimizer, COMPRESSED)
    if saved:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        optimizer.load_state_dict(state["optimizer"])
        sync.load_state_dict(state["sync"])
    for step in range(begin, end):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * step + child.rank)
        (model(torch.randn(16, 5, generator=generator)) ** 2).mean().backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "sync": sync.state_dict()}, file)
    sync.close()
    job.close()
    return [parameter.detach().clone() for parameter in model.parameters()], file.getvalue()


def reduced(child: Child) -> Facts:
    """A DDP module: its gradients are this rank's own while the server runs, and reduced again afterwards."""
    dist.init_process_group("gloo", store=PrefixStore("group", child.store), rank=child.rank, world_size=child.ranks)
    job, bare = child.job("reduced"), nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(bare)
    child.kept.append(model.process_group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    gradients = []
    for policy in ("ssp(s=0)", None):
        sync = None if policy is None else child.sync(job, model, optimizer, policy)
        optimizer.zero_grad()
        model(torch.full((1, 1), 1.0 + 2 * child.rank)).sum().backward()
        assert bare.weight.grad is not None
        gradients.append(bare.weight.grad.item())
        if sync is not None:
            optimizer.step()
            sync.close()
    job.close()
    dist.destroy_process_group()
    return {"gradients": gradients}


SCENES: dict[str, tuple[Callable[[Child], Facts], int]] = {
    "together": (together, 1),
    "ahead": (ahead, 1),
    "followed": (followed, 1),
    "restarted": (restarted, 3),
    "compressed": (compressed, 4),
    "reduced": (reduced, 1),
}


def another_job(child: Child) -> None:
    child.sync(child.job(f"job of rank {child.rank}"), *model_of(child), "ssp(s=0)")


def absent(child: Child) -> None:
    """The last server never starts."""
    if child.rank != child.ranks + child.servers - 1:
        child.sync(child.job("absent"), *model_of(child), "ssp(s=0)")


def killed_rank(child: Child) -> None:
    """Rank 1 is killed after two updates, and rank 0 waits for its third."""
    train(child, "ssp(s=0)", lambda: os.kill(os.getpid(), signal.SIGKILL))


def killed_alone(child: Child) -> None:
    """The same, when no rank waits for another."""
    train(child, "asp", lambda: os.kill(os.getpid(), signal.SIGKILL))


def stopped_rank(child: Child) -> None:
    """Rank 1 is stopped, and its connections stay open."""
    train(child, "ssp(s=0)", lambda: os.kill(os.getpid(), signal.SIGSTOP))


def failed_rank(child: Child) -> None:
    """Rank 1's own code raises."""
    train(child, "ssp(s=0)", fail)


def left_rank(child: Child) -> None:
    """Rank 1's script ends without closing its StaleSync."""
    stepper = Stepper(child)
    sync = child.sync(child.job("failing"), stepper.model, stepper.optimizer, "ssp(s=0)")
    while child.rank == 0:
        stepper.step()
    assert sync is not None


def killed_server(child: Child) -> None:
    """The last server is killed in the middle of the training."""
    train(child, "ssp(s=0)", lambda: child.report("kill the server"))


def fail() -> None:
    raise ValueError("no more data")


def train(child: Child, policy: str, end: Callable[[], object]) -> None:
    """Rank 0 without an end, rank 1 for two updates."""
    stepper = Stepper(child)
    optimizer, job = stepper.optimizer, child.job("failing")
    with StaleSync(job, stepper.model, optimizer, policy, child.servers, child.timeout_s):
        while True:
            stepper.at.grad = torch.ones(3)
            optimizer.step()
            if child.rank == 1 and optimizer.param_groups[0].setdefault("updates", 0) == 1:
                end()
            optimizer.param_groups[0]["updates"] = 1


def model_of(child: Child) -> tuple[nn.Module, torch.optim.Optimizer]:
    stepper = Stepper(child)
    return stepper.model, stepper.optimizer


FAILURES = (
    another_job, absent, killed_rank, killed_alone, stopped_rank, failed_rank, left_rank, killed_server,
)  # fmt: skip


def serve_scenes(child: Child, names: list[str]) -> Facts:
    number = child.rank - child.ranks
    for _ in range(sum(SCENES[name][1] for name in names)):
        serve(child.ranks, number, child.servers, child.timeout_s)
    return {}


def failing(child: Child, failure: Callable[[Child], None]) -> Facts:
    """The error with which it ended."""
    try:
        if child.rank < child.ranks or (failure is absent and child.rank == child.ranks + child.servers - 1):
            failure(child)
        else:
            if failure is killed_server and child.rank == child.ranks + child.servers - 1:
                threading.Thread(target=die_on_request, args=(child,), daemon=True).start()
            serve(child.ranks, child.rank - child.ranks, child.servers, child.timeout_s)
    except (SyncError, ValueError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


def die_on_request(child: Child) -> None:
    child.wait("kill the server")
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=200.0)
    parser.add_argument("--scene", action="append", default=[])
    parser.add_argument("--failure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    child = Child(options.folder, options.ranks, options.servers, options.timeout)
    if options.failure:
        facts = failing(child, next(failure for failure in FAILURES if failure.__name__ == options.failure))
    elif child.rank >= options.ranks:
        facts = serve_scenes(child, options.scene)
    else:
        facts = {name: SCENES[name][0](child) for name in options.scene}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
