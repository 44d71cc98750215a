"""`struct tcp_info`, from octets that a kernel gave, whole and as older kernels end them."""

from __future__ import annotations

import pytest

from timesyncd.errors import Malformed
from timesyncd.ipc.tcp_info import ESTABLISHED, LEAST_BYTES, parse_tcp_info

#: Linux 6.18 on a little-endian machine: the sending end of a connection over loopback that had carried 3,000,000 octets.
RECORDED = bytes.fromhex(
    "010000000007aa00e01c030000000000cbff000018020000000000000000000000000000000000000000000034000000000000003c000000"
    "34000000ffff0000d7ff00003000000020000000080000001c000000cbff00000c00000000000000d7ff000000000000a88e047e04000000"
    "ffffffffffffffffc1c62d00000000000000000000000000410000001e0000000000000009000000000000003f000000f1815a6303000000"
    "0000000000000000000000000000000000000000000000004000000000000000c0c62d000000000000000000000000000000000000000000"
    "0000000000681200000001000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
)


def changed(offset: int, octets: str) -> bytes:
    data = bytearray(RECORDED)
    data[offset : offset + len(octets) // 2] = bytes.fromhex(octets)
    return bytes(data)


def test_a_kernel_s_octets_give_its_counters() -> None:
    """Times in ns, counts and rates as the kernel has them: 3,000,000 octets and the SYN are acknowledged."""
    info = parse_tcp_info(RECORDED)

    assert (info.state, info.rto_ns, info.rtt_ns, info.min_rtt_ns) == (ESTABLISHED, 204_000_000, 48_000, 9_000)
    assert (info.bytes_acked, info.bytes_received) == (3_000_001, 0)
    assert (info.retransmitted, info.data_segments) == (0, 63)
    assert info.delivery_bytes_per_s == 14_551_777_777
    assert (info.busy_ns, info.rwnd_limited_ns, info.sndbuf_limited_ns) == (0, 0, 0)


def test_an_old_kernel_s_struct_leaves_the_later_fields_unknown() -> None:
    """Up to `tcpi_total_retrans` all kernels agree; what an old one does not count is not 0."""
    info = parse_tcp_info(RECORDED[:LEAST_BYTES])

    assert (info.rtt_ns, info.retransmitted) == (48_000, 0)
    assert (info.bytes_acked, info.min_rtt_ns, info.data_segments, info.busy_ns) == (None, None, None, None)


@pytest.mark.parametrize(
    ("length", "known"),
    [
        (127, 0),
        (128, 1),
        (136, 2),
        (152, 3),
        (159, 3),
        (160, 4),
        (168, 5),
        (176, 6),
        (184, 7),
        (192, 8),
        (247, 8),
        (248, 9),
        (280, 9),
    ],
)
def test_each_field_needs_the_whole_of_its_octets(length: int, known: int) -> None:
    """Kernels that end the struct between two fields, as 4.2, 4.6, 4.9 and 6.6 do."""
    info = parse_tcp_info(RECORDED[:length])
    found = [info.bytes_acked, info.bytes_received, info.min_rtt_ns, info.data_segments, info.delivery_bytes_per_s]
    found += [info.busy_ns, info.rwnd_limited_ns, info.sndbuf_limited_ns, info.rto_recovery_ns]

    assert [value is not None for value in found] == [True] * known + [False] * (9 - known)


def test_counters_are_read_from_their_own_places() -> None:
    """Each with a value of its own, so that no two are mixed up."""
    data = bytearray(RECORDED)
    for offset, size, value in ((100, 4, 7), (168, 8, 30), (176, 8, 20), (184, 8, 10), (244, 4, 5)):
        data[offset : offset + size] = value.to_bytes(size, "little")
    info = parse_tcp_info(bytes(data))

    assert info.retransmitted == 7
    assert (info.busy_ns, info.rwnd_limited_ns, info.sndbuf_limited_ns) == (30_000, 20_000, 10_000)
    assert info.rto_recovery_ns == 5_000_000


@pytest.mark.parametrize(("offset", "octets", "field"), [(148, "ffffffff", "min_rtt_ns"), (68, "00000000", "rtt_ns")])
def test_what_the_kernel_has_not_measured_is_unknown(offset: int, octets: str, field: str) -> None:
    """The largest number as the smallest round trip, and no round trip at all, are no measurements."""
    assert getattr(parse_tcp_info(changed(offset, octets)), field) is None


def test_too_short_a_struct_is_malformed() -> None:
    """No kernel that timesyncd runs on gives less."""
    with pytest.raises(Malformed, match="103 octets"):
        parse_tcp_info(RECORDED[: LEAST_BYTES - 1])
