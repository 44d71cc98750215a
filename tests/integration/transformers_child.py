"""One rank of Hugging Face's Trainer: trained with an evaluation in between, resumed, again, set back, and ended by an error."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from timesyncd.client import Job
from timesyncd.client.torch.transformers import TransformersCallback


class Numbers(Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "labels": self.inputs[index, :4]}


class Model(nn.Module):
    """Raises in its `fail_at`-th training step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(8, 4)
        self.fail_at: int | None = None
        self.calls = 0

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += self.training
        if self.calls == self.fail_at:
            raise ValueError("mine")
        output = self.layer(inputs)
        return {"loss": (output - labels).square().mean(), "logits": output}


def trainer(folder: Path, callbacks: list[Any], steps: int) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=steps,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(Model(), arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=callbacks)


def weights(run: Trainer) -> torch.Tensor:
    assert isinstance(run.model, Model)
    return run.model.layer.weight.detach().clone()


def failed(run: Trainer) -> str:
    assert isinstance(run.model, Model)
    run.model.fail_at = run.model.calls + 3
    try:
        run.train()
    except ValueError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    bare = trainer(folder, [], 4)
    bare.train()
    job = Job("transformers", runtime_dir=folder)
    metered: list[Any] = [TransformersCallback(job)]
    first = trainer(folder, metered, 4)
    first.train()
    same = torch.equal(weights(bare), weights(first))
    dist.barrier()  # the first rank alone writes the checkpoints
    later = Job("resumed", runtime_dir=folder)
    resumed = trainer(folder, [TransformersCallback(later)], 6)
    resumed.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-4"))
    steps = [first.state.global_step, resumed.state.global_step]
    first.train()
    dist.barrier()
    first.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-2"))
    found = {"same": same, "steps": steps, "failed": failed(first)}
    for each in (job, later):
        each.close()
    print(json.dumps(found | {"lost": [job.meter.lost, later.meter.lost]}), flush=True)
