"""Rows as 64-bit words: what one rank sends arrives unchanged; and what rows show of ranks that are out of step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import SyncError
from timesyncd.training.policy.row import ROW_WORDS, Purpose, Row, check_in_step, check_passes
from timesyncd.training.policy.text import MAX_TEXT

WORD = st.integers(-(2**63) + 1, 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=MAX_TEXT).filter(
    lambda text: len(text.encode()) <= MAX_TEXT
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    "int": WORD,
    "int | None": st.none() | WORD,
    "Purpose": st.sampled_from(Purpose),
    "bool": st.booleans(),
    "str": TEXT,
    "float": st.floats(),
}
ROWS = st.builds(Row, **{field.name: OF_TYPE[field.type] for field in dataclasses.fields(Row)})


def is_same(sent: Any, received: Any) -> bool:
    return bool(sent == received) or (math.isnan(sent) and math.isnan(received))


@given(ROWS)
def test_a_row_arrives_unchanged(row: Row) -> None:
    """Every row has the same number of words; NaN stays NaN, and what is absent stays absent."""
    words = row.words()

    assert len(words) == ROW_WORDS
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert all(map(is_same, dataclasses.astuple(row), dataclasses.astuple(Row.from_words(words))))


def test_a_row_has_defaults() -> None:
    """Absent is None, unknown is NaN, and both arrive unchanged."""
    row = Row(step=3)
    assert all(map(is_same, dataclasses.astuple(row), dataclasses.astuple(Row.from_words(row.words()))))
    assert (row.vote, row.request_number, row.requested_policy, row.replica) == (False, 0, "", None)
    assert math.isnan(row.loss)


def test_a_policy_may_have_the_maximum_length() -> None:
    """`parse_policy` rejects a longer one."""
    assert Row.from_words(Row(0, requested_policy="x" * MAX_TEXT).words()).requested_policy == "x" * MAX_TEXT


def test_words_that_are_not_utf8_raise_no_error() -> None:
    """The row shows replacement characters, and `parse_policy` rejects them."""
    words = Row(0).words()
    words[-1] = -1
    assert Row.from_words(words).requested_policy.endswith("\ufffd")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([Row(5), Row(4, left_out=3)], "rank 1 is in step 4 and rank 0 is in step 5; .* steps; rank 1 left out one in step 3$"),
        ([Row(5, rounds=1), Row(5)], "rank 1 is in step 5, sends its measurements and has synchronized 0 times and rank 0 "),
        ([Row(5, Purpose.CHANGE), Row(5)], "rank 1 is in step 5, sends its .* and rank 0 is in step 5, changes the policy "),
    ],
)  # fmt: skip
def test_ranks_that_are_elsewhere_are_reported(rows: list[Row], text: str) -> None:
    """In another step, after another number of synchronizations, or about to do something else."""
    with pytest.raises(SyncError, match=text):
        check_in_step(rows)
    check_in_step([rows[0], rows[0]])


def test_an_update_that_was_left_out_is_reported() -> None:
    """By the backward passes of the ranks that have the same data-parallel group; others may take as many as they like."""
    rows = [Row(7, passes=8), Row(7, passes=9, left_out=6), Row(7, passes=30)]
    check_passes(rows, [0])
    check_passes(rows, [])
    with pytest.raises(
        SyncError,
        match="^rank 1 left out an optimizer step in step 6, or ran a backward pass more than .*: by step 7 it ran 9 .* 0 8;",
    ):
        check_passes(rows, [0, 1])
    with pytest.raises(SyncError, match="^rank 0 left out an optimizer step: by step 3 it left out 2 and rank 1 1;"):
        check_passes([Row(~3, empty=2), Row(~3, empty=1)], [0, 1])
