"""What a rank's losses tell of its averagings, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from timesyncd.training.torch.measurements import StepSummary, StepTimer

#: Of a step: its loss, and whether it ended with an averaging.
Step = tuple[float, bool]


def rows(*of_rows: Sequence[Step]) -> list[StepSummary]:
    pace, told = StepTimer(), []
    for steps in of_rows:
        for loss, arrived in steps:
            pace.forward()
            pace.saw(loss)
            pace.ended(arrived)
        told.append(pace.told())
    return told


def test_gradients_that_are_averaged_in_each_step_tell_nothing_of_averagings() -> None:
    """Under BSP the loss falls from step to step, in a row and from one row to the next."""
    first, second = rows([(2.0, True), (1.0, True)], [(0.5, True), (0.25, True)])

    assert (first.loss, second.loss) == (1.5, 0.375)
    assert math.isnan(first.jump) and math.isnan(second.jump)


@pytest.mark.parametrize("ends_after", [1, 2, 3, 4])
def test_an_averaging_is_told_once_wherever_a_row_ends(ends_after: int) -> None:
    """From the last loss of replicas apart to the first of their mean; the losses of common parameters alone are told as such."""
    steps = [(4.0, False), (3.0, False), (2.0, True), (3.0, False), (2.5, False)]
    told = rows(steps[:ends_after], steps[ends_after:])

    assert [row.jump for row in told if not math.isnan(row.jump)] == [0.5]
    assert sorted(row.loss for row in told if not math.isnan(row.loss)) in ([3.0, 4.0], [3.5])
