"""Notifies systemd (sd_notify(3)) where it asked for it, and takes over the sockets that it opened."""

from __future__ import annotations

import os
import socket

FIRST_PASSED = 3
"""SD_LISTEN_FDS_START"""


def notify(state: str) -> None:
    """Send one message, such as READY=1, to the service manager."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def passed_socket(name: str) -> socket.socket | None:
    """
    The socket that systemd opened under this FileDescriptorName (sd_listen_fds(3)), as ports below 1024 need; else
    None.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    return socket.socket(fileno=FIRST_PASSED + names.index(name)) if name in names else None
