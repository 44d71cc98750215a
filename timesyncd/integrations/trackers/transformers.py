"""A callback that logs a job's signals to experiment trackers during the runs of Hugging Face's Trainer."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from timesyncd.client.job import Job
from timesyncd.integrations.trackers.signal_log import INTERVAL_S, SignalLog, Tracker


class TransformersSignals(TrainerCallback):
    """
    Logs the signals to the trackers, at the Trainer's global step.

    `WeightsAndBiases()` and `Mlflow()` find the runs that the Trainer opens itself (`report_to`).
    """

    def __init__(self, job: Job, *trackers: Tracker, interval_s: float = INTERVAL_S) -> None:
        self._signals = SignalLog(job, *trackers, interval_s=interval_s)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._signals.log(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._signals.close()
