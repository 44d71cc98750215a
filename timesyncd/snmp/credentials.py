"""The configuration's SNMP users, with their secrets."""

from __future__ import annotations

from timesyncd.errors import ConfigError
from timesyncd.sections import Secret, SnmpUser
from timesyncd.snmp.values import User


def revealed(secret: Secret, place: str) -> str:
    """Raises ConfigError that begins with `place`, the path of its key."""
    try:
        return secret.reveal().get_secret_value()
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def user_of(settings: SnmpUser, place: str) -> User:
    """Raises ConfigError that begins with `place`, where a secret cannot be read or makes no key."""
    auth_pass = revealed(settings.auth_pass, f"{place}.auth_pass")
    priv_pass = revealed(settings.priv_pass, f"{place}.priv_pass")
    try:
        return User(settings.name, settings.auth, auth_pass, settings.priv, priv_pass, settings.context)
    except ConfigError as error:
        raise ConfigError(f"{place}.{error}") from error
