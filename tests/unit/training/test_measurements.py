"""StepTimer: what a rank's losses show about its averagings, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from timesyncd.training.torch.measurements import StepSummary, StepTimer
from timesyncd.training.torch.replicas import read_together

#: Of a step: its loss, and whether it ended with an averaging.
Step = tuple[float, bool]


def rows(*of_rows: Sequence[Step]) -> list[StepSummary]:
    timer, summaries = StepTimer(), []
    for steps in of_rows:
        for loss, is_averaged in steps:
            timer.begin_forward()
            timer.record_loss(loss)
            timer.end_step(is_averaged)
        (losses,) = read_together(timer.unread)
        summaries.append(timer.summarize(losses))
    return summaries


def test_bsp_has_no_jumps() -> None:
    """Under BSP the loss falls from step to step, in a row and from one row to the next."""
    first, second = rows([(2.0, True), (1.0, True)], [(0.5, True), (0.25, True)])

    assert (first.loss, second.loss) == (1.5, 0.375)
    assert math.isnan(first.jump) and math.isnan(second.jump)


@pytest.mark.parametrize("ends_after", [1, 2, 3, 4])
def test_an_averaging_is_reported_once_wherever_a_row_ends(ends_after: int) -> None:
    """From the last loss of diverged replicas to the first of their mean; only losses of common parameters count as losses."""
    steps = [(4.0, False), (3.0, False), (2.0, True), (3.0, False), (2.5, False)]
    summaries = rows(steps[:ends_after], steps[ends_after:])

    assert [row.jump for row in summaries if not math.isnan(row.jump)] == [0.5]
    assert sorted(row.loss for row in summaries if not math.isnan(row.loss)) in ([3.0, 4.0], [3.5])
