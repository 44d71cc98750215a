"""
A policy in a training loop: the hooks of an optimizer and of DistributedDataParallel do what it says.

What a policy did so far.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client.job import Job
from timesyncd.client.torch import ddp as buckets
from timesyncd.client.torch.metering import meter_ddp, metered
from timesyncd.client.torch.peer_loss import peer_loss_text
from timesyncd.client.torch.steps import HOST, Record, steps_of
from timesyncd.errors import SyncError
from timesyncd.ipc.job_datagram import Kind
from timesyncd.training.compression import compression_hook, compressor
from timesyncd.training.policy.auto import Auto, Controller
from timesyncd.training.policy.groups import Levels
from timesyncd.training.policy.policies import Decision, LocalSGD
from timesyncd.training.policy.schedule import (
    PolicySchedule,
    Row,
    changes_interval_only,
    check_in_step,
    must_average_replicas,
    replicas_diverge,
)
from timesyncd.training.policy.selsync import SelSync, Voter
from timesyncd.training.policy.text import PolicyOverride, Strategy, parse_collective_policy, parse_policy
from timesyncd.training.torch.actions import Action, AverageParameters, action_for, replica_tensors, square_norm
from timesyncd.training.torch.averaging import BucketReducer, DenseReducer
from timesyncd.training.torch.exchange import OptimizerStateMismatch, ReplicaCheck, RowExchange, average_replicas
from timesyncd.training.torch.measurements import Dissimilarity, StepTimer
from timesyncd.training.torch.topology_groups import TwoLevel, two_level


@dataclass(frozen=True, slots=True)
class Change:
    """From `step` on `policy` was in force."""

    step: int
    policy: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """
    What a policy did so far on this rank.

    `lssr`: the share of steps without a synchronization (SelSync's LSSR, Eq. 4); None: no step yet. `sent_bytes`: handed to collectives for gradients
    or parameters, by this class (not by DDP's reducer). `sync_ns`: in them, waiting for the other ranks included. `rows_waited`: how often, and how long, the rows of
    the other ranks were not there when they counted. `changes`: what was in force since when, and why.
    """

    policy: str
    steps: int
    rounds: int
    lssr: float | None
    sent_bytes: int
    sync_ns: int
    rows_waited: int
    rows_waited_ns: int
    replicas_checked: int
    replicas_differed: int
    changes: tuple[Change, ...]


_log = logging.getLogger(__name__)


class Synchronizer:
    """
    What `synchronized` gives: the policy at work, until it is closed.

    Its hooks raise SyncError where a rank is gone, silent for the group's time-out, or out of step; no rank goes on alone. What ends DDP's own
    reduction under `bsp` comes out of the backward pass as a SyncError, or as a RuntimeError of torch's that quotes one.
    """

    def __init__(
        self,
        job: Job,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        strategy: Strategy,
        steps_per_epoch: int | None,
        levels: Levels | None,
    ) -> None:
        self._job, self._ddp, self._optimizer = job, ddp, optimizer
        self._group: dist.ProcessGroup = ddp.process_group
        self._groups = TwoLevel(levels, self._group) if levels is not None and len(levels) > 1 else None
        ranks = distributed_c10d._get_default_group().size()
        self._exchange = RowExchange(
            dist.new_group(backend="gloo", timeout=_timeout(distributed_c10d._get_default_group()))
        )
        self._course = PolicySchedule(strategy, ranks, steps_per_epoch)
        self._wishes = PolicyOverride()
        self._rows: list[list[Row]] = []
        self._decision = Decision.LOCAL
        self._sync_ns = self._sent_bytes = 0
        self._sender: BucketReducer = DenseReducer(self._group)
        self._replicas = ReplicaCheck(job, dist.get_process_group_ranks(self._group))
        self._pace = StepTimer()
        self._dissimilarity = Dissimilarity()
        self._controller: Controller | None = None
        self._changes: list[Change] = []
        self._action = Action()
        # Before the meter's, which ends the step: what is done here is part of it.
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_update),
            optimizer.register_step_post_hook(self._after_update),
            ddp.register_forward_pre_hook(self._forward),
        ]
        whole = job.world_size == self._group.size()
        self._metered = meter_ddp(job, ddp, optimizer) if whole else metered(job, optimizer)
        with self._saying("beginning"):
            first = self._course.first_row(self._rate())
            self._exchange.send(first)
            self._course.agree(self._exchange.take(first.step))
        self._wanted(strategy, "given at the start")

    @property
    def policy(self) -> str:
        """What is in force, as text; of `auto`, what it chose."""
        return str(self._course.strategy)

    @property
    def step(self) -> int:
        """How many steps were taken under a policy."""
        return self._course.step

    def use(self, policy: str) -> None:
        """
        Another policy, from a step on that all ranks agree on, some steps from now. Rank 0's call counts; others may make it too.

        Raises ValueError for a text that is none, and for a parameter server's policy.
        """
        self._wishes.tell(str(parse_collective_policy(policy)))

    def saw(self, loss: torch.Tensor | float) -> None:
        """The loss of each step, once, before or after its update. `auto` needs it; a device is waited for every eighth step at most."""
        self._pace.saw(loss)

    def report(self) -> Report:
        course = self._course
        return Report(
            policy=self.policy,
            steps=course.step,
            rounds=course.rounds,
            lssr=1 - course.rounds / course.step if course.step else None,
            sent_bytes=self._sent_bytes + self._sender.sent_bytes,
            sync_ns=self._sync_ns,
            rows_waited=self._exchange.waited,
            rows_waited_ns=self._exchange.waited_ns,
            replicas_checked=self._replicas.checked,
            replicas_differed=self._replicas.differed,
            changes=tuple(self._changes),
        )

    def close(self) -> None:
        """
        Make the replicas one, and leave module and optimizer as they are. Every rank calls it, after the same number of steps.

        Raises SyncError.
        """
        with self._saying("the last averaging"):
            self._action.finish()
            for step in self._course.due_ever():
                check_in_step(self._exchange.take(step))
            last = self._course.last_row()
            self._exchange.send(last)
            check_in_step(self._exchange.take(last.step))
            if replicas_diverge(self._course.strategy.policy):
                with contextlib.suppress(
                    OptimizerStateMismatch
                ):  # the parameters are one; what is remembered matters to none but further steps
                    average_replicas(replica_tensors(self._ddp), self._optimizer, self._group)
        self._detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error nothing is averaged: the other ranks may be anywhere."""
        if kind is None:
            self.close()
        else:
            self._detach()

    def state_dict(self) -> dict[str, Any]:
        """
        Of this rank, between two steps; with this rank's model and optimizer it resumes identically, in the middle of an interval too.
        Waits for what is on its way, so every rank has to call it in the same step.
        """
        with self._saying("the checkpoint"):
            return {
                "course": self._course.state_dict(),
                "exchange": self._exchange.state_dict(),
                "wishes": self._wishes.state_dict(),
                "action": self._action.state_dict(),
                "sender": self._sender.state_dict(),
                "voter": None if self._voter is None else self._voter.state_dict(),
                "controller": None if self._controller is None else self._controller.state_dict(),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """After the model and the optimizer were loaded. Raises ValueError where it does not fit."""
        self._course.load_state_dict(state["course"])
        self._wishes.load_state_dict(state["wishes"])
        self._begin(self._course.strategy)
        self._exchange.load_state_dict(state["exchange"])
        self._action.load_state_dict(state["action"])
        self._sender.load_state_dict(state["sender"])
        if self._voter is not None:
            self._voter.load_state_dict(state["voter"])
        self._controller = None if state["controller"] is None else Controller()
        if self._controller is not None:
            self._controller.load_state_dict(state["controller"])

    def _wanted(self, strategy: Strategy, why: str) -> None:
        """By the user or the plan."""
        self._controller = Controller() if isinstance(strategy.policy, Auto) else None
        self._begin(strategy)
        self._changed(why)

    def _changed(self, why: str) -> None:
        change = Change(self._course.step, self.policy, why)
        self._changes.append(change)
        if self._job.rank == 0:
            _log.info("job %s, from step %d: %s: %s", self._job.name, change.step, change.policy, why)

    def _begin(self, strategy: Strategy) -> None:
        former, self._course.strategy = self._course.strategy, strategy
        policy = strategy.policy
        if (
            changes_interval_only(former, strategy)
            and isinstance(self._action, AverageParameters)
            and isinstance(policy, LocalSGD)
        ):
            self._action.retime(policy.delay)
            return
        former_bytes, self._sender = self._sender.sent_bytes, self._sender_for(strategy)
        self._sent_bytes += former_bytes - self._sender.sent_bytes  # which may be the same sender
        self._action = action_for(strategy, self._ddp, self._sender)
        self._ddp.require_backward_grad_sync = self._action.reduces
        # Else the next forward pass would broadcast rank 0's buffers once more.
        self._ddp.require_forward_param_sync = self._action.reduces
        if self._action.reduces:
            hook = (
                compression_hook
                if strategy.compression is not None
                else two_level
                if self._groups is not None
                else None
            )
            buckets.set_hook(self._ddp, hook, self._sender)
            self._dissimilarity = Dissimilarity()
            buckets.observe_buckets(self._ddp, self._dissimilarity.watch if self._controller is not None else None)
        rank, ranks = self._group.rank(), self._group.size()
        self._voter = Voter(policy, rank, ranks) if isinstance(policy, SelSync) else None

    def _sender_for(self, strategy: Strategy) -> BucketReducer:
        if strategy.compression is None:
            return self._groups or DenseReducer(self._group)
        return compressor(strategy.compression, self._group, replica_tensors(self._ddp))

    def _forward(self, *_: object) -> None:
        if self._ddp.training and torch.is_grad_enabled():
            self._pace.forward()

    def _before_update(self, *_: object) -> None:
        ready_ns = steps_of(self._job).ready_ns if self._action.reduces else None
        if ready_ns is not None:
            self._pace.waited(time.time_ns() - ready_ns)
        if self._action.reduces:
            self._dissimilarity.ended()
        squared = None if self._voter is None else square_norm(self._ddp)
        if self._course.exchanges():
            self._exchange.send(self._row(squared))
        if self._action.early:
            self._decide()
            with self._synchronizing():
                self._action.before_update(self._decision)

    def _after_update(self, *_: object) -> None:
        arrived = self._action.arrived if self._action.early else self._averaged()
        if self._decision is Decision.SYNC:
            self._replicas.take(self._course.rounds, self._action.united)
        self._course.next_step(self._decision)
        if self._rows:
            self._turn()
        self._pace.ended(arrived)

    def _averaged(self) -> bool:
        """Whether the replicas came together in this step."""
        self._decide()
        if self._decision is not Decision.SYNC and not self._action.under_way:
            return False
        with self._synchronizing():
            self._action.after_update(self._decision, self._scale(), self._near())
        return self._action.arrived

    def _decide(self) -> None:
        self._rows = []
        if due := self._course.due():
            with self._saying("asking the other ranks"):
                self._rows = [self._exchange.take(step) for step in due]
        self._decision = self._course.decide(self._rows)

    def _rate(self) -> float | None:
        rate = self._optimizer.param_groups[0].get("lr")
        return None if rate is None else float(rate)

    def _turn(self) -> None:
        for rows in self._rows:
            self._replicas.look(rows)
        wanted = self._course.turn(self._rows)
        if wanted is not None:
            self._leave(wanted)
            self._wanted(wanted, "told to rank 0")
            return
        for rows in self._rows:
            choice = None if self._controller is None else self._controller.look(rows)
            if choice is not None:
                chosen = parse_policy(choice.text)
                self._leave(chosen)
                self._begin(chosen)
                self._changed(choice.why)

    def _leave(self, wanted: Strategy) -> None:
        with self._saying("changing the policy"):
            self._action.finish()
            if must_average_replicas(self._course.strategy, wanted):
                average_replicas(replica_tensors(self._ddp), self._optimizer, self._group)

    def _row(self, square_norm: float | None) -> Row:
        wish, text = self._wishes.newest(self._job.plan())
        replica, replica_round = self._replicas.told()
        if self._action.averaging is not None:
            for took_ns in self._action.averaging.took():
                self._pace.transferred(took_ns)
        told = self._pace.told()
        return Row(
            step=self._course.step,
            vote=self._voter is not None and square_norm is not None and self._voter.vote(square_norm),
            wish=wish,
            text=text,
            replica=replica,
            replica_round=replica_round,
            compute_ns=told.compute_ns,
            wait_ns=told.wait_ns,
            transfer_ns=told.transfer_ns,
            loss=told.loss,
            jump=told.jump,
            rate=math.nan if (rate := self._rate()) is None else rate,
            dissimilarity=self._dissimilarity.told(),
        )

    def _near(self) -> TwoLevel | None:
        return self._groups if self._course.is_near() else None

    def _scale(self) -> float:
        """Of this rank in the next mean: its weight times the number of ranks."""
        weights = self._course.weights(self._group.size())
        return 1 if weights is None else weights[self._group.rank()] * self._group.size()

    @contextlib.contextmanager
    def _synchronizing(self) -> Iterator[None]:
        """What is done inside for a decision: its failure named, its time waited, and a synchronization marked unless DDP's reducer makes it."""
        averaging, record, steps = self._action.averaging, None, steps_of(self._job)
        if averaging is not None and self._decision is Decision.SYNC and self._job.world_size == self._group.size():
            with steps.safely:
                record = Record(Kind.ALL_REDUCE, averaging.nbytes, HOST)
                steps.number(record)
        began_ns = time.monotonic_ns()
        with self._saying("averaging"):
            yield
        if averaging is not None:
            took_ns = time.monotonic_ns() - began_ns
            self._sync_ns += took_ns
            self._pace.waited(took_ns)
        if record is not None:
            with steps.safely:
                record.end = record.stamps.now()
                steps.complete(record)

    @contextlib.contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            where = f"job {self._job.name}, rank {self._job.rank}, step {self._course.step}"
            raise SyncError(f"{where}: {peer_loss_text(what, error)}") from error

    def _detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._metered.close()
        self._ddp.require_backward_grad_sync = True
        buckets.set_hook(self._ddp, None, None)
        buckets.observe_buckets(self._ddp, None)


def _timeout(group: dist.ProcessGroup) -> timedelta:
    """A new group would have torch's own, half an hour, whatever the job was begun with."""
    backend: Any = group._get_backend(group._device_types[0])
    timeout: timedelta = backend.options._timeout
    return timeout


def synchronized(
    job: Job,
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    policy: str = "auto",
    steps_per_epoch: int | None = None,
    levels: Levels | None = None,
) -> Synchronizer:
    """
    Let a policy decide when the replicas of a DistributedDataParallel module synchronize; the training loop stays as it is.

    The module's process group is the data-parallel one, whose ranks average. All ranks of the default group decide together, so that
    the parts of a replica that tensor or pipeline parallelism put on other ranks keep to the same steps; each of them calls this. `policy` is written as docs/policies.md says;
    `steps_per_epoch` is needed by fedavg alone. `levels`: which ranks of the module's group are near each other (`near_ranks`): they add up first, where nothing is compressed. Raises ValueError for no policy, TypeError for no DDP module.
    """
    module = getattr(ddp, "_orig_mod", ddp)
    if not isinstance(module, DistributedDataParallel):
        raise TypeError(f"{type(module).__name__}: wrap the module in DistributedDataParallel first")
    return Synchronizer(job, module, optimizer, parse_collective_policy(policy), steps_per_epoch, levels)
