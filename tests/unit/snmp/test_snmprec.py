"""Recorded walks as text, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import Malformed
from timesyncd.snmp.snmprec import (
    COUNTER64,
    IP_ADDRESS,
    NUMBERS,
    OBJECT_ID,
    OCTETS,
    RecordedObject,
    format_snmprec,
    parse_snmprec,
)

WALK = """\
1.3.6.1.2.1.1.2.0|6|1.3.6.1.4.1.8072.3.2.10
1.3.6.1.2.1.1.3.0|67|4711
1.3.6.1.2.1.1.5.0|4|gm|a
1.3.6.1.2.1.2.2.1.6.1|4x|00a069010203
1.3.6.1.2.1.4.20.1.1.10.0.0.1|64|10.0.0.1
1.3.6.1.2.1.31.1.1.1.6.1|70|18446744073709551615
"""
ROWS = [
    RecordedObject((1, 3, 6, 1, 2, 1, 1, 2, 0), OBJECT_ID, "1.3.6.1.4.1.8072.3.2.10"),
    RecordedObject((1, 3, 6, 1, 2, 1, 1, 3, 0), 67, 4711),
    RecordedObject((1, 3, 6, 1, 2, 1, 1, 5, 0), OCTETS, b"gm|a"),
    RecordedObject((1, 3, 6, 1, 2, 1, 2, 2, 1, 6, 1), OCTETS, b"\x00\xa0\x69\x01\x02\x03"),
    RecordedObject((1, 3, 6, 1, 2, 1, 4, 20, 1, 1, 10, 0, 0, 1), IP_ADDRESS, b"\x0a\x00\x00\x01"),
    RecordedObject((1, 3, 6, 1, 2, 1, 31, 1, 1, 1, 6, 1), COUNTER64, 2**64 - 1),
]

oids = st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=8).map(lambda arcs: (1, 3, *arcs))
rows = st.one_of(
    st.builds(RecordedObject, oids, st.sampled_from(NUMBERS), st.integers(0, 2**31 - 1)),
    st.builds(RecordedObject, oids, st.just(OCTETS), st.binary(max_size=40) | st.text(max_size=20).map(str.encode)),
)


def test_each_type_is_written_as_others_write_it() -> None:
    """A walk as text, and the same text as a walk."""
    assert parse_snmprec(WALK) == ROWS
    assert format_snmprec(reversed(ROWS)) == WALK


@given(st.lists(rows, max_size=20, unique_by=lambda row: row.oid))
def test_what_is_written_reads_the_same(walk: list[RecordedObject]) -> None:
    """No octets are lost or changed, whatever they hold: line ends, bars, blanks at the ends."""
    assert parse_snmprec(format_snmprec(walk)) == sorted(walk, key=lambda row: row.oid)


def test_blanks_at_an_end_are_written_so_that_no_editor_loses_them() -> None:
    """Text that ends or begins with a blank goes as hexadecimal."""
    assert format_snmprec([RecordedObject((1, 3, 6), OCTETS, b"a ")]) == "1.3.6|4x|6120\n"


def test_comments_empty_lines_and_windows_line_ends_are_passed_over() -> None:
    """Files that people have edited are read too; a leading dot before an OID is no fault."""
    assert parse_snmprec("# a lab unit\r\n\r\n.1.3.6.1|2|5\r\n") == [RecordedObject((1, 3, 6, 1), 2, 5)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1.3.6.1|2", "not OID|type|value"),
        ("1.3.6.1|99|5", "type '99'"),
        ("1.3.6.1|2:numeric|5", "type '2:numeric'"),
        ("1.3.6.1|2|five", "five"),
        ("1.3.6.1|4x|0g", "hex"),
        ("iso.3|2|5", "iso"),
        ("1.-3|2|5", "'1.-3' is not an OID"),
        ("1.3.6.1|64|10.0.0.256", "256"),
        ("1.50.1|2|5", "'1.50.1' is not an OID"),
        ("1.3.6.1|6|enterprises", "enterprises"),
        ("1.3.6.1|6|1.3.6.1.99999999999", "is not an OID"),
    ],
)
def test_a_broken_line_is_named(line: str, words: str) -> None:
    """The error is one line that has the line's number and what is wrong with it."""
    with pytest.raises(Malformed, match="snmprec line 2: ") as raised:
        parse_snmprec(f"1.3.6.1.1|2|5\n{line}\n")

    assert words in str(raised.value)
