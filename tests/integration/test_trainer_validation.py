"""The trainers' callbacks record the validation loss that the Trainer has evaluated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import TrainerControl, TrainerState

from timesyncd.training import LightningPolicy, TransformersPolicy

pytestmark = pytest.mark.integration


class Recorder:
    """In place of a Synchronizer: what was recorded."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def record_validation(self, loss: torch.Tensor | float) -> None:
        self.losses.append(float(loss))


def test_hugging_face_s_evaluation_is_recorded() -> None:
    """`eval_loss` of its metrics; an evaluation without one records nothing."""
    callback, recorder = TransformersPolicy("auto"), Recorder()
    callback.sync = recorder  # type: ignore[assignment]
    arguments: Any = SimpleNamespace()
    for metrics in ({"eval_loss": 1.5}, {"eval_accuracy": 0.9}, None):
        callback.on_evaluate(arguments, TrainerState(), TrainerControl(), metrics=metrics)

    assert recorder.losses == [1.5]


def test_lightning_s_validation_is_recorded() -> None:
    """What the module logs as `val_loss`."""
    callback, recorder = LightningPolicy("auto"), Recorder()
    callback.sync = recorder  # type: ignore[assignment]
    for metrics in ({"val_loss": torch.tensor(0.5)}, {}):
        trainer: Any = SimpleNamespace(callback_metrics=metrics)
        module: Any = None
        callback.on_validation_end(trainer, module)

    assert recorder.losses == [0.5]
