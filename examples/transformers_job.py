"""
The Trainer of Hugging Face's Transformers with a callback that meters the job.

    torchrun --standalone --nproc-per-node 2 examples/transformers_job.py
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from timesyncd.client import Job
from timesyncd.client.torch.transformers import TransformersCallback


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences of consecutive numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(16) + index) % 64
        return {"input_ids": numbers, "labels": numbers}


def main(options: argparse.Namespace) -> None:
    job = Job()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=8,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Counting(1000),
            callbacks=[TransformersCallback(job)],
        )
        trainer.train()
    if job.rank == 0:
        share = job.meter.local_signals().sync_overhead_window
        print(
            f"{trainer.state.global_step} steps, {share or 0:.0%} of the time spent waiting for gradients", flush=True
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    main(parser.parse_args())
