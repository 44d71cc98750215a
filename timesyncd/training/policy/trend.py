"""
The course of a validation loss, as far as it predicts the next one. Pure.

A loss falls about as a power of the step (Hestness et al., arXiv 1712.00409), so its logarithm lies on a line over the logarithm of the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from timesyncd.training.policy.constants import MIN_VALIDATIONS

#: The newest validations that make the line.
KEPT_VALIDATIONS = 6


def predicted_loss(course: Sequence[tuple[int, float]], step: int) -> float | None:
    """
    The loss at `step` by the newest of `course`, (step, loss); None: there are fewer than MIN_VALIDATIONS, or a loss is not above 0.

    The line never rises: a course that rose predicts its last losses.
    """
    newest = list(course)[-KEPT_VALIDATIONS:]
    if len(newest) < MIN_VALIDATIONS or min(loss for _, loss in newest) <= 0:
        return None
    xs, ys = [math.log(1 + at) for at, _ in newest], [math.log(loss) for _, loss in newest]
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread > 0 else 0.0
    return math.exp(mean_y + min(0.0, slope) * (math.log(1 + step) - mean_x))
