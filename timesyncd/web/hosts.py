"""
Which Host headers are answered. Pure.

A web site may give its own name the address 127.0.0.1, and then its scripts read, in a browser on this machine, whatever
listens there (DNS rebinding). The browser tells by which name it came, so a page on loopback answers to its own names alone.
Where the page listens on the network whoever asks must show who he is, by whatever name he asks.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from timesyncd.sections import is_loopback


def is_answered(listening: str, host_header: str | None) -> bool:
    """`listening` is the configured address. Without a header it is no browser."""
    if host_header is None or not is_loopback(listening):
        return True
    try:
        name = urlsplit(f"//{host_header}").hostname
    except ValueError:
        return False
    return name is not None and (_is_address(name) or name in ("localhost", listening.lower()))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
