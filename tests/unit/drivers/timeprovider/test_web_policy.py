"""The factory password is recognized, and is stored nowhere in clear text."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from timesyncd.drivers.timeprovider import _web_requests
from timesyncd.drivers.timeprovider._web_requests import uses_factory_password

pytestmark = pytest.mark.disable_socket

STAND_IN = "what a factory sets"


@pytest.fixture
def known_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true password is nowhere in clear text, so a substitute is hashed instead."""
    monkeypatch.setattr(_web_requests, "_FACTORY_PASSWORD", _web_requests.hashed(STAND_IN))


@pytest.mark.usefixtures("known_factory")
def test_factory_password() -> None:
    """Only the very password is the factory's."""
    assert uses_factory_password(SecretStr(STAND_IN))
    assert not uses_factory_password(SecretStr(STAND_IN.upper()))
    assert not uses_factory_password(SecretStr(""))


def test_the_factory_password_is_a_hash() -> None:
    """What is kept is 32 octets behind a salt of 16, and not the hash of nothing."""
    assert (len(_web_requests._SALT), len(_web_requests._FACTORY_PASSWORD)) == (16, 32)
    assert not uses_factory_password(SecretStr(""))
