"""SNMPv3 from the agent's side, which is the authoritative one and knows one user: RFC 3414 section 3.2."""

from __future__ import annotations

from functools import lru_cache

from timesyncd.errors import Malformed
from timesyncd.snmp import ber, security
from timesyncd.snmp.keys import Keys, MasterKeys
from timesyncd.snmp.messages import Kind, decode_as
from timesyncd.snmp.values import Oid, User


class SecurityFault(Exception):
    """`counter` is the OID of what a report tells, `request` 0 where the number of the request could not be read."""

    def __init__(self, counter: Oid, request: int = 0) -> None:
        super().__init__(counter, request)
        self.counter = counter
        self.request = request


_master_keys = lru_cache(maxsize=64)(MasterKeys)


@lru_cache(maxsize=1024)
def keys_at(user: User, engine_id: bytes) -> Keys:
    return _master_keys(user).at(engine_id)


def open_request(message: security.Message, user: User, keys: Keys, engine: security.Engine) -> ber.Reader:
    """
    A reader that stands at the PDU of a message to us, `engine`, which need not be signed or encrypted.

    Raises SecurityFault; Malformed where what is not encrypted is no PDU.
    """
    if (counter := _distrusted(message, user, keys, engine)) is not None:
        raise SecurityFault(
            counter, 0 if message.flags & security.PRIV else _number(security.open_scoped(message.scoped(None)))
        )
    context, inside = _opened(message, keys)
    if context != user.context.encode():
        raise SecurityFault(security.UNKNOWN_CONTEXT, _number(inside))
    return inside


def _distrusted(message: security.Message, user: User, keys: Keys, engine: security.Engine) -> Oid | None:
    """What is wrong with the sender."""
    if message.engine.engine_id != engine.engine_id:
        return security.UNKNOWN_ENGINE_ID
    if message.user != user.name.encode():
        return security.UNKNOWN_USER
    if message.flags & security.AUTH and not message.verify(keys):
        return security.WRONG_DIGEST
    if message.flags & security.AUTH and not engine.agrees(message.engine):
        return security.NOT_IN_TIME_WINDOW
    return None


def _number(reader: ber.Reader) -> int:
    return decode_as(Kind.RESPONSE, reader, reader.next_tag()).number


def _opened(message: security.Message, keys: Keys) -> tuple[bytes, ber.Reader]:
    try:
        return security.open_context(message.scoped(keys))
    except Malformed:
        if not message.flags & security.PRIV:
            raise
        raise SecurityFault(security.DECRYPTION_ERROR) from None


def seal_response(message: security.Message, keys: Keys, engine: security.Engine, scoped: bytes) -> bytes:
    """An answer as safe as its question."""
    if message.flags & security.PRIV:
        return security.seal(message.number, False, engine, message.user, keys, scoped)
    if message.flags & security.AUTH:
        return security.signed(message.number, engine, message.user, keys, scoped)
    return security.plain(message.number, False, engine, message.user, scoped)
