"""
A policy in a training loop: hooks of the optimizer and of DistributedDataParallel carry out what it decides, and a
report of what it did.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client.job import Job
from timesyncd.client.torch import ddp as buckets
from timesyncd.client.torch.metering import meter_ddp, metered
from timesyncd.client.torch.peer_loss import policies_in_force
from timesyncd.client.torch.stamps import times_of
from timesyncd.client.torch.steps import Record, steps_of
from timesyncd.errors import SyncError
from timesyncd.ipc.job_datagram import Kind
from timesyncd.training.compression.compressors import TopKFeedback
from timesyncd.training.policy.auto import Auto, Controller
from timesyncd.training.policy.groups import Levels
from timesyncd.training.policy.policies import ChangeReason, Decision, LocalSGD
from timesyncd.training.policy.row import Purpose, Row
from timesyncd.training.policy.schedule import (
    PolicySchedule,
    changes_interval_only,
    must_average_replicas,
    replicas_diverge,
)
from timesyncd.training.policy.selsync import SelSync, Voter
from timesyncd.training.policy.text import PolicyOverride, Strategy, parse_collective_policy, parse_policy
from timesyncd.training.torch.actions import (
    Action,
    AverageParameters,
    action_for,
    clear_gradients,
    replica_tensors,
    square_norm,
    trainable_parameters,
    with_closure,
)
from timesyncd.training.torch.agreement import StepAgreement
from timesyncd.training.torch.averaging import BucketReducer, DenseReducer, local_gradient
from timesyncd.training.torch.batches import Batches
from timesyncd.training.torch.forward_order import ForwardOrder
from timesyncd.training.torch.learning import Learning
from timesyncd.training.torch.measurements import Dissimilarity, SpanSum, StepTimer
from timesyncd.training.torch.notices import Notices
from timesyncd.training.torch.optimizers import known_rate, learning_rate, new_controller
from timesyncd.training.torch.other_optimizers import OptimizerWatch
from timesyncd.training.torch.passes import Passes
from timesyncd.training.torch.process_groups import collective_errors, group_apart, row_group
from timesyncd.training.torch.reducing import ddp_hook, reducer_for
from timesyncd.training.torch.replicas import (
    OptimizerStateMismatch,
    ReplicaCheck,
    average_replicas,
    averageable,
    mean_in_place,
    read_together,
)
from timesyncd.training.torch.report import Change, Report
from timesyncd.training.torch.rows import RowExchange
from timesyncd.training.torch.scaler import ScalerWatch
from timesyncd.training.torch.standstill import Place, RankPosition, Standstill, SyncErrors
from timesyncd.training.torch.topology_groups import TwoLevel

_log = logging.getLogger(__name__)


class Synchronizer:
    """
    What `synchronized` returns: it applies the policy until it is closed.

    Its hooks raise SyncError where a rank has ended, was silent for the group's time-out, or is out of step; no rank
    continues alone. An error of DDP's own reduction under `bsp` leaves the backward pass as a SyncError, or as a
    RuntimeError of torch that quotes one.
    """

    def __init__(
        self,
        job: Job,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        strategy: Strategy,
        steps_per_epoch: int | None,
        levels: Levels | None,
        balance: bool = False,
        reference: Path | str | None = None,
        budget: float | None = None,
        is_ordered: bool = False,
    ) -> None:
        self._job, self._ddp, self._optimizer = job, ddp, optimizer
        rows = row_group()
        with collective_errors("making the group of the averagings", range(rows.size())):
            self._group = group_apart(ddp.process_group, rows)
            self._learning = Learning(job, reference, rows)
        self._groups = TwoLevel(levels, ddp.process_group) if levels is not None and len(levels) > 1 else None
        replicas = dist.get_process_group_ranks(ddp.process_group)
        self.batches = Batches(self._group.rank(), replicas, balance, rows.size())
        self._exchange = RowExchange(rows, replicas, lambda: self._standstill.interrupt())
        self._schedule = PolicySchedule(strategy, rows.size(), steps_per_epoch, budget)
        self._override = PolicyOverride()
        self._rows: list[list[Row]] = []
        self._decision = Decision.LOCAL
        self._sent_bytes = 0
        self._reducer: BucketReducer = DenseReducer(self._group)
        self._replicas = ReplicaCheck(job, replicas)
        self._timer = StepTimer(times_of(ddp.device if ddp.device is not None else torch.device("cpu")))
        self._sync_time = SpanSum(self._timer.times)
        self._dissimilarity = Dissimilarity()
        self._controller: Controller | None = None
        self._changes: list[Change] = []
        self._action = Action()
        self._is_empty = self._has_stale_scales = self._has_ended = self._have_diverged = False
        self._averaged = 0  #: number of open contexts
        self._notices = Notices(job.name, job.rank == 0)
        self._passes = Passes(ddp, self._forward)
        self._agreement = StepAgreement(self._exchange, self._passes, self._notices)
        self._standstill = Standstill(self._position, lambda: replicas if self._passes.reduces else ())
        checks = self._exchange.check_arrived, self._standstill.find_cause
        self._as_sync_error = SyncErrors(lambda: f"job {job.name}, rank {job.rank}, step {self.step}", *checks)
        self._scalers = ScalerWatch(optimizer, self.skip_update)
        self._optimizers = OptimizerWatch(optimizer, self._optimizer_replaced)
        #: What lets averages arrive in the next forward pass; None: the steps wait for them.
        self._order = (
            ForwardOrder(ddp.module, self._timer.times, self._add_wait, self._as_sync_error) if is_ordered else None
        )
        # Registered before the meter's hooks, which end the step: what these do is part of the step.
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_update),
        ]
        whole = job.world_size == self._group.size()
        self._metered = meter_ddp(job, ddp, optimizer) if whole else metered(job, optimizer)
        with self._as_sync_error("starting"):
            first = self._schedule.first_row(learning_rate(self._optimizer))
            self._exchange.send(first)
            self._schedule.check_start(self._exchange.receive(first.step, Purpose.START))
        self._start(strategy, ChangeReason.STARTED, "given by the script at the start")
        policies_in_force.add(self)

    @property
    def policy(self) -> str:
        """The policy in force, as text; under `auto`, the one that it chose."""
        return str(self._schedule.strategy)

    @property
    def step(self) -> int:
        """Number of optimizer steps so far."""
        return self._schedule.step

    def use(self, policy: str) -> None:
        """
        Request another policy. All ranks change to it in the same step, some steps from now. Rank 0's call counts;
        other ranks may make it too.

        Raises ValueError for an invalid text, and for a policy of a parameter server.
        """
        self._override.request(str(parse_collective_policy(policy)))

    def record_loss(self, loss: torch.Tensor | float) -> None:
        """
        Record the loss of a step; call it once a step, before or after the update. `auto` needs it. It reads the value
        every eighth step at most.
        """
        self._timer.record_loss(loss)

    def record_validation(self, loss: torch.Tensor | float) -> None:
        """
        Record a loss on held-out data, evaluated inside `averaged()`, on any rank. `auto` takes back what makes it rise,
        and under an adaptive optimizer needs no trials then to average.
        """
        self._timer.record_validation(loss)

    def skip_update(self) -> None:
        """
        Call it in place of `optimizer.step()` where this rank leaves out its update: it counts as an empty one, and the
        policy goes on with the other ranks. Under `bsp`, where a rank alone cannot, all ranks call it in the same step.

        A step that a GradScaler leaves out needs no call.
        """
        self._is_empty = True
        try:
            if self._action.takes_gradients:
                clear_gradients(self._ddp)
                self._optimizer.step()
            else:
                self._before_update()
                self._after_update()
                steps_of(self._job).end()
        finally:
            self._is_empty = False

    @contextlib.contextmanager
    def averaged(self, *others: torch.nn.Module) -> Iterator[None]:
        """
        Inside `with` the module has the mean of all ranks' parameters, and of buffers that are no counts: evaluate and
        save it there. After it each rank has its own again, and training goes on as if nothing had happened.

        `others`: modules that follow the replica, such as an exponential moving average (EMA) of it; they are averaged
        too. Every rank enters in the same step. Where the replicas have always been equal, nothing is sent. It holds two
        copies of what it averages. Raises SyncError; so does an update of the optimizer inside.
        """
        self._await_order()
        tensors = replica_tensors(self._ddp) if replicas_diverge(self._schedule.strategy.policy) else []
        if self._have_diverged:
            tensors += [tensor for module in others for tensor in averageable(module)]
        with contextlib.ExitStack() as restoring:
            if tensors:
                with self._as_sync_error("averaging for an evaluation or a checkpoint"):
                    self._agreement.confirm(self._schedule.confirmation(Purpose.SHARE))
                    restoring.enter_context(mean_in_place(tensors, self._group))
            self._averaged += 1
            try:
                yield
            finally:
                self._averaged -= 1
                self._metered.begin()

    def begin_forward(self) -> None:
        """Where the module's forward pass had begun when this was made: it counts as the first."""
        self._passes.begin()

    def report(self) -> Report:
        schedule = self._schedule
        return Report(
            policy=self.policy,
            steps=schedule.step,
            rounds=schedule.rounds,
            lssr=1 - schedule.rounds / schedule.step if schedule.step else None,
            sent_bytes=self._sent_bytes + self._reducer.sent_bytes + self._action.sent_bytes,
            sync_ns=self._sync_time.known_ns(),
            rows_waited=self._exchange.rows_waited,
            rows_waited_ns=self._exchange.rows_waited_ns,
            replicas_checked=self._replicas.checked,
            replicas_differed=self._replicas.differed,
            changes=tuple(self._changes),
        )

    def close(self) -> None:
        """
        Average the replicas, and detach from the module and the optimizer. Every rank calls it, after the same number
        of steps.

        Raises SyncError.
        """
        self._has_ended = True
        self._standstill.note()
        with self._as_sync_error("the last averaging"):
            self._finish_action()
            for step in self._schedule.take_remaining():
                self._exchange.receive(step)
            (losses,) = read_together(self._timer.unread)
            summary = self._timer.summarize(losses)
            self._notices.measure(self._schedule.step, summary.unfit_ago)
            self._learning.mark(summary, self._schedule.step, self._notices.unfit)
            self._agreement.confirm(self._schedule.last_row())
            if replicas_diverge(self._schedule.strategy.policy):
                with contextlib.suppress(
                    OptimizerStateMismatch
                ):  # the parameters are averaged; only further steps need the state
                    average_replicas(replica_tensors(self._ddp), self._optimizer, self._group)
        self._detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """
        After an error nothing is averaged: the other ranks may be in any step. Where a collective of torch failed because
        the ranks were out of step, a SyncError reports that.
        """
        if kind is None:
            self.close()
            return
        self._detach()
        if isinstance(error, RuntimeError):
            self._as_sync_error.raise_cause(error)

    def state_dict(self) -> dict[str, Any]:
        """
        This rank's state between two steps. With this rank's model and optimizer it resumes identically, also in the
        middle of an interval.

        Waits for transfers in progress, so every rank must call it in the same step. Raises SyncError.
        """
        self._await_order()
        with self._as_sync_error("the checkpoint"):
            return {
                "schedule": self._schedule.state_dict(),
                "exchange": self._exchange.state_dict(),
                "override": self._override.state_dict(),
                "action": self._action.state_dict(),
                "begun": self._agreement.begun,
                "batches": self.batches.state_dict(),
                "have_diverged": self._have_diverged,
                "reducer": self._reducer.state_dict(),
                "voter": None if self._voter is None else self._voter.state_dict(),
                "controller": None if self._controller is None else self._controller.state_dict(),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Call it after the model and the optimizer were loaded. Raises ValueError for a state that does not fit."""
        self._await_order()
        self._schedule.load_state_dict(state["schedule"])
        self._override.load_state_dict(state["override"])
        self._apply(self._schedule.strategy)
        self._exchange.load_state_dict(state["exchange"])
        self._action.load_state_dict(state["action"])
        self._agreement.begun = state["begun"]
        self.batches.load_state_dict(state["batches"])
        self._have_diverged |= state["have_diverged"]
        self._reducer.load_state_dict(state["reducer"])
        if self._voter is not None:
            self._voter.load_state_dict(state["voter"])
        self._controller = None if state["controller"] is None else new_controller(self._optimizer, self._ddp.module)
        if self._controller is not None:
            self._controller.load_state_dict(state["controller"])

    def _start(self, strategy: Strategy, code: ChangeReason, reason: str) -> None:
        """A strategy that the script or the plan gave."""
        self._controller = (
            new_controller(self._optimizer, self._ddp.module) if isinstance(strategy.policy, Auto) else None
        )
        self._apply(strategy)
        self._record_change(code, reason)

    def _record_change(self, code: ChangeReason, reason: str) -> None:
        change = Change(self._schedule.step, self.policy, code, reason)
        self._changes.append(change)
        if self._job.rank == 0:
            _log.info("job %s, step %d: %s -> %s", self._job.name, change.step, reason, change.policy)

    def _apply(self, strategy: Strategy) -> None:
        former, self._schedule.strategy = self._schedule.strategy, strategy
        policy = strategy.policy
        self._have_diverged |= replicas_diverge(policy)
        self.batches.begin_strategy(strategy)
        self._learning.begin_strategy(strategy, self._schedule.step)
        if changes_interval_only(former, strategy) and isinstance(self._action, AverageParameters):
            self._action.set_delay(policy.delay if isinstance(policy, LocalSGD) else 0)
            return
        former_bytes = self._reducer.sent_bytes + self._action.sent_bytes
        self._reducer = reducer_for(strategy, self._ddp, self._group, self._groups)
        self._sent_bytes += former_bytes - self._reducer.sent_bytes  # both may be the same reducer
        self._action = action_for(strategy, self._ddp, self._reducer, self._optimizer, self._group, self._order)
        self._has_stale_scales = self._action.uses_ddp_reducer and not self._passes.reduces
        self._passes.reduces = self._action.uses_ddp_reducer
        self._passes.forget_empty_updates()
        # Otherwise the next forward pass would broadcast rank 0's buffers again.
        self._ddp.require_forward_param_sync = self._action.uses_ddp_reducer
        if self._action.uses_ddp_reducer:
            buckets.set_hook(self._ddp, ddp_hook(strategy, self._groups), self._reducer)
            self._dissimilarity = Dissimilarity()
            buckets.observe_buckets(self._ddp, self._dissimilarity.observe if self._controller is not None else None)
        self._voter = Voter(policy, self._group.rank(), self._group.size()) if isinstance(policy, SelSync) else None

    def _forward(self) -> None:
        self._standstill.note()
        self._timer.begin_forward()
        if self._has_stale_scales:
            self._has_stale_scales = False
            with self._as_sync_error("giving the scalers one scale"):
                self._scalers.equalize(self._group)

    def _before_step(self, _: object, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, Any] | None:
        """Before the update; where the optimizer gets a closure, as Lightning gives it, after that has run backward."""
        wrapped = with_closure(args, given, self._after_closure)
        if wrapped is None:
            self._before_update()
        return wrapped

    def _after_closure(self) -> None:
        """An optimizer such as LBFGS runs it several times for one update: the first time counts."""
        if not self._passes.is_updating:
            self._before_update()
        elif self._action.takes_gradients:
            raise SyncError(
                f"the optimizer runs its closure several times for one update, and the policy {self.policy} averages "
                "gradients once for each update; use bsp, or a policy that averages parameters, such as local_sgd"
            )

    def _optimizer_replaced(self, other: torch.optim.Optimizer) -> None:
        """Raises SyncError; where DDP averages the gradients, the replicas stay equal, and a warning is enough."""
        text = (
            f"job {self._job.name}, rank {self._job.rank}, step {self.step}: another optimizer ({type(other).__name__}) "
            "updates parameters of the one that synchronized() was given, which has made no update since that step, so "
            "the policy does nothing; on all ranks call close(), and then synchronized() with the new optimizer"
        )
        if not self._action.uses_ddp_reducer:
            raise SyncError(text)
        warnings.warn(text, stacklevel=4)

    def _before_update(self) -> None:
        if self._averaged:
            raise SyncError("an update inside averaged(): its parameters are those of all ranks, and it would be lost")
        self._standstill.note()
        self._passes.begin_update()
        self._await_order()
        self._scalers.updated()
        with self._as_sync_error("checking the rows of the other ranks"):
            self._exchange.check_arrived()
        if self._action.uses_ddp_reducer:
            self._timer.add_wait_since(steps_of(self._job).ready_stamp)
            self._dissimilarity.end_backward()
        if self._schedule.begin_exchange():
            # What a gradient scaler leaves out is infinite by design.
            is_scaled = self._is_empty or getattr(self._optimizer, "found_inf", None) is not None
            squared = None if is_scaled and (self._voter is None or self._is_empty) else square_norm(self._ddp)
            self._agreement.send(self._row(squared))
        elif isinstance(self._reducer, TopKFeedback):
            self._reducer.accept(*read_together(self._reducer.unread))
        if self._action.before_optimizer:
            self._decide()
            if takes := self._action.takes_gradients_in(self._decision):
                self._scalers.unscale_fused(
                    [local_gradient(parameter) for parameter in trainable_parameters(self._ddp)]
                )
            with self._synchronizing():
                self._action.before_update(self._decision)
            if self._is_empty and self._action.takes_gradients and not takes:
                clear_gradients(self._ddp, to_none=True)

    def _after_update(self, *_: object) -> None:
        self._optimizers.end_update()
        is_common = self._action.replicas_averaged if self._action.before_optimizer else self._average_parameters()
        if self._decision is Decision.SYNC:
            if self._replicas.is_due(self._schedule.rounds):
                self._await_order()
            self._replicas.record(self._schedule.rounds, self._action.identical_tensors)
        self._standstill.note()
        self._passes.end_step(self._schedule.step, self._is_empty)
        self._schedule.next_step(self._decision)
        if self._rows:
            self._read_rows()
        self._timer.end_step(is_common)

    def _average_parameters(self) -> bool:
        """Returns whether the replicas became equal in this step."""
        self._decide()
        if self._decision is not Decision.SYNC and not self._action.in_progress:
            return False
        with self._synchronizing():
            if self._action.is_due:
                self._agreement.end()
            self._action.after_update(self._decision, self._scale(), self._inner_groups())
        return self._action.replicas_averaged

    def _decide(self) -> None:
        self._rows = []
        if due := self._schedule.take_due():
            with self._as_sync_error("receiving the rows of the other ranks"):
                self._rows = [self._exchange.receive(step) for step in due]
        self._decision = self._schedule.decide(self._rows)
        self._action.begin_step(self._schedule.step)

    def _read_rows(self) -> None:
        for rows in self._rows:
            self._replicas.compare(rows)
            self._notices.receive(rows)
            self.batches.measure(rows, self._schedule.step - 1)
            if self._controller is not None:
                self._notices.receive_losses(rows)
        requested = self._schedule.accept_request(self._rows)
        if requested is not None:
            self._prepare_change(requested)
            self._start(requested, ChangeReason.REQUESTED, "requested by rank 0's script or plan")
            return
        for rows in self._rows:
            worse = self._learning.update(rows, self._schedule.step - 1)
            if self._controller is None:
                continue
            choice = self._controller.update(rows) if worse is None else self._controller.restrain(worse)
            if choice is not None:
                chosen = parse_policy(choice.text)
                self._prepare_change(chosen)
                self._apply(chosen)
                self._record_change(choice.reason_code, choice.reason)

    def _prepare_change(self, next_strategy: Strategy) -> None:
        with self._as_sync_error("changing the policy"):
            self._finish_action()
            self._agreement.confirm(self._schedule.confirmation(Purpose.CHANGE))
            if must_average_replicas(self._schedule.strategy, next_strategy):
                average_replicas(replica_tensors(self._ddp), self._optimizer, self._group)

    def _finish_action(self) -> None:
        self._await_order()
        self._agreement.end()
        self._action.finish()

    def _confirm_synchronization(self) -> None:
        row = self._schedule.confirmation(Purpose.SYNCHRONIZE)
        if (inner := self._inner_groups()) is not None:
            self._agreement.confirm_among(inner, row)
        elif self._action.delay:
            self._agreement.begin(row)
        elif not any(rows[0].step == row.step for rows in self._rows):  # these have confirmed it
            self._agreement.confirm(row)

    def _row(self, squared: torch.Tensor | None) -> Row:
        request_number, requested_policy = self._override.newest(self._job.plan())
        for averaging in self._action.averagings:
            for transfer in averaging.take_transfers():
                self._timer.add_transfer(*transfer)
        gathered = self._reducer if isinstance(self._reducer, TopKFeedback) else None
        losses, hashed, dissimilar, norm, sums = read_together(
            self._timer.unread,
            self._replicas.unread,
            self._dissimilarity.unread,
            [] if squared is None else [squared],
            [] if gathered is None else gathered.unread,
        )
        if gathered is not None:
            gathered.accept(sums)
        replica, replica_round = self._replicas.take_hash(hashed)
        summary = self._timer.summarize(losses)
        self._notices.measure(self._schedule.step, summary.unfit_ago, norm)
        self._learning.mark(summary, self._schedule.step, self._notices.unfit)
        return Row(
            step=self._schedule.step,
            rounds=self._schedule.rounds,
            vote=self._voter is not None and not self._is_empty and self._voter.vote(norm[0] if norm else 0.0),
            request_number=request_number,
            requested_policy=requested_policy,
            replica=replica,
            replica_round=replica_round,
            compute_ns=summary.compute_ns,
            wait_ns=summary.wait_ns,
            transfer_ns=summary.transfer_ns,
            loss=summary.loss,
            jump=summary.jump,
            rate=known_rate(self._optimizer),
            dissimilarity=self._dissimilarity.value(dissimilar),
            validation=summary.validation,
        )

    def _inner_groups(self) -> TwoLevel | None:
        return self._groups if self._schedule.is_intra_group() else None

    def _scale(self) -> float:
        """This rank's weight in the next mean, times the number of ranks."""
        weights = self._schedule.weights(self._group.size())
        return 1 if weights is None else weights[self._group.rank()] * self._group.size()

    @contextlib.contextmanager
    def _synchronizing(self) -> Iterator[None]:
        """
        For what an action does inside: its errors become SyncErrors, its duration counts as waiting, and a
        synchronization is marked in the job's meter, except DDP's own reductions, which the meter marks already.
        """
        averagings, record, steps = self._action.averagings, None, steps_of(self._job)
        if averagings and self._decision is Decision.SYNC and self._job.world_size == self._group.size():
            with steps.safely:
                nbytes = sum(averaging.nbytes for averaging in averagings)
                record = Record(Kind.ALL_REDUCE, nbytes, steps.stamps_for(averagings[0].sample))
                steps.number(record)
        times = self._timer.times
        began = times.now()
        with self._as_sync_error("averaging"):
            if averagings and self._decision is Decision.SYNC:
                self._confirm_synchronization()
            yield
        if averagings:
            self._add_wait(began, times.now())
        if record is not None and self._order is not None and self._order.is_pending:
            self._order.follow(partial(self._begin_wait, record), partial(self._complete, record))
        elif record is not None:
            self._complete(record)

    def _add_wait(self, began: Any, ended: Any) -> None:
        self._sync_time.add(began, ended)
        self._timer.add_wait(began, ended)

    def _begin_wait(self, record: Record) -> None:
        with steps_of(self._job).safely:
            record.begin = record.stamps.now()

    def _complete(self, record: Record) -> None:
        steps = steps_of(self._job)
        with steps.safely:
            record.end = record.stamps.now()
            steps.complete(record)

    def _await_order(self) -> None:
        """Before anything but the forward pass reads the parameters."""
        if self._order is not None:
            self._order.finish()

    def _position(self) -> RankPosition:
        awaited = self._exchange.awaited
        return RankPosition(
            rank=self._job.rank,
            step=self._schedule.step,
            left_out=self._passes.left_out,
            exchanges=self._exchange.sent if awaited is None else awaited,
            reductions=buckets.reduced_passes(self._ddp),
            has_ended=self._has_ended,
            place=Place.ELSEWHERE if awaited is None else Place.EXCHANGE,
        )

    def _detach(self) -> None:
        policies_in_force.discard(self)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._metered.close()
        if self._order is not None:
            self._order.close()
        self._passes.close()
        self._standstill.close()
        self._scalers.close()
        self._optimizers.close()
        buckets.set_hook(self._ddp, None, None)
        buckets.observe_buckets(self._ddp, None)
