"""Hugging Face's Trainer with accumulation and an evaluation in between."""

import tempfile

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Numbers(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        inputs = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return {"inputs": inputs, "labels": inputs[:4]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(8, 4)

    def forward(self, inputs, labels):  # type: ignore[no-untyped-def]
        if self.training:
            late("data", dist.get_rank())
        output = self.layer(inputs)
        return {"loss": (output - labels).square().mean(), "logits": output}


model = Model()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=4, max_steps=STEPS, eval_strategy="steps", eval_steps=30, save_strategy="no",
        report_to="none", use_cpu=True, disable_tqdm=True, seed=1,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Numbers(), eval_dataset=Numbers()).train()
print_bits(dist.get_rank(), model.parameters())
dist.destroy_process_group()
