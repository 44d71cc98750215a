"""A callback that logs a job's signals to the loggers of Lightning's Trainer."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from timesyncd.client.job import Job
from timesyncd.integrations.trackers.signal_log import INTERVAL_S, SignalLog

_LOG = logging.getLogger("timesyncd.trackers")


class LightningSignals(Callback):
    """
    Logs the signals to each of the Trainer's loggers, at the Trainer's global step. A logger that fails is left out
    from then on.

    The loggers are called in the Trainer's own thread, as the Trainer calls them: several cannot be used from another.
    """

    def __init__(self, job: Job, interval_s: float = INTERVAL_S) -> None:
        self._signals = SignalLog(job, interval_s=interval_s)
        self._failed: list[object] = []

    def __getstate__(self) -> dict[str, object]:
        return {"_signals": self._signals, "_failed": []}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        values = self._signals.values()
        for logger in trainer.loggers if values is not None else ():
            if any(logger is failed for failed in self._failed):
                continue
            try:
                logger.log_metrics(dict(values or {}), step=trainer.global_step)
            except Exception as error:  # noqa: BLE001  a tracker never ends the job
                self._failed.append(logger)
                text = "%s did not take the job's signals and gets no more of them: %s: %s"
                _LOG.warning(text, type(logger).__name__, type(error).__name__, error)
