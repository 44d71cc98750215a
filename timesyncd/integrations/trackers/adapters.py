"""
The trackers that `SignalLog` can log to. None of them is imported here: each is found in what the job has imported.

A tracker needs the run that the job has opened. Without one it raises LookupError, which `SignalLog` reports once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from timesyncd.integrations.trackers.signal_log import PREFIX


class _Writer(Protocol):
    """As `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...


class TensorBoard:
    """Scalars of TensorBoard, through the job's own SummaryWriter."""

    def __init__(self, writer: _Writer) -> None:
        self._writer = writer

    def prepare(self) -> None:
        pass

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


class WeightsAndBiases:
    """
    Metrics of a W&B run; None: the active one, `wandb.run`.

    The values join the row that the job logs next, and never begin a row: else the job's own steps would go backwards,
    and W&B would drop them. `timesyncd/step` is the step that they belong to, and their charts' axis.
    """

    STEP = f"{PREFIX}step"

    def __init__(self, run: Any = None) -> None:
        self._given = run
        self._run: Any = None

    def prepare(self) -> None:
        run = self._given or getattr(sys.modules.get("wandb"), "run", None)
        if run is None:
            raise LookupError("no W&B run is active: call wandb.init, or give the run")
        if run is not self._run:
            run.define_metric(f"{PREFIX}*", step_metric=self.STEP)
        self._run = run

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, self.STEP: step}, commit=False)


class Mlflow:
    """Metrics of an MLflow run; None: the one that is active in the job's thread."""

    def __init__(self, run_id: str | None = None) -> None:
        self._given = run_id
        self._run_id: str | None = None
        self._client: Any = None

    def prepare(self) -> None:
        mlflow = sys.modules.get("mlflow")
        if mlflow is None:
            raise LookupError("mlflow is not imported, so no run of it is active")
        run = None if self._given else mlflow.active_run()
        self._run_id = self._given or (run.info.run_id if run else None)
        if self._run_id is None:
            raise LookupError("no MLflow run is active: call mlflow.start_run, or give its id")
        self._client = self._client or mlflow.MlflowClient()

    def log(self, values: Mapping[str, float], step: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        metrics = [sys.modules["mlflow"].entities.Metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
