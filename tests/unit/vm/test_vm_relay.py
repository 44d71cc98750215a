"""The relay delays and drops frames in each direction by itself."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vm_relay import ANNOUNCE, FOLLOW_UP, SYNC, Relay, message_type

ADDRESSES = bytes(12)


def frame(kind: int) -> bytes:
    """A PTP message of a domain whose first octet also has the transport's nibble."""
    return ADDRESSES + b"\x88\xf7" + bytes([0x10 | kind, 2]) + bytes(42)


@pytest.fixture
def ends(folder: Path) -> Iterator[tuple[Relay, list[socket.socket]]]:
    """A relay, and the two machines' ends of its cable."""
    relay = Relay(folder, "cable")
    sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    for end, each in enumerate(sockets):
        each.bind(str(folder / f"cable.{end}"))
        each.connect(str(folder / f"cable.relay{end}"))
        each.settimeout(20)
    yield relay, sockets
    relay.close()
    for each in sockets:
        each.close()


@pytest.mark.parametrize(
    ("octets", "kind"),
    [(frame(SYNC), SYNC), (frame(FOLLOW_UP), FOLLOW_UP), (ADDRESSES + b"\x08\x00" + bytes(46), None), (b"", None)],
)
def test_a_messages_type_is_read_from_its_frame(octets: bytes, kind: int | None) -> None:
    """IEEE 1588-2019, table 36; other frames have none."""
    assert message_type(octets) == kind


def test_frames_pass_in_both_directions(ends: tuple[Relay, list[socket.socket]]) -> None:
    """And unchanged."""
    _, (one, other) = ends
    one.send(frame(SYNC))
    other.send(frame(ANNOUNCE))

    assert (other.recv(2_000), one.recv(2_000)) == (frame(SYNC), frame(ANNOUNCE))


def test_one_direction_is_delayed(ends: tuple[Relay, list[socket.socket]]) -> None:
    """The frame comes no sooner than its delay, and later ones of the other direction overtake it."""
    relay, (one, other) = ends
    relay.directions[0].delay_s = 0.3
    began_s = time.monotonic()
    one.send(frame(SYNC))
    other.send(frame(ANNOUNCE))

    one.recv(2_000)
    other.recv(2_000)
    assert time.monotonic() - began_s >= 0.3
    assert relay.directions[0].passed == relay.directions[1].passed == 1


def test_messages_of_a_type_are_dropped(ends: tuple[Relay, list[socket.socket]]) -> None:
    """The others of that direction pass."""
    relay, (one, other) = ends
    relay.directions[0].dropped = frozenset({SYNC, FOLLOW_UP})
    for kind in (SYNC, FOLLOW_UP, ANNOUNCE):
        one.send(frame(kind))

    assert other.recv(2_000) == frame(ANNOUNCE)


def test_a_hub_brings_a_frame_to_all_other_ends(folder: Path) -> None:
    """And none back to the end that sent it; a machine that is not up loses its own alone."""
    relay = Relay(folder, "hub", ends=4)
    sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
    for end, each in enumerate(sockets):
        each.bind(str(folder / f"hub.{end}"))
        each.connect(str(folder / f"hub.relay{end}"))
        each.settimeout(20)
    sockets[0].send(frame(SYNC))
    received = [each.recv(2_000) for each in sockets[1:]]
    sockets[1].send(frame(ANNOUNCE))

    assert received == [frame(SYNC), frame(SYNC)]
    assert sockets[0].recv(2_000) == frame(ANNOUNCE)
    relay.close()
    for each in sockets:
        each.close()


def test_a_machine_that_is_not_up_loses_its_frames(folder: Path) -> None:
    """The relay goes on."""
    relay = Relay(folder, "cable")
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.connect(str(folder / "cable.relay0"))
    one.send(frame(SYNC))
    other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.settimeout(20)
    while relay.directions[0].passed < 1:
        time.sleep(0.01)
    other.bind(str(folder / "cable.1"))
    one.send(frame(ANNOUNCE))

    assert other.recv(2_000) == frame(ANNOUNCE)
    relay.close()
    one.close()
    other.close()
