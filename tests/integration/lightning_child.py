"""One rank of Lightning's Trainer: trained with a validation in between, resumed, and ended by an error; prints what happened."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from timesyncd.client import Job
from timesyncd.client.torch.lightning import LightningCallback


class Model(LightningModule):
    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.fail_at = fail_at

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        if number == self.fail_at:
            raise ValueError("mine")
        return self.layer(batch[0]).square().mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.layer(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path, callbacks: list[Any], steps: int) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=steps,
        val_check_interval=2,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        accumulate_grad_batches=2,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def data() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1))), batch_size=2)


def fit(folder: Path, callbacks: list[Any], steps: int, start: Path | None = None) -> Trainer:
    seed_everything(1, verbose=False)
    run = trainer(folder, callbacks, steps)
    run.fit(Model(), data(), data(), ckpt_path=start, weights_only=False)
    return run


def failed(folder: Path, callbacks: list[Any]) -> str:
    try:
        trainer(folder, callbacks, 9).fit(Model(fail_at=2), data())
    except ValueError as error:
        return str(error)
    return "nothing"


def weights(run: Trainer) -> torch.Tensor:
    assert isinstance(run.lightning_module, Model)
    return run.lightning_module.layer.weight.detach().clone()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    job = Job("lightning", runtime_dir=folder)
    metered: list[Any] = [LightningCallback(job)]
    bare = fit(folder, [], 4)
    first = fit(folder, metered, 4)
    first.save_checkpoint(folder / "saved.ckpt")
    second = fit(folder, metered, 6, folder / "saved.ckpt")
    found = {
        "same": torch.equal(weights(bare), weights(first)),
        "steps": [first.global_step, second.global_step],
        "failed": failed(folder, metered),
    }
    job.close()
    print(json.dumps(found | {"lost": job.meter.lost}), flush=True)
