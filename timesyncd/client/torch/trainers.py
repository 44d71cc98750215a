"""Shared by the trainers' callbacks: one Job for all runs. An error becomes a warning and never ends the training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress

from timesyncd.client.job import Job
from timesyncd.client.torch.metering import Metered
from timesyncd.ipc.job_datagram import split_step


class TrainerRuns:
    """
    One trainer's runs, metered one after the other, with one job.

    A run that continues where the last one ended continues its steps; a run that goes back, to 0 or to a checkpoint, starts an epoch.
    """

    def __init__(self, job: Job | None) -> None:
        self._job = job
        self._metered: list[Metered] = []
        self._newest = -1
        self._is_running = False

    def __getstate__(self) -> dict[str, object]:
        """A copy or a pickle has no job: the process that loads it makes its own."""
        return {"_job": None, "_metered": [], "_newest": -1, "_is_running": False}

    def job(self, rank: int, world_size: int) -> Job:
        """The given job, or this process's own, with the rank and the world size that the trainer gives."""
        if self._job is None:
            self._job = Job(rank=rank, world_size=world_size)
        return self._job

    def add(self, *metered: Metered) -> None:
        self._metered += metered

    def start_step(self, step: int) -> None:
        """A step with this number of the trainer's starts."""
        for metered in self._metered[:1]:
            if not self._is_running and self._job is not None and step <= self._newest:
                meter = self._job.meter
                meter.set_epoch(split_step(meter.step_key(self._newest))[0] + 1)
            self._newest, self._is_running = step, True
            metered.step = step

    def begin(self) -> None:
        """The step starts now: the time before it was an evaluation, a checkpoint or the start-up."""
        for metered in self._metered[:1]:
            metered.begin()

    def end(self) -> None:
        """The run is over: close what was metered, and send the remaining marks."""
        self._is_running = False
        while self._metered:
            self._metered.pop(0).close()
        if self._job is not None:
            self._job.meter.announce()

    def safely(self, action: Callable[[], None]) -> None:
        """An error here is one warning, and the training continues without a meter."""
        try:
            action()
        except Exception as error:  # noqa: BLE001  it must not end the trainer's run
            while self._metered:
                with suppress(Exception):  # one warning for all of it
                    self._metered.pop().close()
            warnings.warn(f"timesyncd does not meter this training: {type(error).__name__}: {error}", stacklevel=3)
