"""Recorded walks as text: what the simulator reads, from the probe that wrote it or from an editor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import Malformed
from timesyncd.simulation.grandmaster.snmprec import parse_snmprec
from timesyncd.simulation.grandmaster.wire import NULL, Object, Oid, Value, ValueTag
from timesyncd.snmp.snmprec import RecordedObject, format_snmprec
from timesyncd.snmp.values import format_oid

WALK = """\
1.3.6.1.2.1.1.2.0|6|1.3.6.1.4.1.8072.3.2.10
1.3.6.1.2.1.1.3.0|67|4711
1.3.6.1.2.1.1.5.0|4|gm|a
1.3.6.1.2.1.2.2.1.6.1|4x|00a069010203
1.3.6.1.2.1.4.20.1.1.10.0.0.1|64|10.0.0.1
1.3.6.1.2.1.31.1.1.1.6.1|70|18446744073709551615
"""
OBJECTS: list[Object] = [
    ((1, 3, 6, 1, 2, 1, 1, 2, 0), Value(ValueTag.OBJECT_ID, (1, 3, 6, 1, 4, 1, 8072, 3, 2, 10))),
    ((1, 3, 6, 1, 2, 1, 1, 3, 0), Value(ValueTag.TIME_TICKS, 4711)),
    ((1, 3, 6, 1, 2, 1, 1, 5, 0), Value(ValueTag.OCTETS, b"gm|a")),
    ((1, 3, 6, 1, 2, 1, 2, 2, 1, 6, 1), Value(ValueTag.OCTETS, b"\x00\xa0\x69\x01\x02\x03")),
    ((1, 3, 6, 1, 2, 1, 4, 20, 1, 1, 10, 0, 0, 1), Value(ValueTag.IP_ADDRESS, b"\x0a\x00\x00\x01")),
    ((1, 3, 6, 1, 2, 1, 31, 1, 1, 1, 6, 1), Value(ValueTag.COUNTER64, 2**64 - 1)),
]

oids = st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=8).map(lambda arcs: (1, 3, *arcs))
numbers = st.sampled_from(
    [ValueTag.INTEGER, ValueTag.COUNTER32, ValueTag.GAUGE32, ValueTag.TIME_TICKS, ValueTag.COUNTER64]
)
values = st.one_of(
    st.builds(Value, numbers, st.integers(0, 2**31 - 1)),
    st.builds(Value, st.just(ValueTag.OCTETS), st.binary(max_size=40) | st.text(max_size=20).map(str.encode)),
    st.builds(Value, st.just(ValueTag.OBJECT_ID), oids),
)


def test_each_type_is_read_as_others_write_it() -> None:
    """A walk of text as objects with their types."""
    assert parse_snmprec(WALK) == OBJECTS


def recorded(oid: Oid, value: Value) -> RecordedObject:
    """The object as the probe has it."""
    assert value.raw is not None
    return RecordedObject(oid, value.tag, format_oid(value.raw) if isinstance(value.raw, tuple) else value.raw)


@given(st.lists(st.tuples(oids, values), max_size=20, unique_by=lambda found: found[0]))
def test_what_the_probe_writes_reads_the_same(walk: list[Object]) -> None:
    """No octets are lost or changed, whatever they hold: line ends, bars, blanks at the ends."""
    written = format_snmprec(recorded(*found) for found in walk)

    assert parse_snmprec(written) == sorted(walk, key=lambda found: found[0])


def test_what_has_no_value_is_read() -> None:
    """NULL, and the OBJECT IDENTIFIER that means none."""
    assert parse_snmprec("1.3.6.1|5x|\n1.3.6.2|6|0.0\n") == [
        ((1, 3, 6, 1), NULL),
        ((1, 3, 6, 2), Value(ValueTag.OBJECT_ID, (0, 0))),
    ]


def test_comments_empty_lines_and_windows_line_ends_are_passed_over() -> None:
    """Files that people have edited are read too; a leading dot before an OID is no fault."""
    assert parse_snmprec("# a lab unit\r\n\r\n.1.3.6.1|2|5\r\n") == [((1, 3, 6, 1), Value(ValueTag.INTEGER, 5))]


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
        ("1.3.6.1|2|2147483648", "2147483648 of type INTEGER"),
        ("1.3.6.1|65|-1", "-1 of type COUNTER32"),
        ("1.3.6.1|64x|0a0000", "of type IP_ADDRESS"),
    ],
)
def test_a_broken_line_is_named(line: str, words: str) -> None:
    """The error is one line that has the line's number and what is wrong with it."""
    with pytest.raises(Malformed, match="snmprec line 2: ") as raised:
        parse_snmprec(f"1.3.6.1.1|2|5\n{line}\n")

    assert words in str(raised.value)
