"""What the callbacks of trainers share: one Job for all their runs, and whatever fails is a warning, never the training's end."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress

from timesyncd.client.job import Job
from timesyncd.client.torch.metering import Metered
from timesyncd.ipc.job_datagram import split_step


class TrainerRuns:
    """
    One trainer's runs, metered one after the other. The job is kept over all of them: a run that goes on where the former one
    ended counts on, and one that goes back, to 0 or to a checkpoint, begins an epoch of its own.
    """

    def __init__(self, job: Job | None) -> None:
        self._job = job
        self._metered: list[Metered] = []
        self._newest = -1
        self._counts = False

    def __getstate__(self) -> dict[str, object]:
        """Copied or pickled it takes no job along: the process that it comes to makes its own."""
        return {"_job": None, "_metered": [], "_newest": -1, "_counts": False}

    def job(self, rank: int, world_size: int) -> Job:
        """The job that was given, or this process's own, in the place that the trainer says."""
        if self._job is None:
            self._job = Job(rank=rank, world_size=world_size)
        return self._job

    def add(self, *metered: Metered) -> None:
        self._metered += metered

    def number(self, step: int) -> None:
        """The trainer's own number of the step that begins."""
        for metered in self._metered[:1]:
            if not self._counts and self._job is not None and step <= self._newest:
                meter = self._job.meter
                meter.set_epoch(split_step(meter.step_key(self._newest))[0] + 1)
            self._newest, self._counts = step, True
            metered.step = step

    def begin(self) -> None:
        """The step begins now: what lies before it was an evaluation, a checkpoint, the start."""
        for metered in self._metered[:1]:
            metered.begin()

    def end(self) -> None:
        """The run is over; marks that are left go out."""
        self._counts = False
        while self._metered:
            self._metered.pop(0).close()
        if self._job is not None:
            self._job.meter.announce()

    def safely(self, do: Callable[[], None]) -> None:
        """Whatever fails here is said once, and the training goes on without a meter."""
        try:
            do()
        except Exception as error:  # noqa: BLE001  the trainer's run is not ours to end
            while self._metered:
                with suppress(Exception):  # one warning for all of it
                    self._metered.pop().close()
            warnings.warn(f"timesyncd does not meter this training: {type(error).__name__}: {error}", stacklevel=3)
