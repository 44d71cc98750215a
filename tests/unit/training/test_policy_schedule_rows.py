"""Rows as words: what one rank says arrives as it was said."""

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


def alike(said: Any, heard: Any) -> bool:
    return bool(said == heard) or (math.isnan(said) and math.isnan(heard))


@given(ROWS)
def test_a_row_arrives_as_it_was_said(row: Row) -> None:
    """In as many words as any other; what is no number stays none, and what is absent stays absent."""
    words = row.words()

    assert len(words) == ROW_WORDS
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert all(map(alike, dataclasses.astuple(row), dataclasses.astuple(Row.of(words))))


def test_a_row_says_little_by_default() -> None:
    """Absent is None, unknown is no number, and both arrive as that."""
    row = Row(step=3)
    assert all(map(alike, dataclasses.astuple(row), dataclasses.astuple(Row.of(row.words()))))
    assert (row.vote, row.wish, row.text, row.replica) == (False, 0, "", None)
    assert math.isnan(row.loss)


def test_a_text_may_fill_its_room() -> None:
    """parse lets none through that is longer, as it is written back."""
    assert Row.of(Row(0, text="x" * MAX_TEXT).words()).text == "x" * MAX_TEXT


def test_words_that_are_no_text_are_no_error() -> None:
    """What came over a network is shown, and refused by who parses it."""
    words = Row(0).words()
    words[-1] = -1
    assert Row.of(words).text.endswith("\ufffd")
