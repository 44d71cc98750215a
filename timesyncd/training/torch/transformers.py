"""A policy in the Trainer of Hugging Face's Transformers, by a callback."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from timesyncd.client.job import Job
from timesyncd.training.torch.entry import synchronized
from timesyncd.training.torch.synchronizer import Synchronizer


class TransformersPolicy(TrainerCallback):
    """
    Trains each run of `train` under a policy: `Trainer(..., callbacks=[TransformersPolicy("local_sgd(h=8)")])`.

    It meters the run as TransformersCallback does, so give one of the two. The evaluations and checkpoints of a run
    have the mean of the replicas, and so has the model after it. The Trainer gives a callback only the bare model, so
    the wrapped module is found when the first step runs it. `job` None: the first run makes one, with the Trainer's
    rank and world size. The run raises ValueError for an invalid policy, TypeError where no DDP wraps the model, and
    SyncError as `synchronized` does.
    """

    def __init__(self, policy: str = "auto", job: Job | None = None) -> None:
        self._policy, self._job = policy, job
        self.sync: Synchronizer | None = None  #: of the present or the last run
        self._handles: list[RemovableHandle] = []
        self._open = contextlib.ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle has no job and no run: the process that loads it makes its own."""
        return {"_policy": self._policy, "_job": None, "sync": None, "_handles": [], "_open": contextlib.ExitStack()}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._remove_handles()  # of a run that ended by an error
        if self._job is None:
            self._job = Job(rank=args.process_index, world_size=args.world_size)
        model, optimizer, job = kwargs["model"], kwargs["optimizer"], self._job

        def runs(module: torch.nn.Module, inputs: Any) -> None:
            if isinstance(module, DistributedDataParallel) and any(each is model for each in module.modules()):
                self._remove_handles()
                self.sync = synchronized(job, module, optimizer, self._policy, _epoch_steps(args, kwargs))
                self.sync.begin_forward()
                self._handles.append(module.register_forward_hook(self._record_loss))
            elif module is model and model.training:
                raise TypeError("the Trainer trains the model without DistributedDataParallel: start it with torchrun")

        self.sync = None
        self._handles.append(register_module_forward_pre_hook(runs))

    def _record_loss(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else None
        if self.sync is not None and module.training and isinstance(loss, torch.Tensor):
            self.sync.record_loss(loss)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._open.close()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._average_for(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._average_for(control)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        loss = (metrics or {}).get("eval_loss")
        if self.sync is not None and loss is not None:
            self.sync.record_validation(loss)

    def _average_for(self, control: TrainerControl) -> None:
        """What the Trainer does next; the next step begins with the rank's own replica."""
        self._open.close()
        if self.sync is not None and (control.should_evaluate or control.should_save):
            self._open.enter_context(self.sync.averaged())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._open.close()
        self._remove_handles()
        if self.sync is not None:
            self.sync.close()

    def _remove_handles(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _epoch_steps(args: TrainingArguments, given: dict[str, Any]) -> int | None:
    try:
        return max(1, len(given["train_dataloader"]) // args.gradient_accumulation_steps)
    except TypeError:  # a dataset without a length
        return None
