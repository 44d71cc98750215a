"""Query parameters: times, numbers, cursors."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.web.query import (
    MAX_TIME_NS,
    BadQuery,
    NodesQuery,
    TimeRangeQuery,
    decode_cursor,
    encode_cursor,
    parse_query,
    parse_time_ns,
)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1700000300000000001", 1_700_000_300_000_000_001),
        ("2026-03-01T12:00:00Z", 1_772_366_400_000_000_000),
        ("2026-03-01t13:30:00.000000001+01:30", 1_772_366_400_000_000_001),
        ("2026-03-01T12:00:00.1234567899Z", 1_772_366_400_123_456_789),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000_000),
        ("0001-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59Z", MAX_TIME_NS),
    ],
)
def test_a_time_is_read(text: str, ns: int) -> None:
    """RFC 3339 to the nanosecond, or nanoseconds since 1970; what no sample can be of is cut."""
    assert parse_time_ns(text) == ns


@pytest.mark.parametrize(
    "text", ["", "now", "-1", "1.5", "2026-03-01", "2026-03-01T12:00:00", "2026-02-30T12:00:00Z", "2026-03-01T12:00:61Z",
             "2026-03-01T12:00:00+24:00", "2026-03-01T12:00:00+01:60", "99999999999999999999", "١"]
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    """Never a guess: 400, with what is wanted."""
    with pytest.raises(BadQuery, match=r"^since = "):
        parse_query(TimeRangeQuery, [("since", text)])


@given(st.datetimes(datetime(1970, 1, 1), datetime(2255, 1, 1), timezones=st.just(UTC)))
def test_every_moment_is_read_as_it_is_written(at: datetime) -> None:
    """What the standard library writes means the same here."""
    assert parse_time_ns(at.isoformat()) == (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


@pytest.mark.parametrize("text", ["0", "1001", "1.0", "1_0", " 1", "+1", "", "١", "9" * 30])
def test_a_limit_is_a_whole_number_within_its_limits(text: str) -> None:
    """Digits alone, from 1 to 1,000."""
    with pytest.raises(BadQuery, match=r"^limit = "):
        parse_query(NodesQuery, [("limit", text)])


@given(st.tuples(st.integers(-(2**63), 2**63 - 1), st.from_regex("[a-z0-9.-]{1,64}", fullmatch=True)))
def test_a_cursor_leads_back_to_its_key(key: tuple[int, str]) -> None:
    """What names an item is read again as it was written."""
    assert decode_cursor(encode_cursor(key), (int, str)) == key


@given(st.text())
def test_a_cursor_of_anything_is_a_key_or_refused(text: str) -> None:
    """Nothing else can come of it, whatever somebody sends."""
    try:
        key = decode_cursor(text, (int, str))
    except BadQuery:
        return

    assert [type(part) for part in key] == [int, str]


@pytest.mark.parametrize("key", [("a",), (1, "a", 2), ("a", 1), (2**63, "a"), (True, "a"), (1, "a\n"), (1, "\ud800")])
def test_a_cursor_of_another_list_is_refused(key: tuple[int | str, ...]) -> None:
    """Its parts are as many and of such types as the list's order has, and fit the store."""
    with pytest.raises(BadQuery, match="cursor: not a cursor of this list"):
        decode_cursor(encode_cursor(key), (int, str))


def test_no_cursor_takes_us_too_deep() -> None:
    """Brackets in brackets are no cursor either."""
    with pytest.raises(BadQuery):
        decode_cursor(base64.urlsafe_b64encode(b"[" * 100_000).decode(), (str,))
