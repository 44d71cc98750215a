"""The code of a reading without a sample."""

from __future__ import annotations

import pytest

from timesyncd.sample import NoSample, NoSampleCause


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"stepped": True, "restarted": True, "change": NoSampleCause.TWO_PORTS_FOLLOW}, NoSampleCause.CLOCK_STEPPED),
        ({"restarted": True, "change": NoSampleCause.TWO_PORTS_FOLLOW}, NoSampleCause.SOURCE_RESTARTED),
        ({"change": NoSampleCause.TWO_PORTS_FOLLOW}, NoSampleCause.TWO_PORTS_FOLLOW),
        ({}, NoSampleCause.NO_VALID_SAMPLE),
    ],
)
def test_a_step_is_the_cause_before_a_restart_and_a_failed_poll(
    changes: dict[str, object], cause: NoSampleCause
) -> None:
    """Of several causes at once, the one that invalidates the most is the code."""
    reading = NoSample("ptp", 1, "no sample", poll_failure=NoSampleCause.NO_VALID_SAMPLE, **changes)  # type: ignore[arg-type]

    assert reading.cause is cause
