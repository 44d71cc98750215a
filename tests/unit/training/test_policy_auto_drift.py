"""ReplicaDrift: what rare averagings cost in steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.drift import ReplicaDrift

DRIFTS = st.builds(ReplicaDrift, ranks=st.integers(2, 512), dissimilarity=st.floats(0, 100))


@given(DRIFTS, st.floats(0.01, 200), st.floats(1, 1000))
def test_no_interval_takes_less_time_than_the_best(drift: ReplicaDrift, ratio: float, h: float) -> None:
    """For any duration of a transfer."""
    assert drift.time(drift.best_interval(ratio), ratio) <= drift.time(h, ratio) * (1 + 1e-9)


@given(st.floats(0.01, 200), st.integers(2, 128))
def test_the_best_interval_falls_with_the_ranks(ratio: float, ranks: int) -> None:
    """By the power of 3/4, as the longest one with which N ranks learn N times as fast."""
    assert ReplicaDrift(ranks).best_interval(ratio) / ReplicaDrift(2 * ranks).best_interval(ratio) == pytest.approx(
        2**0.75
    )


@pytest.mark.parametrize(
    ("drift", "h", "steps"),
    [(ReplicaDrift(2), 32, 1.06), (ReplicaDrift(4), 64, 1.33), (ReplicaDrift(2, 5.2), 16, 2.04), (ReplicaDrift(3, 14.5), 8, 2.8), (ReplicaDrift(4, 27), 8, 5.3)],
)  # fmt: skip
def test_the_steps_are_about_those_that_were_counted(drift: ReplicaDrift, h: int, steps: float) -> None:
    """On digits: alike 1.1 and 1.3, sorted 2.05, 1.9 and 3.4 to 4.2 times BSP's; of the latter two it leans to BSP."""
    assert drift.steps(h) == pytest.approx(steps, rel=0.02)
