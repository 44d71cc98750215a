"""A callback for Lightning's Trainer."""

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
    Meters each run of `fit`: the buckets or shards of its strategy's module, and its steps, by Lightning's `global_step`.

    `job` None: one is made when the first run starts, with the Trainer's rank and world size.
    """

    def __init__(self, job: Job | None = None) -> None:
        self._training = TrainerRuns(job)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training.safely(lambda: self._start(trainer))

    def _start(self, trainer: Trainer) -> None:
        training = self._training
        training.end()
        job = training.job(trainer.global_rank, trainer.world_size)
        optimizers = list(trainer.optimizers)
        module = getattr(trainer.strategy.model, "_orig_mod", trainer.strategy.model)
        if isinstance(module, DistributedDataParallel | FSDPModule):
            training.add(metered(job, module, optimizers.pop(0) if optimizers else None))
        training.add(*(metered(job, optimizer) for optimizer in optimizers))
        training.begin()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._training.safely(lambda: self._training.number(trainer.global_step))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training.safely(self._training.begin)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training.safely(self._training.end)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._training.safely(self._training.end)
