"""What is reported once: by which rows, with which text, and on which rank."""

from __future__ import annotations

import math
import warnings

import pytest

from timesyncd.training.policy.row import Row
from timesyncd.training.torch.notices import Notices


@pytest.mark.parametrize(
    ("unfit", "text"),
    [
        ((None, 17), "of rank 1 is not finite, first seen in step 17; of no other rank so far"),
        ((20, 17), "of rank 1 is not finite, first seen in step 17; then of rank 0 in step 20"),
        ((19, 19), "of rank 0, 1 is not finite, first seen in step 19; call record_loss"),
    ],
)
def test_a_number_that_is_not_finite_is_reported_once(unfit: tuple[int | None, int | None], text: str) -> None:
    """With the rank that had it first, and its step, however many rows repeat it."""
    notices = Notices("mine", True)
    rows = [Row(24, unfit=step) for step in unfit]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        notices.receive([Row(16), Row(16)])
        notices.receive(rows)
        notices.receive(rows)
    (warning,) = caught
    assert str(warning.message).startswith(f"job mine: a loss or gradient {text}")
    assert "\n" not in str(warning.message)


def test_only_one_rank_reports() -> None:
    """The rows are the same on all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Notices("mine", False).receive([Row(24, unfit=3)])
    assert caught == []


def test_missing_losses_are_reported_once() -> None:
    """After some rows, and not where a loss was recorded."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        missing, recorded = Notices("mine", True), Notices("mine", True)
        for step in (3, 11, 19):
            missing.receive_losses([Row(step)])
            recorded.receive_losses([Row(step, loss=2.0 if step == 3 else math.nan)])
    (warning,) = caught
    assert str(warning.message) == (
        "job mine: policy auto stays bsp, as no loss is recorded: call record_loss(loss) in each step"
    )


def test_auto_logs_once_that_it_has_nothing_to_gain(caplog: pytest.LogCaptureFixture) -> None:
    """What was measured, and what it does, on one rank; where ranks wait the change that follows is logged."""
    caplog.set_level("INFO")
    for is_reporting, wait_ns in ((True, 10), (True, 500), (False, 10)):
        notices = Notices("mine", is_reporting)
        for step in (3, 11):
            notices.receive_losses([Row(step, compute_ns=1000, wait_ns=wait_ns, loss=2.0)])
    assert caplog.messages == [
        "job mine, step 3: under BSP the ranks wait for 0.01 times their computing time -> stays bsp"
    ]


def test_the_first_step_counts() -> None:
    """By the loss that was read later, or by the norm of the step's gradient."""
    notices = Notices("mine", True)
    notices.measure(8, None, [1.0])
    assert notices.unfit is None
    notices.measure(16, 3, [math.nan])
    notices.measure(24, 0, [math.nan])
    assert notices.unfit == 13
    by_norm = Notices("mine", True)
    by_norm.measure(16, None, [math.inf])
    assert by_norm.unfit == 16
