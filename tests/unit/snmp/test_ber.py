"""The BER reader against pyasn1's, and against octets that no agent should send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyasn1.codec.ber import decoder, encoder
from pyasn1.error import PyAsn1Error
from pyasn1.type import univ
from pyasn1.type.error import ValueConstraintError
from pysnmp.proto import rfc1902
from pysnmp.proto.api import v2c
from pysnmp.proto.rfc1905 import endOfMibView, noSuchInstance, noSuchObject, unSpecified

from timesyncd.errors import Malformed
from timesyncd.snmp import Oid, Opaque, Raw, ber
from timesyncd.snmp.messages import (
    COUNTER64,
    END_OF_MIB_VIEW,
    GAUGE32,
    OPAQUE,
    Pdu,
    PduType,
    decode_pdu,
    encode_pdu,
    encode_request,
    encode_value,
)

ABSENT = (noSuchObject, noSuchInstance, endOfMibView, unSpecified)

oids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30).map(lambda arcs: (1, 3, *arcs))
values = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(rfc1902.Integer32),
    st.binary(max_size=300).map(rfc1902.OctetString),
    oids.map(rfc1902.ObjectIdentifier),
    st.binary(min_size=4, max_size=4).map(lambda octets: rfc1902.IpAddress(hexValue=octets.hex())),
    st.integers(0, 2**32 - 1).map(rfc1902.Counter32),
    st.integers(0, 2**32 - 1).map(rfc1902.Gauge32),
    st.integers(0, 2**32 - 1).map(rfc1902.TimeTicks),
    st.binary(max_size=300).map(rfc1902.Opaque),
    st.integers(0, 2**64 - 1).map(rfc1902.Counter64),
    st.sampled_from(ABSENT),
)
varbinds = st.lists(st.tuples(oids, values), max_size=8)
numbers = st.integers(-(2**31), 2**31 - 1)


def plain(value: Any) -> Raw | None:
    """What a value of pysnmp is in ours."""
    if any(value.isSameTypeWith(absent) for absent in ABSENT):
        return None
    if isinstance(value, univ.ObjectIdentifier):
        return str(value)
    return int(value) if isinstance(value, univ.Integer) else bytes(value)


def by_pyasn1(octets: bytes) -> list[tuple[Oid, Raw | None]]:
    response, rest = decoder.decode(octets, asn1Spec=v2c.ResponsePDU())
    if rest:
        raise PyAsn1Error("octets too many")
    return [(tuple(oid), plain(value)) for oid, value in v2c.apiPDU.get_varbinds(response)]


def by_us(octets: bytes) -> Pdu:
    reader = ber.Reader(octets)
    pdu = decode_pdu(reader)
    reader.close("the PDU")
    return pdu


def varbinds_or_error(octets: bytes) -> object:
    try:
        return by_us(octets).varbinds
    except Malformed as error:
        return error


def response(number: int, variables: list[tuple[Oid, Any]]) -> bytes:
    pdu = v2c.ResponsePDU()
    v2c.apiPDU.set_defaults(pdu)
    v2c.apiPDU.set_request_id(pdu, number)
    v2c.apiPDU.set_varbinds(pdu, [(rfc1902.ObjectName(oid), value) for oid, value in variables])
    return bytes(encoder.encode(pdu))


@given(numbers, varbinds)
def test_what_pyasn1_writes_is_read_as_it_was_meant(number: int, variables: list[tuple[Oid, Any]]) -> None:
    """Every value of every SNMP type comes back."""
    pdu = by_us(response(number, variables))

    assert (pdu.kind, pdu.number, pdu.status, pdu.position) == (PduType.RESPONSE, number, 0, 0)
    assert [(oid, raw) for oid, _, raw in pdu.varbinds] == [(oid, plain(value)) for oid, value in variables]


@given(numbers, varbinds)
def test_pyasn1_reads_what_an_agent_answers(number: int, variables: list[tuple[Oid, Any]]) -> None:
    """Every value of every SNMP type, as we write it; with its type, so that it is the same when we read it again."""
    pdu = by_us(response(number, variables))
    written = encode_pdu(pdu)

    assert by_pyasn1(written) == [(oid, plain(value)) for oid, value in variables]
    assert by_us(written) == pdu


@pytest.mark.parametrize(
    ("tag", "raw", "octets"),
    [
        (ber.INTEGER, 0, "02 01 00"),
        (ber.INTEGER, 127, "02 01 7f"),
        (ber.INTEGER, 128, "02 02 00 80"),
        (ber.INTEGER, -1, "02 01 ff"),
        (ber.INTEGER, -128, "02 01 80"),
        (ber.INTEGER, -129, "02 02 ff 7f"),
        (GAUGE32, 2**32 - 1, "42 05 00 ff ff ff ff"),
        (COUNTER64, 2**64 - 1, "46 09 00 ff ff ff ff ff ff ff ff"),
        (ber.OCTETS, b"a" * 127, "04 7f" + " 61" * 127),
        (ber.OCTETS, b"a" * 128, "04 81 80" + " 61" * 128),
        (ber.OCTETS, b"a" * 300, "04 82 01 2c" + " 61" * 300),
        (ber.OID, "1.3.6.1.4.1.9070.128", "06 09 2b 06 01 04 01 c6 6e 81 00"),
        (ber.NULL, None, "05 00"),
        (END_OF_MIB_VIEW, None, "82 00"),
    ],
)
def test_values_take_their_shortest_form(tag: int, raw: Raw | None, octets: str) -> None:
    """X.690 section 8.3.2 requires it of an INTEGER; pyasn1 gives -128 one octet too many, so it is no oracle here."""
    assert encode_value(tag, raw) == bytes.fromhex(octets)


@given(
    varbinds, st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 5)
)
def test_damaged_octets_are_malformed_or_read_as_pyasn1_reads_them(
    variables: list[tuple[Oid, Any]], damage: list[tuple[int, int]], lost: int
) -> None:
    """Whatever a few wrong octets make of a response, a value is read as pyasn1 reads it, or is kept as opaque octets."""
    octets = bytearray(response(7, variables))
    for position, octet in damage:
        octets[position % len(octets)] = octet
    damaged = bytes(octets[: len(octets) - lost])
    try:
        pdu = by_us(damaged)
    except Malformed:
        return
    if pdu.kind is not PduType.RESPONSE:
        return
    try:
        expected = by_pyasn1(damaged)
    except ValueConstraintError:
        return  # a counter without its leading 0
    except PyAsn1Error:
        assert any(isinstance(raw, Opaque) for _, _, raw in pdu.varbinds)
        return

    assert len(pdu.varbinds) == len(expected)
    assert all(
        oid == other and (isinstance(raw, Opaque) or raw == theirs)
        for (oid, _, raw), (other, theirs) in zip(pdu.varbinds, expected, strict=True)
    )


@given(st.binary(max_size=200))
def test_any_octets_at_all(octets: bytes) -> None:
    """Nothing but Malformed is raised."""
    try:
        by_us(octets)
    except Malformed as error:
        assert str(error) != ""


@given(numbers, st.lists(oids, max_size=5), st.sampled_from([PduType.GET, PduType.GET_NEXT]))
def test_pyasn1_reads_what_we_ask(number: int, asked: list[Oid], kind: PduType) -> None:
    """GET and GETNEXT are what the standard's own grammar states."""
    spec = v2c.GetRequestPDU() if kind is PduType.GET else v2c.GetNextRequestPDU()

    request, rest = decoder.decode(encode_request(kind, number, asked), asn1Spec=spec)

    assert rest == b""
    assert int(v2c.apiPDU.get_request_id(request)) == number
    assert [tuple(oid) for oid, _ in v2c.apiPDU.get_varbinds(request)] == asked


def test_pyasn1_reads_our_getbulk() -> None:
    """Non-repeaters are 0, and the repetitions are those asked for."""
    octets = encode_request(PduType.GET_BULK, 5, [(1, 3, 6, 1)], 12)

    request, _ = decoder.decode(octets, asn1Spec=v2c.GetBulkRequestPDU())

    assert int(v2c.apiBulkPDU.get_non_repeaters(request)) == 0
    assert int(v2c.apiBulkPDU.get_max_repetitions(request)) == 12


@pytest.mark.parametrize(
    ("octets", "value"),
    [("4304 f0000000", 0xF0000000), ("4305 00f0000000", 0xF0000000), ("4608 f000000000000000", 0xF000000000000000)],
)
def test_a_counter_without_its_leading_zero(octets: str, value: int) -> None:
    """Many agents forget it, and the value is plain all the same."""
    variable = ber.encode(ber.SEQUENCE, ber.encode_oid((1, 3, 6)) + bytes.fromhex(octets))
    body = b"\x02\x01\x07\x02\x01\x00\x02\x01\x00" + ber.encode(ber.SEQUENCE, variable)

    assert [raw for _, _, raw in by_us(ber.encode(PduType.RESPONSE, body)).varbinds] == [value]


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        ("", "truncated"),
        ("a2", "truncated"),
        ("a280", "length"),
        ("a28500000000", "length"),
        ("a27f", "beyond"),
        ("a20c020101020100020100300000 00", "unexpected octets after the variables"),
        ("a20b020101020100020100300000", "unexpected octets after the PDU"),
        ("a303020101", "0xa3"),
        ("a200", "truncated"),
        ("a20b0201010201000201003001", "beyond"),
    ],
)
def test_lying_lengths_are_named(octets: str, message: str) -> None:
    """Truncated, indefinite, too long, too much: each is reported."""
    with pytest.raises(Malformed, match=message):
        by_us(bytes.fromhex(octets))


@pytest.mark.parametrize(
    "value",
    [
        "0200", "02050100000000", "020a00000000000000000001", "4101ff", "41050100000000", "4003010203", "800100", "810100",
        "0600", "060180", "06028001", "06062b9080808000", "470101", "450101", "030101",
    ],
)  # fmt: skip
def test_a_value_that_no_agent_should_send_is_opaque(value: str) -> None:
    """Its whole element is kept, and it never passes for text, a number or "no such object"."""
    variable = ber.encode(ber.SEQUENCE, ber.encode_oid((1, 3, 6)) + bytes.fromhex(value))
    body = b"\x02\x01\x07\x02\x01\x00\x02\x01\x00" + ber.encode(ber.SEQUENCE, variable)

    assert varbinds_or_error(ber.encode(PduType.RESPONSE, body)) == [((1, 3, 6), OPAQUE, bytes.fromhex(value))]


def test_an_end_of_the_mib_with_a_body_is_an_end() -> None:
    """A walk must not go on behind it."""
    variable = ber.encode(ber.SEQUENCE, ber.encode_oid((1, 3, 6)) + b"\x82\x01\x00")
    body = b"\x02\x01\x07\x02\x01\x00\x02\x01\x00" + ber.encode(ber.SEQUENCE, variable)

    assert varbinds_or_error(ber.encode(PduType.RESPONSE, body)) == [((1, 3, 6), END_OF_MIB_VIEW, None)]


def test_octets_after_a_value_are_malformed() -> None:
    """A variable is a pair; where it holds more, it is unknown what is the value."""
    variable = ber.encode(ber.SEQUENCE, ber.encode_oid((1, 3, 6)) + b"\x05\x00\xff")
    body = b"\x02\x01\x07\x02\x01\x00\x02\x01\x00" + ber.encode(ber.SEQUENCE, variable)

    with pytest.raises(Malformed, match="not a pair"):
        by_us(ber.encode(PduType.RESPONSE, body))


def test_an_oid_that_ber_cannot_encode() -> None:
    """It is a fault of ours, not of the wire."""
    with pytest.raises(ValueError, match="not an OBJECT IDENTIFIER"):
        ber.encode_oid((1, 40))
