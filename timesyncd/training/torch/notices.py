"""
What a policy reports once: a loss or gradient that is not finite, losses that `auto` misses, and that it has nothing to
gain.
"""

from __future__ import annotations

import logging
import math
import statistics
import warnings
from collections.abc import Iterable, Sequence

from timesyncd.training.policy.constants import NEGLIGIBLE_WAIT
from timesyncd.training.policy.row import Row, unfit_text
from timesyncd.training.policy.schedule import FIRST_ROWS_STEP

_log = logging.getLogger(__name__)


class Notices:
    """
    Each notice is one warning on rank 0, by the rows of all ranks.

    `unfit`: this rank's first step in which its loss or its gradient was not finite; None: there was none.
    """

    def __init__(self, job_name: str, is_reporting: bool) -> None:
        self._job_name, self._is_reporting = job_name, is_reporting
        self.unfit: int | None = None
        self._has_losses = False
        self._done: set[str] = set()

    def measure(self, step: int, unfit_ago: int | None, norms: Iterable[float] = ()) -> None:
        """`unfit_ago`: how many steps ago a loss was not finite. `norms`: of this step's gradient."""
        if self.unfit is None and unfit_ago is not None:
            self.unfit = step - unfit_ago
        elif self.unfit is None and not all(map(math.isfinite, norms)):
            self.unfit = step

    def receive(self, rows: Sequence[Row]) -> None:
        text = unfit_text(rows)
        if text is not None:
            self._warn("unfit", text)

    def receive_losses(self, rows: Sequence[Row]) -> None:
        """Under `auto`, which keeps to BSP while no loss is recorded, or while ranks hardly wait."""
        if rows[0].step == FIRST_ROWS_STEP and self._is_reporting:
            waited = statistics.fmean(row.wait_ns / max(1, row.compute_ns) for row in rows)
            if waited <= NEGLIGIBLE_WAIT:
                text = f"under BSP the ranks wait for {waited:.2g} times their computing time"
                _log.info("job %s, step %d: %s -> stays bsp", self._job_name, rows[0].step, text)
        self._has_losses |= any(not math.isnan(row.loss) for row in rows)
        if not self._has_losses and rows[0].step > FIRST_ROWS_STEP:
            self._warn("losses", "policy auto stays bsp, as no loss is recorded: call record_loss(loss) in each step")

    def _warn(self, kind: str, text: str) -> None:
        if self._is_reporting and kind not in self._done:
            self._done.add(kind)
            warnings.warn(f"job {self._job_name}: {text}", stacklevel=2)
