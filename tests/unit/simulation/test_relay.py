"""The relay's arithmetic: which datagrams it changes, and by how much."""

from __future__ import annotations

import struct

import pytest

from timesyncd.simulation.bed.relay import OffsetProfile, Piece, ResidenceTimes, shift_timestamp

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


def event(message_type: int, port: bytes, sequence: int) -> bytes:
    """A Sync or Delay_Req of this port."""
    header = bytes([message_type, 2]) + bytes(6) + struct.pack(">q", 5 << 16) + bytes(4) + port
    return header + struct.pack(">H", sequence) + bytes(12)


def correction_ns(datagram: bytes) -> int:
    scaled: int = struct.unpack_from(">q", datagram, 8)[0]
    return scaled >> 16


GRANDMASTER_PORT, NODE_PORT = b"grandmast1", b"node-port1"


def test_a_transparent_clock_corrects_each_message_by_the_time_of_its_own_event() -> None:
    """Follow_Up by its Sync, and Delay_Resp by the Delay_Req of the port that it answers; once, and beside what it had."""
    times = ResidenceTimes()
    times.add(event(0, GRANDMASTER_PORT, 7), 90_000)
    times.add(event(1, NODE_PORT, 7), 40_000)
    follow_up = event(8, GRANDMASTER_PORT, 7)
    delay_resp = event(9, GRANDMASTER_PORT, 7)[:44] + NODE_PORT

    assert correction_ns(times.correct(follow_up)) == 90_005
    assert correction_ns(times.correct(follow_up)) == 5
    assert correction_ns(times.correct(delay_resp)) == 40_005
    assert times.correct(follow_up)[16:] == follow_up[16:]


def test_a_transparent_clock_leaves_everything_else_as_it_is() -> None:
    """Other messages, other sequences, what is too short; and it remembers no more than the newest."""
    times = ResidenceTimes()
    for sequence in range(100):
        times.add(event(0, GRANDMASTER_PORT, sequence), 1_000)
    announce, other, old = (
        event(11, GRANDMASTER_PORT, 99),
        event(8, NODE_PORT, 99),
        event(8, GRANDMASTER_PORT, 100 - ResidenceTimes.NEWEST - 1),
    )

    assert [times.correct(each) for each in (announce, other, old, b"", announce[:43])] == [
        announce, other, old, b"", announce[:43],
    ]  # fmt: skip
    assert correction_ns(times.correct(event(8, GRANDMASTER_PORT, 99))) == 1_005
