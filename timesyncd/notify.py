"""What systemd is told (sd_notify(3)): nothing when it did not ask."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send one message, such as READY=1, to the service manager."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
