"""Rows as 64-bit words: what one rank sends arrives unchanged."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.schedule import ROW_WORDS, Row
from timesyncd.training.policy.text import MAX_TEXT

WORD = st.integers(-(2**63) + 1, 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=MAX_TEXT).filter(
    lambda text: len(text.encode()) <= MAX_TEXT
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    "int": WORD,
    "int | None": st.none() | WORD,
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
