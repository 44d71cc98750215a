"""The client socket of a driver, against a scripted server."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path

import pytest

from timesyncd.drivers.ptp4l._socket import Ptp4lSocket, Sender, sender_of

pytestmark = pytest.mark.disable_socket


def test_the_sender_is_identified_by_the_kernel() -> None:
    """Only SCM_CREDENTIALS identify the sender; a datagram without them has none."""
    credentials = struct.pack("iII", 4711, 1000, 1000)

    assert sender_of([(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]) == Sender(4711, 1000)
    assert sender_of([(socket.SOL_SOCKET, socket.SCM_RIGHTS, credentials)]) is None
    assert sender_of([]) is None


async def test_another_users_datagram_is_not_decoded(tmp_path: Path) -> None:
    """
    Our file is open to everybody, since ptp4l must be able to answer; what another user writes to it is dropped.
    """
    taken: list[bytes] = []

    def take(datagram: bytes) -> bool:
        taken.append(datagram)
        return True

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "server"))
        channel = Ptp4lSocket(tmp_path / "own", tmp_path / "server", take)
        channel._trusted = {os.geteuid() + 1}
        server.sendto(b"forged", str(tmp_path / "own"))
        await asyncio.sleep(0.05)
        channel._trusted = {os.geteuid()}
        server.sendto(b"true", str(tmp_path / "own"))
        await asyncio.sleep(0.05)
        channel.close()

    assert taken == [b"true"]
