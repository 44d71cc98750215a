"""Whole messages, keys and ciphers against pysnmp and pyasn1, an independent implementation of the protocol."""

from __future__ import annotations

import hashlib
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyasn1.codec.ber import decoder, encoder
from pyasn1.type import univ
from pysnmp.proto.api import v2c as other_v2c
from pysnmp.proto.mpmod.rfc3412 import SNMPv3Message
from pysnmp.proto.secmod.rfc3414 import localkey, service

from timesyncd.snmp import AuthProtocol, PrivProtocol, User, messages
from timesyncd.snmp import security as snmp_security
from timesyncd.snmp.messages import PduType, decode_pdu, encode_request
from timesyncd.snmp.security import MasterKeys

#: What pysnmp calls the protocols.
AUTH: dict[AuthProtocol, Any] = {
    "sha1": service.hmacsha.HmacSha.SERVICE_ID,
    "sha224": service.hmacsha2.HmacSha2.SHA224_SERVICE_ID,
    "sha256": service.hmacsha2.HmacSha2.SHA256_SERVICE_ID,
    "sha384": service.hmacsha2.HmacSha2.SAH384_SERVICE_ID,
    "sha512": service.hmacsha2.HmacSha2.SHA512_SERVICE_ID,
}
PRIV: dict[PrivProtocol, Any] = {
    "aes128": service.aes.Aes(),
    "aes192": service.aes192.AesBlumenthal192(),
    "aes256": service.aes256.AesBlumenthal256(),
    "aes192-c": service.aes192.Aes192(),
    "aes256-c": service.aes256.Aes256(),
}

counts = st.integers(0, 2**31 - 1)
phrases = st.text(min_size=8, max_size=40).filter(lambda phrase: len(phrase.encode()) <= 64)
engines = st.builds(snmp_security.SnmpEngine, st.binary(min_size=5, max_size=32), counts, counts)
names = st.binary(max_size=32)
#: A key costs a digest of a million octets, so a pair of protocols is tried with a few.
few = settings(max_examples=4, deadline=None)


def their_message(number: int, flags: int, security: tuple[bytes, int, int, bytes, bytes, bytes]) -> bytes:
    message, parameters = SNMPv3Message(), service.UsmSecurityParameters()
    for place, value in enumerate(security):
        parameters[place] = value
    for place, value in enumerate((number, 65_507, bytes((flags,)), 3)):
        message["msgGlobalData"][place] = value
    message["msgVersion"] = 3
    message["msgSecurityParameters"] = encoder.encode(parameters)
    message["msgData"]["encryptedPDU"] = b"octets"
    return bytes(encoder.encode(message))


@given(st.binary(max_size=40), counts)
def test_v2c_messages(community: bytes, number: int) -> None:
    """What they write is read, and what we write is the same octets."""
    pdu = other_v2c.GetRequestPDU()
    other_v2c.apiPDU.set_defaults(pdu)
    other_v2c.apiPDU.set_request_id(pdu, number)
    message = other_v2c.Message()
    other_v2c.apiMessage.set_defaults(message)
    other_v2c.apiMessage.set_community(message, community)
    other_v2c.apiMessage.set_pdu(message, pdu)
    theirs = bytes(encoder.encode(message))
    read, inside = messages.parse(theirs)

    assert (read, decode_pdu(inside).number) == (community, number)
    assert messages.message(community, encode_request(PduType.GET, number, ())) == theirs


@given(counts, st.sampled_from([0, 1, 3, 4, 5, 7]), engines, names, st.binary(max_size=48))
def test_v3_messages_of_theirs(
    number: int, flags: int, engine: snmp_security.SnmpEngine, user: bytes, digest: bytes
) -> None:
    """Every field of the header and of the security parameters is read as it was written."""
    security = (engine.engine_id, engine.boots, engine.time, user, digest, b"eight by")
    message = snmp_security.parse(their_message(number, flags, security))

    assert (message.number, message.flags, message.engine) == (number, flags, engine)
    assert (message.user, message.digest, message.salt) == (user, digest, b"eight by")
    assert message.datagram[message.digest_at :].startswith(digest)


@given(counts, st.booleans(), engines, names, st.binary(max_size=32), counts)
def test_v3_messages_of_ours(
    number: int, reportable: bool, engine: snmp_security.SnmpEngine, user: bytes, context: bytes, request: int
) -> None:
    """They read every field as we meant it, down to the request in it."""
    scoped = snmp_security.scoped_pdu(engine.engine_id, context, encode_request(PduType.GET, request, ()))
    message, rest = decoder.decode(
        snmp_security.plain(number, reportable, engine, user, scoped), asn1Spec=SNMPv3Message()
    )
    security, _ = decoder.decode(message["msgSecurityParameters"], asn1Spec=service.UsmSecurityParameters())
    header, inside = message["msgGlobalData"], message["msgData"]["plaintext"]

    assert rest == b""
    assert [int(message["msgVersion"]), int(header["msgID"]), int(header["msgSecurityModel"])] == [3, number, 3]
    assert bytes(header["msgFlags"]) == bytes((snmp_security.REPORTABLE if reportable else 0,))
    assert list(security.values()) == [engine.engine_id, engine.boots, engine.time, user, b"", b""]
    assert (inside["contextEngineId"], inside["contextName"]) == (engine.engine_id, context)
    assert int(inside["data"]["get-request"]["request-id"]) == request


@pytest.mark.parametrize("auth", get_args(AuthProtocol))
@few
@given(phrases, engines)
def test_what_we_sign_they_believe(auth: AuthProtocol, phrase: str, engine: snmp_security.SnmpEngine) -> None:
    """With each digest: the key from the pass phrase, its place at the engine, the length that is sent."""
    keys = MasterKeys(User("eva", auth, phrase, "aes128", "another phrase")).at(engine.engine_id)
    message = snmp_security.parse(snmp_security.seal(7, True, engine, b"eva", keys, b"a scoped PDU"))
    key = localkey.password_to_key(phrase.encode(), univ.OctetString(engine.engine_id), getattr(hashlib, auth))

    verifier = service.hmacsha.HmacSha() if auth == "sha1" else service.hmacsha2.HmacSha2(AUTH[auth])

    verifier.authenticate_incoming_message(key, univ.OctetString(message.digest), message.datagram)


@pytest.mark.parametrize("auth", get_args(AuthProtocol))
@pytest.mark.parametrize("priv", get_args(PrivProtocol))
@few
@given(phrases, engines, st.binary(min_size=1, max_size=100))
def test_what_one_encrypts_the_other_decrypts(
    auth: AuthProtocol, priv: PrivProtocol, phrase: str, engine: snmp_security.SnmpEngine, text: bytes
) -> None:
    """With every pair of protocols, keys that must be stretched in either way included."""
    privacy, clock = PRIV[priv], (engine.boots, engine.time)
    keys = MasterKeys(User("eva", auth, "a pass phrase", priv, phrase)).at(engine.engine_id)
    hashed = privacy.hash_passphrase(AUTH[auth], univ.OctetString(phrase.encode()))
    key = privacy.localize_key(AUTH[auth], hashed, univ.OctetString(engine.engine_id))
    ours, our_salt = keys.encrypt(*clock, text)
    theirs, their_salt = privacy.encrypt_data(key, (*clock, None), text)

    assert privacy.decrypt_data(key, (*clock, list(our_salt)), univ.OctetString(ours)) == text
    assert keys.decrypt(*clock, bytes(their_salt), bytes(theirs)) == text
