"""Decoders turn what agents really send into neutral values."""

from __future__ import annotations

import pytest

from timesyncd.drivers.timeprovider._decoders import DECODERS, KINDS, Unknown, Value
from timesyncd.drivers.timeprovider._profiles import load
from timesyncd.errors import Malformed
from timesyncd.sample import Position
from timesyncd.snmp.values import Raw

pytestmark = pytest.mark.disable_socket


def decoded(name: str, raw: Raw) -> Value:
    return DECODERS[name](raw, {})


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("text", b" TimeProvider 4100\0", "TimeProvider 4100"),
        ("text", b"\x1b[31mred\xb5s", "[31mred\xb5s"),
        ("lines", b"GPS Antenna : ok\r\nGPS Current : \x0724mA\n", "GPS Antenna : ok\nGPS Current :  24mA"),
        ("integer", 37, 37),
        ("leading_integer", 3, 3),
        ("leading_integer", b" 12 %", 12),
        ("leading_integer", b"n/a", Unknown("undecodable(b'n/a')")),
        ("ticks", 12_345, 123),
        ("oid", "1.3.6.1", "1.3.6.1"),
        ("truth", 1, True),
        ("truth", 2, False),
        ("truth", 0, False),
        ("low_16_bits", 0x4E5D - 0x10000, 0x4E5D),
        ("low_16_bits", 0x4E5D, 0x4E5D),
        ("identity", bytes.fromhex("00a069fffe112233"), "00a069.fffe.112233"),
        ("identity", b"00:A0:69:FF:FE:11:22:33", "00a069.fffe.112233"),
        ("identity", b"0x00A069FFFE112233", "00a069.fffe.112233"),
        ("identity", b"n/a", Unknown("undecodable(b'n/a')")),
        ("port_identity", bytes.fromhex("00a069fffe1122330001"), "00a069.fffe.112233"),
        ("port_identity", b"none", Unknown("undecodable(b'none')")),
        ("clock_class", 140, 140),
        ("clock_class", b"6 (locked)", 6),
        ("clock_class", b"n/a", Unknown("undecodable(b'n/a')")),
        ("clock_class", b"1999", Unknown("undecodable(b'1999')")),
        ("clock_class", 300, Unknown("undecodable(300)")),
        ("clock_accuracy", 0x21, 0x21),
        ("clock_accuracy", b"0x21", 0x21),
        ("clock_accuracy", b"within 100 ns", 0x21),
        ("clock_accuracy", b"2.5 us", 0x24),
        ("clock_accuracy", b"23", Unknown("undecodable(b'23')")),
        ("clock_accuracy", b"> 10 s", Unknown("undecodable(b'> 10 s')")),
        ("nanoseconds", b"-12.6 ns", -13),
        ("nanoseconds", 5, 5),
        ("nanoseconds", b"", Unknown("undecodable(b'')")),
        ("time_interval", (-100 * 65536).to_bytes(8, "big", signed=True), -100),
        ("time_interval", b"-1234567", -1_234_567),
        ("time_interval", b"12 ns\0", 12),
        ("time_interval", bytes(8), 0),
        ("metres", b"+0058.1", 58.1),
        ("metres", b"-3 m", -3.0),
        ("metres", b"high", Unknown("undecodable(b'high')")),
        ("degrees", b"N52:31:12.00", 52.52),
        ("degrees", b"W122:42:36.00", -122.71),
        ("degrees", b"S00:00:36.00", -0.01),
        ("degrees", b"N52:61:00.00", Unknown("undecodable(b'N52:61:00.00')")),
        ("degrees", b"E190:00:00.00", Unknown("undecodable(b'E190:00:00.00')")),
        ("position", b"52 31 12.000  1 122 42 36.000 -1 58.1", Position(52.52, -122.71, 58.1)),
        ("position", b"33 51 36.000 -1 151 12 36.000 1 -3.5", Position(-33.86, 151.21, -3.5)),
        ("position", b" 52 31 12.000 1 0 0 36.000 -1 0\0", Position(52.52, -0.01, 0.0)),
        ("position", b"52 31 12.000 0 122 42 36.000 1 5", Unknown("undecodable(b'52 31 12.000 0 122 42 36.000 1 5')")),
        ("position", b"92 31 12.000 1 122 42 36.000 1 5", Unknown("undecodable(b'92 31 12.000 1 122 42 36.000 1 5')")),
        ("position", b"+ 52 31 12.000 - 122 42 36.000 5", Unknown("undecodable(b'+ 52 31 12.000 - 122 42 36.000 5')")),
        ("position", b"no fix", Unknown("undecodable(b'no fix')")),
        ("metres", b"58.1" + b" " * 300 + b"x" * 60_000, 58.1),
        ("nanoseconds", b"5" + b" " * 300 + b"x" * 60_000, 5),
    ],
)
def test_what_agents_send_is_understood(name: str, raw: Raw, value: Value) -> None:
    """Each known habit of an agent has its decoding, and what is not understood is reported as what came."""
    assert decoded(name, raw) == value


def test_the_position_of_the_mib_s_own_example() -> None:
    """S650 MIB, gnssPosition: the sign follows its angle, 1 north or east; seconds are decimal; the height is in metres."""
    decoded_position = decoded("position", b"12 55 57.387  1 77 36 13.809  1 881.61")

    assert isinstance(decoded_position, Position)
    assert decoded_position.latitude_deg == pytest.approx(12 + 55 / 60 + 57.387 / 3600, abs=1e-9)
    assert decoded_position.longitude_deg == pytest.approx(77 + 36 / 60 + 13.809 / 3600, abs=1e-9)
    assert decoded_position.height_m == 881.61


def test_an_offset_in_the_wrong_byte_order_is_not_believed() -> None:
    """A hundred nanoseconds sent little-endian would be 1.7 s: no offset of a grandmaster."""
    raw = (100 * 65536).to_bytes(8, "little")

    assert isinstance(decoded("time_interval", raw), Unknown)


def test_an_unknown_integer_is_reported_by_its_number() -> None:
    """An enumeration that a newer firmware extends gives unknown(n), never a fault or a zero."""
    state = load("tp5000e").filling("clock_state")[0]

    assert state.decode(12, (2, 1)) == Unknown("unknown(12)")


@pytest.mark.parametrize(
    ("name", "raw"),
    [("integer", b"37"), ("enum", b"4"), ("text", 4), ("oid", b"1.3"), ("identity", 7), ("integer", 2**63)],
)
def test_a_wrong_type_is_malformed(name: str, raw: Raw) -> None:
    """A value of another SNMP type than the MIB's is a broken answer, not a value."""
    with pytest.raises(Malformed, match="instead of an? "):
        decoded(name, raw)


def test_every_decoder_has_its_kind() -> None:
    """What a decoder makes is known before it is used, so that a profile cannot fill a field with another kind of value."""
    assert set(KINDS) == set(DECODERS)
