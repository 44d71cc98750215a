"""The configuration of a grandmaster's web interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from timesyncd.drivers.timeprovider._web import WebReader
from timesyncd.drivers.timeprovider._web_requests import WebOptions
from timesyncd.errors import ConfigError

pytestmark = pytest.mark.disable_socket

PIN = "ab" * 32
ACCOUNT = {"username": "watcher", "password": {"env": "GM_WEB_PASSWORD"}}


def options(**given: Any) -> WebOptions:
    return WebOptions.model_validate(ACCOUNT | given)


def test_defaults() -> None:
    """Port 443, every channel, once a minute, and the hole in the history is filled."""
    actual = options(fingerprint=PIN)

    assert (actual.port, actual.channels, actual.interval_s, actual.fill_history) == (443, None, 60, True)
    assert actual.warnings == ()


@pytest.mark.parametrize("written", [PIN, PIN.upper(), ":".join(["AB"] * 32)])
def test_fingerprint(written: str) -> None:
    """A fingerprint may be written as openssl prints it."""
    assert options(fingerprint=written).fingerprint == PIN


def test_insecure_is_warned_about() -> None:
    """Without verification, the warning states the consequence."""
    (actual,) = options(insecure=True).warnings

    assert actual.startswith("insecure = true: the certificate is not verified")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of ca, fingerprint, insecure"),
        ({"fingerprint": PIN, "insecure": True}, "exactly one of ca, fingerprint, insecure"),
        ({"insecure": False}, "exactly one of ca, fingerprint, insecure"),
        ({"fingerprint": "ab" * 20}, "64 hexadecimal digits"),
        ({"ca": Path(__file__).parent / "none.pem"}, "cannot read PEM certificates from this file: No such file"),
        ({"ca": Path(__file__)}, "cannot read PEM certificates from this file"),
        ({"fingerprint": PIN, "channels": ["SYNCE-1"]}, "GNSS-1"),
        ({"fingerprint": PIN, "channels": []}, "at least 1 item"),
        ({"fingerprint": PIN, "interval_s": 1}, "greater than or equal to 10"),
        ({"fingerprint": PIN, "method": "GET"}, "Extra inputs"),
    ],
)
def test_what_is_wrong(given: dict[str, Any], message: str) -> None:
    """What cannot work is an error of the configuration."""
    with pytest.raises(ValidationError, match=message):
        options(**given)


def test_password_that_is_not_there() -> None:
    """A secret that cannot be read is an error before anything is sent."""
    with pytest.raises(ConfigError, match="GM_WEB_PASSWORD is not set"):
        WebReader("gm-a", "192.0.2.1", options(fingerprint=PIN))


def test_host_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address of a page is no host."""
    monkeypatch.setenv("GM_WEB_PASSWORD", "x")

    with pytest.raises(ConfigError, match="not a host name or an address"):
        WebReader("gm-a", "gm-a/login", options(fingerprint=PIN))
