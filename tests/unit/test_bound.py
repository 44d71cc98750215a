"""The bound's growth, held to the table that the page's twin is held to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypedDict

import pytest

from timesyncd.bound import Bound, Rate, Reason, Term, unbounded

RECORDINGS = Path(__file__).parents[1] / "recordings"


class Row(TypedDict):
    case: str
    bound_ns: int | None
    growth_ppb: int
    age_ns: int
    at_ns: int | None


TABLE: list[Row] = json.loads((RECORDINGS / "bound_growth.json").read_text())


@pytest.mark.parametrize("row", TABLE, ids=[row["case"] for row in TABLE])
def test_a_bound_grows_by_the_table(row: Row) -> None:
    """Bound.at gives each row's value, rounded up."""
    assert Bound(row["bound_ns"], row["growth_ppb"]).at(row["age_ns"]) == row["at_ns"]


def test_the_table_holds_in_every_number_of_json() -> None:
    """A JavaScript number holds each value of the table exactly, though not each product."""
    values = [value for row in TABLE for value in row.values() if isinstance(value, int)]

    assert max(map(abs, values)) < 2**53
    assert any(row["growth_ppb"] * row["age_ns"] > 2**53 for row in TABLE)


@pytest.mark.parametrize("limit_ns", [0, 4_999, 5_000, 5_001, 10_000, 10**15])
def test_the_age_at_a_limit_is_the_last_within_it(limit_ns: int) -> None:
    """The bound is within the limit at that age, and exceeds it one nanosecond later."""
    bound = Bound(5_000, 50_001)

    age_ns = bound.age_at(limit_ns)

    assert age_ns is not None
    at_ns, later_ns = bound.at(age_ns), bound.at(age_ns + 1)
    assert at_ns is not None and later_ns is not None
    assert at_ns <= limit_ns < later_ns


def test_a_bound_that_does_not_grow_reaches_no_limit() -> None:
    """Without growth there is no age at which the bound exceeds a limit, and an unbounded error has none to give."""
    assert Bound(5_000).age_at(6_000) is None
    with pytest.raises(ValueError, match="unbounded"):
        unbounded(Reason.NO_SAMPLE_YET).age_at(6_000)


def test_an_unbounded_error_stays_unbounded_against_another_clock() -> None:
    """A known difference to another clock makes no number of an unknown error, and the reason stays."""
    assert unbounded(Reason.NO_SAMPLE_YET).plus(500, 100) == unbounded(Reason.NO_SAMPLE_YET)


ERROR_BOUND_PAGE = Path(__file__).parents[2] / "docs" / "error-bound.md"


def test_the_segment_has_a_word_for_each_place_of_a_term() -> None:
    """The places run from 0 without a gap, so that no word of the segment belongs to two terms or to none."""
    places = sorted(term.segment_index for term in Term if term.segment_index is not None)

    assert places == list(range(len(places)))


@pytest.mark.parametrize("name", [*Term, *Rate])
def test_each_term_and_rate_is_defined_in_the_docs(name: Term | Rate) -> None:
    """docs/error-bound.md has a row of a table for it."""
    defined = re.findall(r"^\| `(\w+)` \|", ERROR_BOUND_PAGE.read_text(), re.MULTILINE)

    assert name in defined
