"""
A job that logs its signals to real experiment trackers without a network, by one of three ways: a plain loop, Lightning, Transformers.

Prints what the trackers have afterwards, as one JSON object: for each tracker the values of one name, by step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from published_signals import job_with_signals

from timesyncd.client import Job
from timesyncd.integrations.trackers import Mlflow, SignalLog, TensorBoard, WeightsAndBiases

SKEW = "timesyncd/arrival_skew_p99_ns"
STEPS = 4

Found = dict[str, Any]


def of_tensorboard(folder: Path) -> list[list[float]]:
    """[step, value] of the scalar in all event files below a folder."""
    accumulators = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        accumulator = accumulators.EventAccumulator(str(path))
        accumulator.Reload()
        if SKEW in accumulator.Tags()["scalars"]:
            events += [[event.step, event.value] for event in accumulator.Scalars(SKEW)]
    return events


def wandb_records(data: bytes) -> Iterator[bytes]:
    """
    The records of a run's file: LevelDB's log format behind 7 octets of W&B's own. A record is whole, or its fragments
    are first, middle and last; none crosses a block of 32 KiB.
    """
    block, header, at, whole = 32_768, 7, 7, b""
    while at + header <= len(data):
        if block - at % block < header:  # padding
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):
            yield whole
            whole = b""


def of_wandb(folder: Path) -> list[dict[str, float]]:
    """The rows of an offline run, as the run's file holds them."""
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    [path] = folder.rglob("*.wandb")
    rows = []
    for data in wandb_records(path.read_bytes()):
        record = records.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = ((item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item)
            rows.append({key: json.loads(value) for key, value in items if not key.startswith("_")})
    return rows


def plain(job: Job, folder: Path) -> Found:
    """A loop that logs its loss to W&B, and its signals to all three trackers."""
    mlflow = importlib.import_module("mlflow")
    wandb = importlib.import_module("wandb")
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))
    mlflow.set_tracking_uri((folder / "mlflow").as_uri())
    run = wandb.init(project="timesyncd", dir=str(folder), mode="offline")
    with mlflow.start_run() as active:
        signals = SignalLog(job, TensorBoard(writer), WeightsAndBiases(), Mlflow(), interval_s=0)
        for step in range(STEPS):
            run.log({"loss": 1 / (step + 1)}, step=step)
            signals.log(step)
        signals.close()
    writer.close()
    run.finish()
    history = mlflow.MlflowClient().get_metric_history(active.info.run_id, SKEW)
    return {
        "tensorboard": of_tensorboard(folder / "tensorboard"),
        "mlflow": [[metric.step, metric.value] for metric in history],
        "wandb": of_wandb(folder / "wandb"),
    }


def lightning(job: Job, folder: Path) -> Found:
    """Lightning's Trainer with two loggers, one of which takes no value."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from torch.utils.data import DataLoader, TensorDataset

    from timesyncd.integrations.trackers.lightning import LightningSignals

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            return torch.as_tensor(self.layer(batch[0])).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Full(CSVLogger):
        calls = 0

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            Full.calls += any(name.startswith("timesyncd/") for name in metrics)
            raise OSError("no space left on device")

    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        logger=[Full(str(folder / "full")), TensorBoardLogger(str(folder / "tensorboard"))],
        callbacks=[LightningSignals(job, interval_s=0)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1_000,
    )
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(STEPS, 4)), batch_size=1))
    return {"tensorboard": of_tensorboard(folder / "tensorboard"), "steps": trainer.global_step, "failed": Full.calls}


def transformers(job: Job, folder: Path) -> Found:
    """Hugging Face's Trainer, which opens its W&B run itself."""
    from transformers import Trainer, TrainingArguments
    from transformers_child import Model, Numbers

    from timesyncd.integrations.trackers.transformers import TransformersSignals

    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_strategy="no",
        report_to=["wandb"],
        use_cpu=True,
        disable_tqdm=True,
    )
    callback = TransformersSignals(job, TensorBoard(writer), WeightsAndBiases(), interval_s=0)
    trainer = Trainer(Model(), arguments, train_dataset=Numbers(), callbacks=[callback])
    trainer.train()
    writer.close()
    importlib.import_module("wandb").finish()
    return {
        "tensorboard": of_tensorboard(folder / "tensorboard"),
        "wandb": of_wandb(folder / "wandb"),
        "steps": trainer.state.global_step,
    }


WAYS: dict[str, Callable[[Job, Path], Found]] = {
    "plain": plain,
    "lightning": lightning,
    "transformers": transformers,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    os.environ |= {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(given.folder),
        "WANDB_SILENT": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    with job_with_signals(given.folder, arrival_skew_p99_ns=9_000, sync_overhead=0.25) as made:
        print(json.dumps(WAYS[given.way](made, given.folder)), flush=True)
