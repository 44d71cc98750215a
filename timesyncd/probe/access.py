"""How a grandmaster is reached by a command: its addresses, and the secrets by where they come from."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr, ValidationError

from timesyncd.config import SecretSettings, validation_text
from timesyncd.drivers.timeprovider._web_requests import WebOptions
from timesyncd.errors import ConfigError
from timesyncd.snmp import Community, Credentials, User
from timesyncd.snmp.values import MIN_PASS_PHRASE_LENGTH

Progress = Callable[[str], None]
"""Receives what is being done, while it takes long."""


@dataclass(frozen=True, slots=True)
class SnmpAccess:
    """`secrets` holds the place of each secret, by its key in the configuration; a typed secret is not in it."""

    credentials: Credentials
    secrets: Mapping[str, SecretSettings]


@dataclass(frozen=True, slots=True)
class WebAccess:
    """An account of the web interface. `secret` None: the password was typed."""

    options: WebOptions
    password: SecretStr
    secret: SecretSettings | None


@dataclass(frozen=True, slots=True)
class ProbeAccess:
    """`snmp` None: only HTTPS is probed. `web` None: without a log-in, only the certificate is read."""

    host: str
    port: int
    https_port: int
    timeout_s: float
    snmp: SnmpAccess | None
    web: WebAccess | None

    @property
    def device(self) -> str:
        return f"{self.host}:{self.port}"

    def known_secrets(self) -> frozenset[str]:
        """What must stand in nothing that is written."""
        secrets = set() if self.web is None else {self.web.password.get_secret_value()}
        match self.snmp and self.snmp.credentials:
            case Community(name):
                secrets.add(name)
            case User() as user:
                secrets |= {user.auth_pass, user.priv_pass}
        return frozenset(secrets)


def given_secret(env: str | None, file: Path | None) -> SecretSettings | None:
    return None if env is None and file is None else SecretSettings(env=env, file=file)


def revealed(secret: SecretSettings | None, what: str, options: str) -> str:
    """The secret, asked for on the terminal where it was not given. Raises ConfigError, which names `options`."""
    if secret is not None:
        return secret.reveal().get_secret_value()
    if not sys.stdin.isatty():
        raise ConfigError(f"{what}: not given, and no terminal to ask for it: give {options}")
    typed = getpass.getpass(f"{what}: ")
    if not typed:
        raise ConfigError(f"{what}: nothing was typed")
    return typed


def pass_phrase(secret: SecretSettings | None, what: str, options: str) -> str:
    """Raises ConfigError, also where it is too short to make a key."""
    phrase = revealed(secret, what, options)
    if len(phrase) < MIN_PASS_PHRASE_LENGTH:
        raise ConfigError(
            f"{what}: the pass phrase is too short; SNMPv3 needs at least {MIN_PASS_PHRASE_LENGTH} characters"
        )
    return phrase


def web_options(given: Mapping[str, object]) -> WebOptions:
    """The keys of the `https` table but the password's. Raises ConfigError with one line."""
    try:
        # The session is given the password itself: this reference is never resolved.
        return WebOptions.model_validate({**given, "password": {"env": "GM_PASSWORD"}})
    except ValidationError as error:
        raise ConfigError(validation_text(error, "https", model=WebOptions)) from error
