"""A callback that meters the runs of the Trainer of Hugging Face's Transformers."""

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
    Meters each run of `train`: the buckets or shards of the module that the Trainer wraps, and the steps, numbered by its `global_step`.

    The Trainer gives a callback only the bare model, so the wrapped module is found when the first step runs it. `job` None: the first run
    makes one, with the Trainer's rank and world size.
    """

    def __init__(self, job: Job | None = None) -> None:
        self._runs = TrainerRuns(job)
        self._search: RemovableHandle | None = None
        self._started = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_search": None, "_started": False}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._stop()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self._started:
            self._started = True
            self._runs.safely(lambda: self._search_module(args, state, kwargs))
        self._runs.safely(lambda: self._runs.start_step(state.global_step))

    def _search_module(self, args: TrainingArguments, state: TrainerState, given: dict[str, Any]) -> None:
        job = self._runs.job(args.process_index, args.world_size)

        model = getattr(given.get("model"), "_orig_mod", given.get("model"))

        def runs(module: torch.nn.Module, inputs: Any) -> None:
            if _is_wrapped(model, getattr(module, "_orig_mod", module)):
                self._stop_search()
                self._runs.safely(lambda: self._meter(job, module, given.get("optimizer"), state.global_step))

        self._search = register_module_forward_pre_hook(runs)

    def _meter(self, job: Job, module: torch.nn.Module, optimizer: Any, step: int) -> None:
        inner = getattr(module, "_orig_mod", module)
        updating = optimizer if isinstance(optimizer, Optimizer) else None
        if isinstance(inner, DistributedDataParallel | FSDPModule):
            self._runs.add(metered(job, inner, updating))
        elif updating is not None:
            self._runs.add(metered(job, updating))
        self._runs.start_step(step)
        self._runs.begin()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._runs.safely(self._runs.begin)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._runs.safely(self._runs.begin)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._stop_search()
        self._started = False
        self._runs.safely(self._runs.end)

    def _stop_search(self) -> None:
        search, self._search = self._search, None
        if search is not None:
            search.remove()


def _is_wrapped(model: Any, module: torch.nn.Module) -> bool:
    """Whether the module is the model or its distributed wrapper, and not another one that runs beside it (a teacher)."""
    if model is None or module is model:
        return True
    wraps = isinstance(module, DistributedDataParallel | FSDPModule | torch.nn.DataParallel)
    return wraps and any(each is model for each in module.modules())
