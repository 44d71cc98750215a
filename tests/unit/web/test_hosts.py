"""By which names the page is answered: a foreign name on loopback is a foreign site's script."""

from __future__ import annotations

import pytest

from timesyncd.web.app import is_allowed_host


@pytest.mark.parametrize(
    "header", ["127.0.0.1", "127.0.0.1:8319", "[::1]:8319", "192.0.2.7:80", "localhost", "LocalHost:1"]
)
@pytest.mark.parametrize("listening", ["127.0.0.1", "::1", "localhost"])
def test_addresses_and_localhost_are_answered(listening: str, header: str) -> None:
    """No site can own an IP address or localhost as its name."""
    assert is_allowed_host(listening, header)


@pytest.mark.parametrize(
    "header",
    ["evil.example", "evil.example:8319", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "", ":8319"],
)
@pytest.mark.parametrize("listening", ["127.0.0.1", "127.0.1.1", "::1", "localhost"])
def test_a_foreign_name_on_loopback_is_not(listening: str, header: str) -> None:
    """Whatever name leads to a loopback address, it is somebody else's; nor is what is no name at all."""
    assert not is_allowed_host(listening, header)


@pytest.mark.parametrize("listening", ["0.0.0.0", "::", "192.0.2.7", "node-a"])
def test_on_the_network_every_name_is_answered(listening: str) -> None:
    """Metrics are scraped by whatever name the scraper has for this node."""
    assert is_allowed_host(listening, "node-a.cluster.example:8319")


def test_without_a_header_it_is_no_browser() -> None:
    """HTTP/1.0 needs none."""
    assert is_allowed_host("127.0.0.1", None)
