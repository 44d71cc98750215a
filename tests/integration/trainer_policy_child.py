"""One rank of Lightning's Trainer, Hugging Face's, or a loop of accelerate, under a policy; prints what happened."""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator  # type: ignore[import-untyped]
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer as TransformersTrainer
from transformers import TrainingArguments

from timesyncd.client import Job
from timesyncd.client.torch.host_group import gather_objects
from timesyncd.training import LightningPolicy, TransformersPolicy, synchronized
from timesyncd.training.torch.replicas import replica_hash

STEPS = 10
Facts = dict[str, Any]


def inputs() -> torch.Tensor:
    """The same on all ranks."""
    return torch.randn(4 * STEPS, 8, generator=torch.Generator().manual_seed(1))


def layer() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(8, 4)


def is_same(module: nn.Module) -> bool:
    """Whether the module is the same on all ranks. Every rank calls it."""
    return len(set(gather_objects(replica_hash(module.parameters())))) == 1


def reference(policy: str, folder: Path) -> tuple[nn.Module, list[bool]]:
    """A plain loop under the same policy, and in which steps the replicas were equal."""
    job, module = Job(f"plain {policy}", runtime_dir=folder), layer()
    ddp = nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    same = []
    with synchronized(job, ddp, optimizer, policy):
        for step in range(STEPS):
            optimizer.zero_grad()
            ddp(mine(step)).square().mean().backward()
            optimizer.step()
            same.append(is_same(module))
    return module, same


def mine(step: int) -> torch.Tensor:
    """This rank's batch."""
    return inputs()[4 * step + int(os.environ["RANK"]) : 4 * step + 4 : 2]


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()
        self.same: list[bool] = []
        self.same_inside: list[bool] = []

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()  # type: ignore[no-any-return]

    def on_train_batch_end(self, *_: Any) -> None:
        self.same.append(is_same(self.layer))

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        self.same_inside.append(is_same(self.layer))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def lightning(policy: str, folder: Path) -> Facts:
    callback = LightningPolicy(policy, Job(f"lightning {policy}", runtime_dir=folder))
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, val_check_interval=3, limit_val_batches=1,
        num_sanity_val_steps=0, use_distributed_sampler=False, callbacks=[callback, Saves(folder)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    model, own = Model(), TensorDataset(torch.cat([mine(step) for step in range(STEPS)]))
    trainer.fit(model, DataLoader(own, batch_size=2), DataLoader(own, batch_size=2))
    expected, same = reference(policy, folder)
    saved = gather_objects(replica_hash(torch.load(folder / f"{dist.get_rank()}.ckpt").values()))
    assert callback.sync is not None
    return {
        "same": model.same == same,
        "inside": model.same_inside,
        "off": off(model.layer, expected),
        "saved": len(set(saved)),
        "steps": callback.sync.step,
    }


class Saves(Callback):
    """Keeps what Lightning would write in step 6, between two averagings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 6:
            state = trainer._checkpoint_connector.dump_checkpoint(weights_only=True)["state_dict"]
            torch.save(state, self.folder / f"{trainer.global_rank}.ckpt")


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": inputs()[index]}


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()
        self.same_inside: list[bool] = []
        self.inside: list[int] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self.training:
            self.same_inside.append(is_same(self.layer))
            self.inside.append(replica_hash(self.layer.parameters()))
        return {"loss": self.layer(x).square().mean(), "logits": x}


def transformers(policy: str, folder: Path) -> Facts:
    callback = TransformersPolicy(policy, Job(f"transformers {policy}", runtime_dir=folder))
    model = Loss()
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=2, per_device_eval_batch_size=20,
        use_cpu=True, report_to="none", save_strategy="steps", save_steps=3, eval_strategy="steps", eval_steps=3, disable_tqdm=True,
        remove_unused_columns=False, logging_strategy="no", max_grad_norm=0.0, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = TransformersTrainer(
        model=model, args=arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[callback],
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
    )  # fmt: skip
    trainer.train()
    assert callback.sync is not None
    dist.barrier()
    saved = load_file(folder / "out" / "checkpoint-3" / "model.safetensors")
    return {
        "saved": replica_hash([saved["layer.weight"], saved["layer.bias"]]) == model.inside[0],
        "inside": model.same_inside,
        "closed": is_same(model),
        "steps": callback.sync.step,
        "rounds": callback.sync.report().rounds,
    }


def accelerate(policy: str, folder: Path) -> Facts:
    accelerator, module = Accelerator(cpu=True), layer()
    model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    same = []
    with synchronized(Job(f"accelerate {policy}", runtime_dir=folder), model, optimizer, policy) as sync:
        for step in range(STEPS):
            optimizer.zero_grad()
            accelerator.backward(model(mine(step)).square().mean())
            optimizer.step()
            same.append(is_same(module))
    expected, plain = reference(policy, folder)
    return {"same": same == plain, "off": off(module, expected), "steps": sync.step}


def off(module: nn.Module, expected: nn.Module) -> float:
    pairs = zip(module.parameters(), expected.parameters(), strict=True)
    return max(float((mine - other).detach().abs().max()) for mine, other in pairs)


TRAINERS = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--trainer", choices=TRAINERS)
    parser.add_argument("--policies", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {policy: TRAINERS[options.trainer](policy, options.folder) for policy in options.policies}
    print(json.dumps(found), flush=True)
