"""
Codec of the ioctls that read a PTP hardware clock: its limits, and its offset to the system clock (linux/ptp_clock.h).
Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed

MAX_READINGS = 25

#: A cross timestamp is taken at one instant, but with the resolution of two counters: the system's at 19.2 MHz or faster (53 ns)
#: and the PHC's at 125 MHz or faster (8 ns).
PRECISE_GRANULARITY_NS = 61

#: 1952 to 2242: the nanoseconds between any two of these fit into 64 bits.
_EARLIEST_S, _LATEST_S = -(2**29), 2**33

_CLOCK_TIME = struct.Struct("=qI4x")  # struct ptp_clock_time: seconds, nanoseconds
_HEAD = 16


class PhcIoctl(IntEnum):
    """Every ioctl that this driver calls on a PHC. None of them changes the clock."""

    CAPABILITIES = 0x80503D01
    PRECISE = 0xC0403D08
    EXTENDED = 0xC4C03D09
    BASIC = 0x43403D05


#: The ioctls that read the offset, the most precise first.
OFFSET_IOCTLS = (PhcIoctl.PRECISE, PhcIoctl.EXTENDED, PhcIoctl.BASIC)

_SIZES = {PhcIoctl.CAPABILITIES: 80, PhcIoctl.PRECISE: 64, PhcIoctl.EXTENDED: 1216, PhcIoctl.BASIC: 832}


@dataclass(frozen=True, slots=True)
class ReadingWindow:
    """The PHC read `phc_ns` at an instant between `before_ns` and `after_ns` of CLOCK_REALTIME."""

    before_ns: int
    phc_ns: int
    after_ns: int

    @property
    def width_ns(self) -> int:
        return self.after_ns - self.before_ns

    @property
    def offset_ns(self) -> int:
        """CLOCK_REALTIME minus PHC, with an error of at most half the width."""
        return (self.before_ns + self.after_ns) // 2 - self.phc_ns


def ioctl_buffer(request: PhcIoctl, readings: int) -> bytearray:
    """The ioctl's argument, into which the kernel writes the result. The `clockid` of newer kernels is 0: CLOCK_REALTIME."""
    buffer = bytearray(_SIZES[request])
    if request in (PhcIoctl.EXTENDED, PhcIoctl.BASIC):
        struct.pack_into("=I", buffer, 0, readings)
    return buffer


def max_frequency_ppb(capabilities: bytes) -> int:
    """
    The most that the clock can be made to run off its oscillator: `max_adj` of struct ptp_clock_caps. Raises Malformed.
    """
    if len(capabilities) != _SIZES[PhcIoctl.CAPABILITIES]:
        raise Malformed(f"CAPABILITIES: {len(capabilities)} octets instead of {_SIZES[PhcIoctl.CAPABILITIES]}")
    (limit_ppb,) = struct.unpack_from("=i", capabilities)
    if limit_ppb < 0:
        raise Malformed(f"CAPABILITIES: max_adj is {limit_ppb} ppb; it cannot be negative")
    return int(limit_ppb)


def windows(request: PhcIoctl, result: bytes) -> tuple[ReadingWindow, ...]:
    """The windows in an ioctl's result. Raises Malformed."""
    if len(result) != _SIZES[request]:
        raise Malformed(f"{request.name}: {len(result)} octets instead of {_SIZES[request]}")
    if request is PhcIoctl.PRECISE:
        phc_ns, realtime_ns = _times(result, 0, 2)
        half_ns = PRECISE_GRANULARITY_NS // 2
        return (ReadingWindow(realtime_ns - half_ns, phc_ns, realtime_ns - half_ns + PRECISE_GRANULARITY_NS),)
    (count,) = struct.unpack_from("=I", result)
    if not 1 <= count <= MAX_READINGS:
        raise Malformed(f"{request.name}: {count} readings; allowed: 1 to {MAX_READINGS}")
    if request is PhcIoctl.EXTENDED:
        times = _times(result, _HEAD, 3 * count)
        return tuple(ReadingWindow(*times[at : at + 3]) for at in range(0, 3 * count, 3))
    times = _times(result, _HEAD, 2 * count + 1)
    return tuple(ReadingWindow(*times[at : at + 3]) for at in range(0, 2 * count, 2))


def shortest(of: tuple[ReadingWindow, ...]) -> ReadingWindow:
    """The narrowest window, which was disturbed least. Raises Malformed if every window ends before it began."""
    sound = [window for window in of if window.width_ns >= 0]
    if not sound:
        raise Malformed("every reading window ends before it begins")
    return min(sound, key=lambda window: window.width_ns)


def _times(result: bytes, start: int, count: int) -> list[int]:
    """`count` struct ptp_clock_time in a row, in nanoseconds."""
    pairs = [_CLOCK_TIME.unpack_from(result, start + at * _CLOCK_TIME.size) for at in range(count)]
    if any(nanoseconds >= NS_PER_S for _, nanoseconds in pairs):
        raise Malformed("a time has 10^9 nanoseconds or more")
    if not all(_EARLIEST_S <= seconds <= _LATEST_S for seconds, _ in pairs):
        raise Malformed("a time is before 1952 or after 2242")
    return [seconds * NS_PER_S + nanoseconds for seconds, nanoseconds in pairs]
