"""The relay's arithmetic: which datagrams it changes, and by how much."""

from __future__ import annotations

import struct

import pytest

from timesyncd.simulation.bed.relay import OffsetProfile, Piece, shift_timestamp

SECOND = 1_000_000_000


def datagram(message_type: int, seconds: int, nanoseconds: int) -> bytes:
    """A PTP message with a timestamp where Follow_Up and Delay_Resp have theirs, and ten octets behind it."""
    timestamp = struct.pack(">HII", seconds >> 32, seconds & 0xFFFF_FFFF, nanoseconds)
    return bytes([0x10 | message_type, 2]) + bytes(range(32)) + timestamp + bytes(range(10))


@pytest.mark.parametrize("message_type", [8, 9])
def test_a_timestamp_of_the_grandmaster_is_moved_by_x(message_type: int) -> None:
    """Follow_Up and Delay_Resp carry the grandmaster's time, and nothing else of them changes."""
    shifted = shift_timestamp(datagram(message_type, 1_700_000_000, 5), lambda _: 300_000)

    assert shifted == datagram(message_type, 1_700_000_000, 300_005)


@pytest.mark.parametrize("message_type", [0, 1, 11, 13])
def test_other_messages_pass_as_they_are(message_type: int) -> None:
    """Sync, Delay_Req, Announce and management carry no time of the grandmaster that a slave of two steps uses."""
    passed = shift_timestamp(datagram(message_type, 1_700_000_000, 5), lambda _: 300_000)

    assert passed == datagram(message_type, 1_700_000_000, 5)


def test_a_datagram_too_short_for_a_timestamp_passes_as_it_is() -> None:
    """The relay fails on no input."""
    short = datagram(8, 1_700_000_000, 5)[:43]

    assert shift_timestamp(short, lambda _: 300_000) == short
    assert shift_timestamp(b"", lambda _: 300_000) == b""


@pytest.mark.parametrize(
    ("before", "x_ns", "after"),
    [
        ((1_700_000_000, 999_999_999), 1, (1_700_000_001, 0)),
        ((1_700_000_000, 0), -1, (1_699_999_999, 999_999_999)),
        ((2**32 - 1, 999_999_999), 1, (2**32, 0)),
        ((2**32, 5), 1, (2**32, 6)),
        ((1_700_000_000, 5), 37 * SECOND, (1_700_000_037, 5)),
    ],
)
def test_x_carries_into_the_seconds(before: tuple[int, int], x_ns: int, after: tuple[int, int]) -> None:
    """Up and down, and beyond 32 bits of seconds."""
    shifted = shift_timestamp(datagram(8, *before), lambda _: x_ns)

    assert shifted == datagram(8, *after)


def test_x_is_taken_at_the_timestamp() -> None:
    """The offset is that of the timestamp, not of the time of forwarding, which is later and unknown to the test."""
    asked: list[int] = []

    def x_ns(realtime_ns: int) -> int:
        asked.append(realtime_ns)
        return 0

    shift_timestamp(datagram(9, 1_700_000_000, 7), x_ns)

    assert asked == [1_700_000_000 * SECOND + 7]


def test_a_profile_holds_constants_ramps_and_steps() -> None:
    """Each piece counts from its start on, and the piece before it until then."""
    profile = OffsetProfile(
        [Piece(100 * SECOND, 300_000), Piece(110 * SECOND, 300_000, 20_000), Piece(120 * SECOND, -5)]
    )

    assert [profile.x_ns(t * SECOND) for t in (99, 100, 109, 110, 115, 119, 120, 200)] == [
        0, 300_000, 300_000, 300_000, 400_000, 480_000, -5, -5,
    ]  # fmt: skip


def test_a_piece_without_x_goes_on_where_the_last_one_is() -> None:
    """So a ramp begins and ends without a step."""
    profile = OffsetProfile([Piece(100 * SECOND, 300_000, 20_000)])

    assert profile.next_piece(110 * SECOND, None, 0) == Piece(110 * SECOND, 500_000, 0)
    assert profile.next_piece(110 * SECOND, 7, -3) == Piece(110 * SECOND, 7, -3)
