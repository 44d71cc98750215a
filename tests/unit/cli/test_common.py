"""What several commands share: the address of a page."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from timesyncd.cli._common import url_of


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("hub-1", "http://hub-1:8319/"),
        ("hub-1:80", "http://hub-1:80/"),
        ("192.0.2.1", "http://192.0.2.1:8319/"),
        ("2001:db8::1", "http://[2001:db8::1]:8319/"),
        ("[2001:db8::1]", "http://[2001:db8::1]:8319/"),
        ("[2001:db8::1]:80", "http://[2001:db8::1]:80/"),
        ("https://hub-1/", "https://hub-1/"),
        ("http://hub-1:8319/clocks", "http://hub-1:8319/clocks"),
    ],
)
def test_a_host_is_enough_for_a_page(text: str, url: str) -> None:
    """Without a port it is the daemon's usual one; a URL stays as it is."""
    assert url_of(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "", "ftp://hub-1/", "http://", "hub-1:port", "hub-1:0", "http://hub-1:99999/", "../../x", "hub 1", "hub-1\x1b[31m",
        "x" * 64, "hub-1\udcff",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    """At the command line, before anything is asked."""
    with pytest.raises(ArgumentTypeError, match="is no address of a page"):
        url_of(text)
