"""A callback that meters the runs of Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from timesyncd.client.job import Job
from timesyncd.client.torch.metering import metered
from timesyncd.client.torch.trainers import TrainerRuns


class LightningCallback(Callback):
    """
    Meters each run of `fit`: the buckets or shards of the strategy's module, and the steps, numbered by Lightning's `global_step`.

    `job` None: the first run makes one, with the Trainer's rank and world size.
    """

    def __init__(self, job: Job | None = None) -> None:
        self._runs = TrainerRuns(job)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._runs.safely(lambda: self._start(trainer))

    def _start(self, trainer: Trainer) -> None:
        runs = self._runs
        runs.end()
        job = runs.job(trainer.global_rank, trainer.world_size)
        optimizers = list(trainer.optimizers)
        module = getattr(trainer.strategy.model, "_orig_mod", trainer.strategy.model)
        if isinstance(module, DistributedDataParallel | FSDPModule):
            runs.add(metered(job, module, optimizers.pop(0) if optimizers else None))
        runs.add(*(metered(job, optimizer) for optimizer in optimizers))
        runs.begin()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._runs.safely(lambda: self._runs.start_step(trainer.global_step))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._runs.safely(self._runs.begin)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._runs.safely(self._runs.end)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._runs.safely(self._runs.end)
