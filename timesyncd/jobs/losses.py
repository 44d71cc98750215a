"""What the ranks' marks show about how a job learns: losses that are not finite, and a loss above its reference's. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from timesyncd.ipc.job_datagram import Kind, Mark, loss_of

#: Ranks are kept of so many.
MAX_UNFIT_RANKS = 4096


@dataclass(frozen=True, slots=True)
class WorseLoss:
    """Since the step with this key the loss is surely higher than the reference's, by this share; infinite: not finite."""

    step: int
    least: float


@dataclass(slots=True)
class JobLosses:
    """`unfit`: by rank, the key of the first step with a loss that is not finite. `worse`: by rank 0's newest mark."""

    _unfit: dict[int, int] = field(default_factory=dict)
    worse: WorseLoss | None = None

    def put(self, rank: int, mark: Mark) -> None:
        value = loss_of(mark.bytes)
        if mark.kind == Kind.LEARNING:
            self.worse = None if math.isnan(value) else WorseLoss(mark.step, value)
        elif not math.isfinite(value) and (rank in self._unfit or len(self._unfit) < MAX_UNFIT_RANKS):
            self._unfit[rank] = min(mark.step, self._unfit.get(rank, mark.step))

    @property
    def unfit(self) -> Mapping[int, int]:
        return self._unfit
