"""A user's keys: RFC 3414 section 2.6 and appendix A.2, RFC 7860 (SHA-2), RFC 3826 (AES)."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import cached_property

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from timesyncd.snmp.values import User

#: Octets of the digest that are sent.
_DIGEST = {"sha1": 12, "sha224": 16, "sha256": 24, "sha384": 32, "sha512": 48}
_KEY = {"aes128": 16, "aes192": 24, "aes256": 32, "aes192-c": 24, "aes256-c": 32}
#: To so many octets a pass phrase is repeated.
_STRETCHED = 1_048_576


class Keys:
    """A user's keys at one authoritative engine. The privacy key is made when first needed: the `-c` kind costs milliseconds."""

    def __init__(self, master: MasterKeys, engine_id: bytes) -> None:
        self._master = master
        self._engine_id = engine_id
        self._auth_key = master.localized(master.auth, engine_id)
        self._salt = secrets.randbits(64)
        self.hash = master.user.auth
        self.digest_size = _DIGEST[master.user.auth]

    def digest(self, datagram: bytes) -> bytes:
        return hmac.digest(self._auth_key, datagram, self.hash)[: self.digest_size]

    def encrypt(self, boots: int, time: int, plain: bytes) -> tuple[bytes, bytes]:
        """The octets and the salt, which never comes twice with one key."""
        self._salt = (self._salt + 1) % 2**64
        salt = self._salt.to_bytes(8, "big")
        return self._cipher(boots, time, salt).encryptor().update(plain), salt

    def decrypt(self, boots: int, time: int, salt: bytes, octets: bytes) -> bytes:
        return self._cipher(boots, time, salt).decryptor().update(octets)

    def _cipher(self, boots: int, time: int, salt: bytes) -> Cipher[CFB]:
        return Cipher(algorithms.AES(self._priv_key), CFB(boots.to_bytes(4, "big") + time.to_bytes(4, "big") + salt))

    @cached_property
    def _priv_key(self) -> bytes:
        master = self._master
        key = master.localized(master.priv, self._engine_id)
        size = _KEY[master.user.priv]
        while len(key) < size:
            if master.user.priv.endswith("-c"):
                key += master.localized(master.stretched(key), self._engine_id)
            else:
                key += hashlib.new(self.hash, key).digest()
        return key[:size]


class MasterKeys:
    """What a user's pass phrases make before an engine is known (RFC 3414 section 2.6): a few milliseconds each."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.auth = self.stretched(user.auth_pass.encode())
        self.priv = self.stretched(user.priv_pass.encode())

    def at(self, engine_id: bytes) -> Keys:
        return Keys(self, engine_id)

    def stretched(self, phrase: bytes) -> bytes:
        whole = phrase * (_STRETCHED // len(phrase) + 1)
        return hashlib.new(self.user.auth, whole[:_STRETCHED]).digest()

    def localized(self, master: bytes, engine_id: bytes) -> bytes:
        return hashlib.new(self.user.auth, master + engine_id + master).digest()
