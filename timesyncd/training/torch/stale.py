"""A parameter server in a training loop: each rank updates alone, adds what that changed to the server, and takes what is there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from timesyncd.client.job import Job
from timesyncd.client.torch.steps import steps_of
from timesyncd.errors import SyncError
from timesyncd.training.policy.policies import Combine
from timesyncd.training.policy.text import Strategy, parse_policy
from timesyncd.training.torch.server import TIMEOUT_S, RpcConnection, process_names, rank_name, server_name
from timesyncd.training.torch.shard import (
    FlatBuffers,
    FlatParameters,
    JobSignature,
    ParametersFuture,
    PushEncoder,
    RejectedRequest,
    ServerParameters,
    Shard,
    join_shards,
    sizes_of,
    split_shards,
)

#: Ranks that do not speak the same are told so.
PROTOCOL = 2

_Value = TypeVar("_Value")


class StaleSync:
    """
    After each update by the optimizer the difference that it made, divided by the number of ranks, is added to the server's parameters, and
    the rank goes on with those as soon as the policy lets it (additive updates under stale-synchronous parallel: Ho et al., NIPS 2013).
    `policy` as it is written: "ssp(s=2)", "ssp(s=2) + topk(ratio=0.01)".

    Made by all ranks of the job; all begin with rank 0's parameters. `servers`: how many processes run `serve`; 0: each rank keeps a
    shard. A DDP module's own reduction is off until `close()`. Buffers, and what needs no gradient, stay each rank's own.

    Raises ValueError for a policy without a server, a compression that one cannot take, and parameters that are no floats; SyncError,
    here and out of the optimizer's step: a rank or a server is gone, or was silent for `timeout_s` while others waited.
    """

    def __init__(
        self,
        job: Job,
        model: torch.nn.Module,
        optimizer: Optimizer,
        policy: str,
        servers: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        strategy = _with_server(policy)
        self._job = job
        self._pushes = PushEncoder()
        self._pushes.use(strategy.compression)
        self._flat = FlatParameters(parameter for parameter in model.parameters() if parameter.requires_grad)
        self._clock = self._step = 0
        self._reduction = DdpReduction(model)
        self._hooks: list[RemovableHandle] = []
        self._ended = False
        names = process_names(job.world_size, servers)
        self._hosts = [server_name(server) for server in range(servers)] or names
        shard = None if servers else Shard(job.world_size)
        self._connection = RpcConnection(rank_name(job.rank), names, timeout_s, shard, watch=job.rank == 0)
        try:
            self._follow(strategy)
            self._enter(ServerParameters(0, self._flat.read()))
        except BaseException:
            self._end(together=False)
            raise
        self._reduction.stop()
        before, after = self._before, self._after
        self._hooks = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def follow(self, policy: str) -> None:
        """
        Another policy, in the server at once. Of who waits, rank 0's word counts, and the others may say it as well; its compression is
        for this rank's own pushes.

        Raises ValueError as the class does.
        """
        self._follow(_with_server(policy))

    def state_dict(self) -> dict[str, Any]:
        """This rank's clock and what it has not sent, and by rank 0 the server's parameters: exact where all ranks call it after the same update under `ssp(s=0)`."""
        state: dict[str, Any] = {"clock": self._clock, "pushes": self._pushes.state_dict()}
        if self._job.rank == 0:
            held = self._answers([self._connection.ask(host, Shard.read, 0) for host in self._hosts])
            state |= {"version": held[0].version, "parameters": _whole(held)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        By all ranks, each its own state; all go on with rank 0's parameters.

        Raises ValueError: rank 0 was given another rank's state, or another model's.
        """
        held, kept = ServerParameters(state.get("version", 0), state.get("parameters", [])), state["pushes"]["kept"]
        for flats in ([held.parameters] if self._job.rank == 0 else []) + ([] if kept is None else [kept]):
            if sizes_of(flats) != self._flat.sizes:
                raise ValueError(f"a state of {sizes_of(flats)} for a model of {self._flat.sizes}: load rank 0's")
        self._clock = state["clock"]
        self._pushes.load_state_dict(state["pushes"])
        self._enter(held)

    def close(self) -> None:
        """Wait until no rank takes any more steps, and take the final parameters: the same bits on all. Once is enough."""
        if self._ended:
            return
        try:
            finished = [self._connection.ask(host, Shard.finish, self._job.rank) for host in self._hosts]
            self._take(self._answers(finished))
        except BaseException:
            self._end(together=False)
            raise
        self._end(together=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error the others are told, and nobody is waited for."""
        if kind is None:
            return self.close()
        if self._ended:
            return None
        reason = str(error) if isinstance(error, SyncError) else f"rank {self._job.rank} left: {kind.__name__}: {error}"
        for host in reversed(
            self._hosts
        ):  # the others wait for the first one's answer, and ask their own shard where it is gone
            with contextlib.suppress(SyncError):  # the error that ends this rank says more
                self._connection.answer(host, self._connection.ask(host, Shard.fail, reason))
        self._end(together=False)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The step's number in all that is metered: the clock, where nothing else counts steps."""
        steps = steps_of(self._job)
        self._step = steps.step if steps.endings else self._clock

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        rank, used, connection = self._job.rank, self._held[0].version, self._connection
        differences = self._pushes.packed(self._differences(), len(self._hosts))
        self._clock += 1
        asked_ns = time.time_ns()
        pushed = [
            connection.ask(host, Shard.push, rank, self._clock, difference)
            for host, difference in zip(self._hosts, differences, strict=True)
        ]
        pulled = [connection.ask(host, Shard.pull, rank, self._clock) for host in self._hosts]
        versions = self._answers(pushed)
        pushed_ns = time.time_ns()
        held = self._answers(pulled)
        pulled_ns = time.time_ns()
        self._take(held)
        meter, nbytes = self._job.meter, self._flat.nbytes
        meter.pushed(self._step, asked_ns, pushed_ns, self._pushes.sent_bytes)
        meter.pulled(self._step, asked_ns, pulled_ns, nbytes)
        meter.stale(self._step, versions[0] - used)

    def _differences(self) -> FlatBuffers:
        return [
            (new - old).div_(self._job.world_size)
            for new, old in zip(self._flat.read(), _whole(self._held), strict=True)
        ]

    def _follow(self, strategy: Strategy) -> None:
        self._pushes.use(strategy.compression)
        if self._job.rank == 0:
            self._answers([self._connection.ask(host, Shard.follow, strategy.policy) for host in self._hosts])

    def _enter(self, start: ServerParameters) -> None:
        """All ranks together, with what rank 0 brings."""
        job, shards = self._job, len(self._hosts)
        identity = JobSignature(PROTOCOL, job.name, job.attempt, job.world_size, self._flat.sizes)
        brought: list[ServerParameters | None] = [None] * shards
        if job.rank == 0:
            brought = [ServerParameters(start.version, piece) for piece in split_shards(start.parameters, shards)]
        entered: list[ParametersFuture] = [
            self._connection.ask(host, Shard.enter, job.rank, identity, self._clock, held)
            for host, held in zip(self._hosts, brought, strict=True)
        ]
        self._take(self._answers(entered))

    def _answers(self, asked: Sequence[torch.futures.Future[_Value | RejectedRequest]]) -> list[_Value]:
        """Of all shards, in their order: where one is gone, the first that knows says why."""
        return [self._connection.answer(host, one) for host, one in zip(self._hosts, asked, strict=True)]

    def _take(self, held: list[ServerParameters]) -> None:
        self._flat.write(_whole(held))
        self._held = held

    def _end(self, together: bool) -> None:
        self._ended = True
        for hook in self._hooks:
            hook.remove()
        self._reduction.restore()
        self._connection.leave(together)


class DdpReduction:
    """The gradients' reduction and the broadcast of buffers by a DDP module; another one has none."""

    def __init__(self, model: torch.nn.Module) -> None:
        module = getattr(model, "_orig_mod", model)
        self._ddp = module if isinstance(module, DistributedDataParallel) else None

    def stop(self) -> None:
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = self._ddp.require_forward_param_sync = False

    def restore(self) -> None:
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = self._ddp.require_forward_param_sync = True


def _whole(held: Sequence[ServerParameters]) -> FlatBuffers:
    return join_shards([one.parameters for one in held])


def _with_server(policy: str) -> Strategy:
    strategy = parse_policy(policy)
    if strategy.policy.combines is not Combine.SERVER:
        raise ValueError(f"policy {policy!r} needs no parameter server: ssp(s=...) and asp do")
    return strategy
