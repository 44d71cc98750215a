"""The simulator's SNMP, which is pysnmp's, against the daemon's own: octet by octet, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timesyncd.errors import Malformed, Refused
from timesyncd.simulation.grandmaster.wire import (
    AUTH,
    MAX_SIZE,
    NULL,
    PRIV,
    REPORTABLE,
    AuthoritativeEngine,
    AuthProtocol,
    Object,
    Oid,
    PduKind,
    PrivProtocol,
    ScopedPdu,
    UsmKeys,
    UsmUser,
    Value,
    ValueTag,
    WirePdu,
    decode_v2c,
    decode_v3,
    encode_v2c,
    encode_v3,
    encode_varbind,
    keys_at,
)
from timesyncd.snmp import User, format_oid, messages, security
from timesyncd.snmp.messages import Pdu, PduType, Varbind, decode_pdu, encode_pdu
from timesyncd.snmp.security import LocalizedKeys, MasterKeys

ENGINE = AuthoritativeEngine(bytes.fromhex("8000236e0300b0ae010203"), 3, 1_000)
PAIRS = list(product(get_args(AuthProtocol), get_args(PrivProtocol)))
SYS_NAME: Oid = (1, 3, 6, 1, 2, 1, 1, 5, 0)
QUESTION = WirePdu(PduKind.GET, 4711, 0, 0, ((SYS_NAME, NULL),))
#: pyasn1 gives these one octet too many, so the two codecs differ in length alone.
LONGER = [-(2 ** (8 * octets - 1)) for octets in range(1, 5)]

oids = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30).map(lambda arcs: (1, 3, *arcs))
values = st.one_of(
    st.builds(Value, st.just(ValueTag.INTEGER), st.integers(-(2**31), 2**31 - 1).filter(lambda n: n not in LONGER)),
    st.builds(Value, st.sampled_from([ValueTag.OCTETS, ValueTag.OPAQUE]), st.binary(max_size=300)),
    st.builds(Value, st.just(ValueTag.OBJECT_ID), oids),
    st.builds(Value, st.just(ValueTag.IP_ADDRESS), st.binary(min_size=4, max_size=4)),
    st.builds(
        Value,
        st.sampled_from([ValueTag.COUNTER32, ValueTag.GAUGE32, ValueTag.TIME_TICKS]),
        st.integers(0, 2**32 - 1),
    ),
    st.builds(Value, st.just(ValueTag.COUNTER64), st.integers(0, 2**64 - 1)),
    st.builds(
        Value,
        st.sampled_from([ValueTag.NULL, ValueTag.NO_SUCH_OBJECT, ValueTag.NO_SUCH_INSTANCE, ValueTag.END_OF_MIB_VIEW]),
        st.none(),
    ),
)
counts = st.integers(0, 2**31 - 1)
#: No kind of SET: the daemon's codec has none on purpose.
pdus = st.builds(
    WirePdu,
    st.sampled_from([kind for kind in PduKind if kind is not PduKind.SET]),
    counts,
    counts,
    counts,
    st.lists(st.tuples(oids, values), max_size=6).map(tuple),
)
engines = st.builds(
    AuthoritativeEngine, st.binary(min_size=5, max_size=32).filter(lambda at: bytes(12) not in at), counts, counts
)
names = st.binary(max_size=32).filter(lambda name: bytes(12) not in name)


@pytest.fixture(scope="module", autouse=True)
def same_size() -> Iterator[None]:
    """Both ends say that they take messages of the same size; else no octets could be the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(security, "_MAX_SIZE", MAX_SIZE)
        yield


def ours(pdu: WirePdu) -> Pdu:
    """The same PDU in the daemon's types."""
    return Pdu(PduType(pdu.kind), pdu.number, pdu.status, pdu.position, [varbind(found) for found in pdu.varbinds])


def varbind(found: Object) -> Varbind:
    oid, (tag, raw) = found
    return Varbind(oid, tag, format_oid(raw) if isinstance(raw, tuple) else raw)


def our_engine(engine: AuthoritativeEngine) -> security.SnmpEngine:
    return security.SnmpEngine(engine.engine_id, engine.boots, engine.time)


@lru_cache
def keys_of(auth: AuthProtocol, priv: PrivProtocol) -> tuple[UsmKeys, LocalizedKeys]:
    """The keys of one user at ENGINE, of the simulator and of the daemon."""
    secrets = ("eva", auth, "a pass phrase", priv, "another phrase")
    return keys_at(UsmUser(*secrets), ENGINE.engine_id), MasterKeys(User(*secrets)).at(ENGINE.engine_id)


@given(st.binary(max_size=40), pdus)
def test_v2c_messages_are_the_same_octets(community: bytes, pdu: WirePdu) -> None:
    """Every kind of PDU with every type of value: what one codec writes, the other writes too, and reads."""
    written = encode_v2c(community, pdu)
    read, inside = messages.parse(written)

    assert written == messages.message(community, encode_pdu(ours(pdu)))
    assert (read, decode_pdu(inside)) == (community, ours(pdu))
    assert decode_v2c(written) == (community, pdu)


@pytest.mark.parametrize("number", LONGER)
def test_an_integer_with_an_octet_too_many_is_read(number: int) -> None:
    """pyasn1 does not write -128 in its shortest form, as some agents do not; the daemon reads it all the same."""
    pdu = WirePdu(PduKind.RESPONSE, 7, 0, 0, ((SYS_NAME, Value(ValueTag.INTEGER, number)),))
    written = encode_v2c(b"public", pdu)

    assert decode_pdu(messages.parse(written)[1]) == ours(pdu)
    assert decode_v2c(messages.message(b"public", encode_pdu(ours(pdu)))) == (b"public", pdu)
    assert len(written) == len(messages.message(b"public", encode_pdu(ours(pdu)))) + 1


@given(counts, st.booleans(), engines, names, st.binary(max_size=32), pdus)
def test_open_v3_messages_are_the_same_octets(
    number: int, reportable: bool, engine: AuthoritativeEngine, user: bytes, context: bytes, pdu: WirePdu
) -> None:
    """Discovery and reports: neither signed nor encrypted."""
    scoped = ScopedPdu(engine.engine_id, context, pdu)
    flags = REPORTABLE if reportable else 0
    written = encode_v3(number, flags, engine, user, None, scoped)
    message = decode_v3(written)

    assert written == security.plain(number, reportable, our_engine(engine), user, our_scoped(scoped))
    assert (message.number, message.flags, message.engine, message.user) == (number, flags, engine, user)
    assert (message.digest, message.salt, message.scoped(None)) == (b"", b"", scoped)


def our_scoped(scoped: ScopedPdu) -> bytes:
    return security.scoped_pdu(scoped.engine_id, scoped.context, encode_pdu(ours(scoped.pdu)))


@pytest.mark.parametrize("auth", get_args(AuthProtocol))
@settings(max_examples=20)
@given(counts, counts, pdus)
def test_signed_v3_messages_are_the_same_octets(auth: AuthProtocol, number: int, time: int, pdu: WirePdu) -> None:
    """With each digest: its key, its place, its length. Both ends believe it."""
    simulated, own = keys_of(auth, "aes128")
    scoped, engine = ScopedPdu(ENGINE.engine_id, b"", pdu), replace(ENGINE, time=time)
    written = encode_v3(number, AUTH, engine, b"eva", simulated, scoped)

    assert written == security.signed(number, our_engine(engine), b"eva", own, our_scoped(scoped))
    assert security.parse(written).verify(own)
    assert decode_v3(written).is_signed_by(simulated)
    assert decode_v3(written).scoped(None) == scoped


@pytest.mark.parametrize(("auth", "priv"), PAIRS)
@settings(max_examples=20)
@given(counts, counts, pdus)
def test_encrypted_v3_messages_are_the_same_octets(
    auth: AuthProtocol, priv: PrivProtocol, number: int, time: int, pdu: WirePdu
) -> None:
    """With every pair of digest and cipher, given the same salt; either end decrypts what the other encrypted."""
    simulated, own = keys_of(auth, priv)
    scoped, engine = ScopedPdu(ENGINE.engine_id, b"lab", pdu), replace(ENGINE, time=time)
    written = encode_v3(number, AUTH | PRIV, engine, b"eva", simulated, scoped)
    message = security.parse(written)
    own._salt = int.from_bytes(message.salt, "big") - 1  # the daemon's next one is this message's

    assert written == security.seal(number, False, our_engine(engine), b"eva", own, our_scoped(scoped))
    assert message.verify(own)
    assert security.open_context(message.scoped(own))[0] == b"lab"
    assert decode_pdu(security.open_scoped(message.scoped(own))) == ours(pdu)
    sealed = decode_v3(security.seal(number, True, our_engine(engine), b"eva", own, our_scoped(scoped)))
    assert (sealed.number, sealed.flags, sealed.engine) == (number, AUTH | PRIV | REPORTABLE, engine)
    assert sealed.is_signed_by(simulated)
    assert sealed.scoped(simulated) == scoped


def test_a_salt_never_repeats() -> None:
    """Two messages with one key are encrypted differently."""
    simulated, _ = keys_of("sha256", "aes128")
    scoped = ScopedPdu(ENGINE.engine_id, b"", QUESTION)
    first, second = (decode_v3(encode_v3(1, AUTH | PRIV, ENGINE, b"eva", simulated, scoped)) for _ in range(2))

    assert first.salt != second.salt
    assert first.data != second.data


@pytest.mark.parametrize("auth", get_args(AuthProtocol))
def test_a_wrong_digest_is_refused(auth: AuthProtocol) -> None:
    """Changed, cut, absent, of another pass phrase, or over other octets."""
    simulated, _ = keys_of(auth, "aes128")
    stranger = keys_at(UsmUser("eva", auth, "wrong pass phrase", "aes128", "another phrase"), ENGINE.engine_id)
    written = encode_v3(7, AUTH, ENGINE, b"eva", simulated, ScopedPdu(ENGINE.engine_id, b"", QUESTION))
    message = decode_v3(written)
    digest = message.digest

    assert message.is_signed_by(simulated)
    assert not message.is_signed_by(stranger)
    assert not replace(message, digest=digest[:-1]).is_signed_by(simulated)
    assert not replace(message, digest=b"").is_signed_by(simulated)
    for wrong in (written.replace(digest, digest[::-1]), written[:-3] + b"\x01" + written[-2:]):
        assert not decode_v3(wrong).is_signed_by(simulated)


@pytest.mark.parametrize(
    ("boots", "time", "is_in_window"),
    [(3, 850, True), (3, 1_150, True), (3, 849, False), (3, 1_151, False), (2, 1_000, False), (4, 1_000, False)],
)
def test_the_time_window_has_150_seconds_each_way(boots: int, time: int, is_in_window: bool) -> None:
    """And no other boots (RFC 3414 section 3.2, 7a)."""
    assert ENGINE.agrees(replace(ENGINE, boots=boots, time=time)) is is_in_window


def test_a_wrong_privacy_key_gives_no_pdu() -> None:
    """The digest is right, and what is decrypted is none."""
    simulated, _ = keys_of("sha256", "aes128")
    stranger = keys_at(UsmUser("eva", "sha256", "a pass phrase", "aes128", "wrong phrase"), ENGINE.engine_id)
    scoped = ScopedPdu(ENGINE.engine_id, b"", QUESTION)
    message = decode_v3(encode_v3(7, AUTH | PRIV, ENGINE, b"eva", stranger, scoped))

    assert message.is_signed_by(simulated)
    for keys in (simulated, None):
        with pytest.raises(Malformed):
            message.scoped(keys)
    with pytest.raises(Malformed, match="the salt has 7 octets"):
        replace(message, salt=message.salt[1:]).scoped(stranger)


V2C = encode_v2c(b"public", QUESTION)
V3 = encode_v3(7, REPORTABLE, ENGINE, b"eva", None, ScopedPdu(b"", b"", QUESTION))


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"\x30",
        b"GET / HTTP/1.1",
        V2C[:-1],
        V2C + b"\x00",
        b"\x30\x80" + V2C[2:] + b"\x00\x00",
        b"\x30\x84\x7f\xff\xff\xff" + V2C[2:],
        b"\x30\x8a" + b"\xff" * 10 + V2C[2:],
        V2C.replace(b"\x02\x01\x01", b"\x02\x01\x00"),
        V2C.replace(b"\xa0", b"\xa4"),
        V2C.replace(b"\x05\x00", b"\x05\x01"),
        V2C.replace(b"\x05\x00", b"\x47\x00"),
        V2C.replace(b"\x06\x08", b"\x04\x08"),
        V3,
    ],
    ids=[
        "nothing", "one octet", "HTTP", "cut", "an octet after it", "indefinite length", "length of 2 GiB", "length of 80 bits",
        "version 1", "trap of version 1", "NULL with content", "unknown type", "no OID", "version 3",
    ],
)  # fmt: skip
def test_what_is_no_v2c_message_is_malformed(datagram: bytes) -> None:
    """RFC 3417 section 8 allows definite lengths alone; nothing may follow."""
    with pytest.raises(Malformed):
        decode_v2c(datagram)


@pytest.mark.parametrize(
    "datagram",
    [
        V3[:-1],
        V3 + b"\x00",
        V3.replace(b"\x04\x01\x04\x02\x01\x03", b"\x04\x01\x02\x02\x01\x03"),
        V3.replace(b"\x04\x01\x04\x02\x01\x03", b"\x04\x01\x03\x02\x01\x03"),
        V3.replace(b"\x04\x01\x04\x02\x01\x03", b"\x04\x01\x04\x02\x01\x02"),
        V3.replace(b"\x04\x01\x04\x02\x01\x03", b"\x04\x01\x04\x02\x01\x04"),
        V3.replace(b"\x02\x01\x03\x30", b"\x02\x01\x04\x30", 1),
        V3.replace(ENGINE.engine_id, bytes(12)[: len(ENGINE.engine_id)]).replace(b"\x04\x0b", b"\x04\x0c"),
        V2C,
    ],
    ids=[
        "cut", "an octet after it", "privacy without authentication", "encrypted and is not", "security model of v2c",
        "another security model", "version 4", "security parameters of another length", "version 2c",
    ],
)  # fmt: skip
def test_what_is_no_v3_message_is_malformed(datagram: bytes) -> None:
    """What the header says must hold, and the security model is USM."""
    with pytest.raises(Malformed):
        decode_v3(datagram)


def test_the_examples_of_v3_are_each_of_a_good_message() -> None:
    """Else the test above would prove nothing."""
    assert decode_v3(V3).scoped(None).pdu == QUESTION
    assert V3.count(b"\x04\x01\x04\x02\x01\x03") == 1
    assert decode_v2c(V2C) == (b"public", QUESTION)


damage = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), min_size=1, max_size=4)


@given(pdus, damage)
def test_damaged_octets_are_read_alike_by_both(pdu: WirePdu, wrong: Sequence[tuple[int, int]]) -> None:
    """
    Where both codecs read a damaged message, they read the same; neither raises anything but Malformed. The daemon keeps some values
    as opaque that pyasn1 accepts, such as arcs beyond 32 bits.
    """
    octets = bytearray(encode_v2c(b"public", pdu))
    for place, octet in wrong:
        octets[place % len(octets)] = octet
    try:
        community, read = decode_v2c(bytes(octets))
        own, inside = messages.parse(bytes(octets))
        own_pdu = decode_pdu(inside)
    except Malformed:
        return

    assert (community, ours(replace(read, varbinds=()))) == (own, replace(own_pdu, varbinds=[]))
    for found, own_varbind in zip(read.varbinds, own_pdu.varbinds, strict=True):
        assert own_varbind in (varbind(found), (found[0], ValueTag.OPAQUE, own_varbind.raw))


@given(st.binary(max_size=200) | damage)
def test_any_octets_at_all_as_v3(wrong: bytes | Sequence[tuple[int, int]]) -> None:
    """Nothing but Malformed, and where both codecs read the header, they read the same."""
    octets = bytearray(wrong if isinstance(wrong, bytes) else V3)
    for place, octet in () if isinstance(wrong, bytes) else wrong:
        octets[place % len(octets)] = octet
    try:
        message = decode_v3(bytes(octets))
        own = security.parse(bytes(octets))
    except (Malformed, Refused):
        return

    assert (message.number, message.flags, our_engine(message.engine)) == (own.number, own.flags, own.engine)
    assert (message.user, message.digest, message.salt) == (own.user, own.digest, own.salt)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (((1, 3, 6), Value(ValueTag.INTEGER, 2**31)), "2147483648 of type INTEGER"),
        (((1, 3, 6), Value(ValueTag.GAUGE32, -1)), "-1 of type GAUGE32"),
        (((1, 3, 6), Value(ValueTag.IP_ADDRESS, b"abc")), "b'abc' of type IP_ADDRESS"),
        (((1, 3, 6), Value(ValueTag.OBJECT_ID, (1, 40))), r"\(1, 40\) of type OBJECT_ID"),
        (((1, 40), NULL), "None of type NULL"),
    ],
)
def test_a_value_that_its_type_does_not_allow(found: Object, said: str) -> None:
    """It is a fault of the simulator or of a recording, and is named."""
    with pytest.raises(ValueError, match=said):
        encode_varbind(found)


def test_a_user_shows_no_pass_phrase() -> None:
    """Neither in a log nor in a failed test."""
    assert (
        repr(UsmUser("eva", "sha1", "a pass phrase", "aes128", "another phrase")) == "UsmUser('eva', sha1, aes128, ...)"
    )
