"""Whether a unit's web account still has the password of the factory. Nothing here is ever sent to a unit."""

from __future__ import annotations

import hashlib
import hmac

from pydantic import SecretStr

#: The password that units leave the factory with, as salted scrypt: to be compared with, never to be tried.
_SALT = bytes.fromhex("a4398e1e6388f55a17d39e5da2282148")
_FACTORY_PASSWORD = bytes.fromhex("5d25d5faf92b8451eb81fc8b973ec48f7d47af5800fc0f0dcb9c393a2a5d061c")


def hashed(password: str) -> bytes:
    """Takes about 50 ms, by intent."""
    return hashlib.scrypt(password.encode(), salt=_SALT, n=2**14, r=8, p=1, dklen=32)


def uses_factory_password(password: SecretStr) -> bool:
    """Whether the configured password is the one that the unit left the factory with."""
    return hmac.compare_digest(hashed(password.get_secret_value()), _FACTORY_PASSWORD)
