"""
A parameter server in a training loop: each rank updates alone, adds the difference to the server's parameters, and
continues with those.
"""

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

#: Version of the requests to a shard. A shard rejects ranks with another version.
PROTOCOL = 2

_Value = TypeVar("_Value")


class StaleSync:
    """
    Trains with a parameter server. After each update the rank adds the difference that the optimizer made, divided by
    the number of ranks, to the server's parameters, and continues with those as soon as the policy lets it (additive
    updates under stale-synchronous parallel: Ho et al., NIPS 2013).

    All ranks of the job make one, and all start with rank 0's parameters. `policy`: as "ssp(s=2)" or "ssp(s=2) +
    topk(ratio=0.01)". `servers`: number of processes that run `serve`; 0: each rank serves a shard. A DDP module's own
    reduction is off until `close()`. Buffers, and parameters that require no gradient, are not shared.

    Raises ValueError for a policy without a server, a compression that a server does not support, and parameters that
    are not floating-point. Raises SyncError, here and from the optimizer's step, where a rank or a server has ended, or
    was silent for `timeout_s` while others waited.
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
        strategy = _parse_server_policy(policy)
        self._job = job
        self._encoder = PushEncoder()
        self._encoder.use(strategy.compression)
        self._flat = FlatParameters(parameter for parameter in model.parameters() if parameter.requires_grad)
        self._clock = self._step = 0
        self._reduction = DdpReduction(model)
        self._hooks: list[RemovableHandle] = []
        self._is_closed = False
        names = process_names(job.world_size, servers)
        self._hosts = [server_name(server) for server in range(servers)] or names
        shard = None if servers else Shard(job.world_size)
        self._connection = RpcConnection(rank_name(job.rank), names, timeout_s, shard, monitor=job.rank == 0)
        try:
            self._use(strategy)
            self._join(ServerParameters(0, self._flat.read()))
        except BaseException:
            self._shut_down(graceful=False)
            raise
        self._reduction.disable()
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_update),
            optimizer.register_step_post_hook(self._after_update),
        ]

    def use(self, policy: str) -> None:
        """
        Change the policy at once. Which ranks wait follows rank 0's call, and other ranks may make it too; the
        compression is that of this rank's own pushes.

        Raises ValueError as the class does.
        """
        self._use(_parse_server_policy(policy))

    def state_dict(self) -> dict[str, Any]:
        """
        This rank's clock and residuals, and on rank 0 the server's parameters. It is exact where all ranks call it
        after the same update under `ssp(s=0)`.
        """
        state: dict[str, Any] = {"clock": self._clock, "encoder": self._encoder.state_dict()}
        if self._job.rank == 0:
            parts = self._replies([self._connection.request(host, Shard.read, 0) for host in self._hosts])
            state |= {"version": parts[0].version, "parameters": _joined(parts)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        All ranks call it, each with its own state; all continue with rank 0's parameters.

        Raises ValueError where rank 0 gets another rank's state, and for another model's state.
        """
        start = ServerParameters(state.get("version", 0), state.get("parameters", []))
        residuals = state["encoder"]["residuals"]
        for flats in ([start.parameters] if self._job.rank == 0 else []) + ([] if residuals is None else [residuals]):
            if sizes_of(flats) != self._flat.sizes:
                raise ValueError(
                    f"the state is for a model of {sizes_of(flats)}, and this model has {self._flat.sizes}; load "
                    "the state of this rank and model"
                )
        self._clock = state["clock"]
        self._encoder.load_state_dict(state["encoder"])
        self._join(start)

    def close(self) -> None:
        """
        Wait until no rank takes any more steps, and load the final parameters: the same bits on all ranks. Further
        calls do nothing.
        """
        if self._is_closed:
            return
        try:
            finished = [self._connection.request(host, Shard.finish, self._job.rank) for host in self._hosts]
            self._load(self._replies(finished))
        except BaseException:
            self._shut_down(graceful=False)
            raise
        self._shut_down(graceful=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error, reports it to the other ranks, and waits for none of them."""
        if kind is None:
            return self.close()
        if self._is_closed:
            return None
        reason = (
            str(error) if isinstance(error, SyncError) else f"rank {self._job.rank} ended: {kind.__name__}: {error}"
        )
        # The first host last: the others wait for its reply first, and ask their own shard for the reason when it has
        # ended.
        for host in reversed(self._hosts):
            with contextlib.suppress(SyncError):  # the error that ends this rank has the details
                self._connection.reply(host, self._connection.request(host, Shard.fail, reason))
        self._shut_down(graceful=False)

    def _before_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Sets the step's number in the marks: the clock, where the meter does not count steps itself."""
        steps = steps_of(self._job)
        self._step = steps.step if steps.ending_optimizers else self._clock

    def _after_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        rank, used, connection = self._job.rank, self._parameters[0].version, self._connection
        pushes = self._encoder.encode(self._differences(), len(self._hosts))
        self._clock += 1
        requested_ns = time.time_ns()
        pushed = [
            connection.request(host, Shard.push, rank, self._clock, push)
            for host, push in zip(self._hosts, pushes, strict=True)
        ]
        pulled = [connection.request(host, Shard.pull, rank, self._clock) for host in self._hosts]
        versions = self._replies(pushed)
        pushed_ns = time.time_ns()
        parts = self._replies(pulled)
        pulled_ns = time.time_ns()
        self._load(parts)
        meter, nbytes = self._job.meter, self._flat.nbytes
        meter.record_push(self._step, requested_ns, pushed_ns, self._encoder.sent_bytes)
        meter.record_pull(self._step, requested_ns, pulled_ns, nbytes)
        meter.record_staleness(self._step, versions[0] - used)

    def _differences(self) -> FlatBuffers:
        return [
            (new - old).div_(self._job.world_size)
            for new, old in zip(self._flat.read(), _joined(self._parameters), strict=True)
        ]

    def _use(self, strategy: Strategy) -> None:
        self._encoder.use(strategy.compression)
        if self._job.rank == 0:
            self._replies([self._connection.request(host, Shard.use, strategy.policy) for host in self._hosts])

    def _join(self, start: ServerParameters) -> None:
        """All ranks together, with the parameters that rank 0 provides."""
        job, shards = self._job, len(self._hosts)
        signature = JobSignature(PROTOCOL, job.name, job.attempt, job.world_size, self._flat.sizes)
        provided: list[ServerParameters | None] = [None] * shards
        if job.rank == 0:
            provided = [ServerParameters(start.version, piece) for piece in split_shards(start.parameters, shards)]
        joined: list[ParametersFuture] = [
            self._connection.request(host, Shard.join, job.rank, signature, self._clock, part)
            for host, part in zip(self._hosts, provided, strict=True)
        ]
        self._load(self._replies(joined))

    def _replies(self, requested: Sequence[torch.futures.Future[_Value | RejectedRequest]]) -> list[_Value]:
        """Of all shards, in their order. Raises the error of the first host that failed."""
        return [self._connection.reply(host, each) for host, each in zip(self._hosts, requested, strict=True)]

    def _load(self, parts: list[ServerParameters]) -> None:
        self._flat.write(_joined(parts))
        self._parameters = parts

    def _shut_down(self, graceful: bool) -> None:
        self._is_closed = True
        for hook in self._hooks:
            hook.remove()
        self._reduction.restore()
        self._connection.close(graceful)


class DdpReduction:
    """
    Disables and restores the gradient reduction and the buffer broadcast of a DDP module. Another module has neither.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        module = getattr(model, "_orig_mod", model)
        self._ddp = module if isinstance(module, DistributedDataParallel) else None

    def disable(self) -> None:
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = self._ddp.require_forward_param_sync = False

    def restore(self) -> None:
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = self._ddp.require_forward_param_sync = True


def _joined(parts: Sequence[ServerParameters]) -> FlatBuffers:
    return join_shards([part.parameters for part in parts])


def _parse_server_policy(policy: str) -> Strategy:
    strategy = parse_policy(policy)
    if strategy.policy.combines is not Combine.SERVER:
        raise ValueError(f"policy {policy!r} does not use a parameter server; ssp(s=...) and asp do")
    return strategy
