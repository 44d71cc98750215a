"""Recorded walks as text: what the probe writes for the simulator to read."""

from __future__ import annotations

from timesyncd.snmp.snmprec import COUNTER64, IP_ADDRESS, OBJECT_ID, OCTETS, TIMETICKS, RecordedObject, format_snmprec

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
    RecordedObject((1, 3, 6, 1, 2, 1, 1, 3, 0), TIMETICKS, 4711),
    RecordedObject((1, 3, 6, 1, 2, 1, 1, 5, 0), OCTETS, b"gm|a"),
    RecordedObject((1, 3, 6, 1, 2, 1, 2, 2, 1, 6, 1), OCTETS, b"\x00\xa0\x69\x01\x02\x03"),
    RecordedObject((1, 3, 6, 1, 2, 1, 4, 20, 1, 1, 10, 0, 0, 1), IP_ADDRESS, b"\x0a\x00\x00\x01"),
    RecordedObject((1, 3, 6, 1, 2, 1, 31, 1, 1, 1, 6, 1), COUNTER64, 2**64 - 1),
]


def test_each_type_is_written_as_others_write_it() -> None:
    """A walk as text, in the order of OIDs."""
    assert format_snmprec(reversed(ROWS)) == WALK


def test_blanks_at_an_end_are_written_so_that_no_editor_loses_them() -> None:
    """Text that ends or begins with a blank goes as hexadecimal."""
    assert format_snmprec([RecordedObject((1, 3, 6), OCTETS, b"a ")]) == "1.3.6|4x|6120\n"
