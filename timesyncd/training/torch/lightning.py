"""A policy in the Trainer of Lightning, by a callback."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from timesyncd.client.job import Job
from timesyncd.training.torch.entry import synchronized
from timesyncd.training.torch.synchronizer import Synchronizer


class LightningPolicy(Callback):
    """
    Trains each run of `fit` under a policy: `Trainer(strategy="ddp", callbacks=[LightningPolicy("local_sgd(h=8)")])`.

    It meters the run as LightningCallback does, so give one of the two. Validations and checkpoints have the mean of
    the replicas, and so has the module after `fit`. `job` None: the first run makes one, with the Trainer's rank and
    world size. The run raises ValueError for an invalid policy or several optimizers, TypeError for another strategy
    than DDP, and SyncError as `synchronized` does.
    """

    def __init__(self, policy: str = "auto", job: Job | None = None) -> None:
        self._policy, self._job = policy, job
        self.sync: Synchronizer | None = None  #: of the present or the last run
        self._open = contextlib.ExitStack()
        self._restore: Callable[[], None] | None = None
        self._steps = 0

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle has no job and no run: the process that loads it makes its own."""
        return {
            "_policy": self._policy,
            "_job": None,
            "sync": None,
            "_open": contextlib.ExitStack(),
            "_restore": None,
            "_steps": 0,
        }

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._job is None:
            self._job = Job(rank=trainer.global_rank, world_size=trainer.world_size)
        if len(trainer.optimizers) != 1:
            raise ValueError(f"a policy needs one optimizer, and the module configures {len(trainer.optimizers)}")
        module: Any = trainer.strategy.model
        steps = trainer.num_training_batches
        epoch = None if steps == float("inf") else max(1, int(steps) // trainer.accumulate_grad_batches)
        self.sync = synchronized(self._job, module, trainer.optimizers[0], self._policy, epoch)
        self._steps = trainer.global_step
        self._save_means(trainer, self.sync)

    def _save_means(self, trainer: Trainer, sync: Synchronizer) -> None:
        """What Lightning writes into checkpoints of every kind. It asks for it on all ranks."""
        strategy: Any = trainer.strategy
        original = strategy.lightning_module_state_dict

        def averaged() -> dict[str, Any]:
            with sync.averaged():
                state = original()
                return {name: each.clone() if isinstance(each, torch.Tensor) else each for name, each in state.items()}

        def restore() -> None:
            del strategy.lightning_module_state_dict

        strategy.lightning_module_state_dict = averaged
        self._restore = restore

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.sync is not None and isinstance(loss, torch.Tensor) and trainer.global_step > self._steps:
            self.sync.record_loss(loss)
        self._steps = trainer.global_step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._restore is not None and self.sync is not None:
            self._open.enter_context(self.sync.averaged())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open.close()
        loss = trainer.callback_metrics.get("val_loss")
        if self.sync is not None and loss is not None:
            self.sync.record_validation(loss)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_saving()
        if self.sync is not None:
            self.sync.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end_saving()
        if self.sync is not None:
            self.sync.__exit__(type(exception), exception, exception.__traceback__)

    def _end_saving(self) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
        self._open.close()
