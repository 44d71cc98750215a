"""A callback for the Trainer of Hugging Face's Transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from timesyncd.client.job import Job
from timesyncd.client.torch.metering import metered
from timesyncd.client.torch.trainers import TrainerRuns


class TransformersCallback(TrainerCallback):
    """
    Meters each run of `train`: the buckets or shards of the module that the Trainer wraps, and its steps, by its `global_step`.

    The Trainer shows a callback the bare model alone, so the wrapped one is taken when the first step runs it, whatever other modules run before. `job` None: one is made
    when the first run starts, with the Trainer's rank and world size.
    """

    def __init__(self, job: Job | None = None) -> None:
        self._training = TrainerRuns(job)
        self._looking: RemovableHandle | None = None
        self._started = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_looking": None, "_started": False}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._stop()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self._started:
            self._started = True
            self._training.safely(lambda: self._look(args, state, kwargs))
        self._training.safely(lambda: self._training.number(state.global_step))

    def _look(self, args: TrainingArguments, state: TrainerState, given: dict[str, Any]) -> None:
        job = self._training.job(args.process_index, args.world_size)

        model = getattr(given.get("model"), "_orig_mod", given.get("model"))

        def runs(module: torch.nn.Module, inputs: Any) -> None:
            if _is_wrapped(model, getattr(module, "_orig_mod", module)):
                self._look_no_more()
                self._training.safely(lambda: self._meter(job, module, given.get("optimizer"), state.global_step))

        self._looking = register_module_forward_pre_hook(runs)

    def _meter(self, job: Job, module: torch.nn.Module, optimizer: Any, step: int) -> None:
        inner = getattr(module, "_orig_mod", module)
        updating = optimizer if isinstance(optimizer, Optimizer) else None
        if isinstance(inner, DistributedDataParallel | FSDPModule):
            self._training.add(metered(job, inner, updating))
        elif updating is not None:
            self._training.add(metered(job, updating))
        self._training.number(step)
        self._training.begin()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._training.safely(self._training.begin)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._training.safely(self._training.begin)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._look_no_more()
        self._started = False
        self._training.safely(self._training.end)

    def _look_no_more(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.remove()


def _is_wrapped(model: Any, module: torch.nn.Module) -> bool:
    """Whether the module is the model itself or what shares it among ranks, not one that runs beside it (a teacher)."""
    if model is None or module is model:
        return True
    wraps = isinstance(module, DistributedDataParallel | FSDPModule | torch.nn.DataParallel)
    return wraps and any(each is model for each in module.modules())
