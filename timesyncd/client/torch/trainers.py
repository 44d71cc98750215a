"""What the callbacks of trainers share: one Job for all their runs, and whatever fails is a warning, never the training's end."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from timesyncd.client.job import Job
from timesyncd.client.torch.metering import Metered


class Training:
    """
    One trainer's runs, metered one after the other. The job is kept over all of them, so that a run that counts its steps from 0
    again begins an epoch of its own.
    """

    def __init__(self, job: Job | None) -> None:
        self._job = job
        self._metered: list[Metered] = []

    def __getstate__(self) -> dict[str, object]:
        """Copied or pickled it takes no job along: the process that it comes to makes its own."""
        return {"_job": None, "_metered": []}

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
            metered.step = step

    def begin(self) -> None:
        """The step begins now: what lies before it was an evaluation, a checkpoint, the start."""
        for metered in self._metered[:1]:
            metered.begin()

    def end(self) -> None:
        """The run is over; marks that are left go out."""
        metered, self._metered = self._metered, []
        for each in metered:
            each.close()
        if self._job is not None:
            self._job.meter.announce()

    def safely(self, do: Callable[[], None]) -> None:
        """Whatever fails here is said once, and the training goes on without a meter."""
        try:
            do()
        except Exception as error:  # noqa: BLE001  the trainer's run is not ours to end
            self._metered = []
            warnings.warn(f"timesyncd does not meter this training: {type(error).__name__}: {error}", stacklevel=3)
