"""
Lightning's Trainer with a callback that meters the job.

    torchrun --standalone --nproc-per-node 2 examples/lightning_job.py
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from timesyncd.client import Job
from timesyncd.client.torch.lightning import LightningCallback


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main(options: argparse.Namespace) -> None:
    job = Job()
    inputs = torch.randn(options.steps * 32 * job.world_size, 64)
    trainer = Trainer(
        accelerator="cpu",
        devices=job.world_size,
        strategy="ddp",
        max_epochs=1,
        callbacks=[LightningCallback(job)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(TensorDataset(inputs, inputs[:, :10].argmax(1)), batch_size=32))
    if trainer.is_global_zero:
        share = job.meter.local_signals().sync_overhead_window
        print(f"{trainer.global_step} steps, {share or 0:.0%} of the time spent waiting for gradients", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args())
