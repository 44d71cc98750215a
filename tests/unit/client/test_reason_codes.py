"""The reason codes of the client's results: programs decide by them, so they follow one rule."""

from __future__ import annotations

import pytest

from timesyncd.client import (
    AlignmentReason,
    BarrierReason,
    PauseReason,
    PreflightReason,
    SlackReason,
    StepDelayReason,
    TranslationReason,
)

ENUMS = [
    AlignmentReason,
    BarrierReason,
    PauseReason,
    PreflightReason,
    SlackReason,
    StepDelayReason,
    TranslationReason,
]


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_a_code_is_its_name_in_lower_case(enum: type[AlignmentReason]) -> None:
    """On a JSON wire a code is the lower-case name of its member."""
    assert [code.value for code in enum] == [code.name.lower() for code in enum]


@pytest.mark.parametrize("reason", TranslationReason)
def test_a_translation_reason_has_a_sentence(reason: TranslationReason) -> None:
    """Each code has a sentence for people, and the same code text as a bound's reason."""
    assert reason.text
    assert reason.code == reason.value
