"""The accepted Host headers: on loopback another name is another site's script."""

from __future__ import annotations

import pytest

from timesyncd.web.app import is_allowed_host


@pytest.mark.parametrize(
    "header", ["127.0.0.1", "127.0.0.1:8319", "[::1]:8319", "192.0.2.7:80", "localhost", "LocalHost:1"]
)
@pytest.mark.parametrize("listening", ["127.0.0.1", "::1", "localhost"])
def test_addresses_and_localhost_are_accepted(listening: str, header: str) -> None:
    """No site can own an IP address or localhost as its name."""
    assert is_allowed_host(listening, header)


@pytest.mark.parametrize(
    "header",
    ["evil.example", "evil.example:8319", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "", ":8319"],
)
@pytest.mark.parametrize("listening", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_a_foreign_name_on_loopback_is_rejected(listening: str, header: str) -> None:
    """Any other name that resolves to a loopback address, and a text that is not a name."""
    assert not is_allowed_host(listening, header)


@pytest.mark.parametrize("listening", ["0.0.0.0", "::", "192.0.2.7", "node-a"])
def test_on_the_network_every_name_is_accepted(listening: str) -> None:
    """A scraper may use any name for this node."""
    assert is_allowed_host(listening, "node-a.cluster.example:8319")


def test_a_request_without_the_header_is_accepted() -> None:
    """HTTP/1.0 requires no Host header, and a browser always sends one."""
    assert is_allowed_host("127.0.0.1", None)
