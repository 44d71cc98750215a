"""What the kernel says of a clock's steering, through adjtimex and clock_adjtime with modes 0, which changes nothing."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

STA_INS = 0x10
STA_DEL = 0x20
STA_UNSYNC = 0x40

#: What adjtimex returns once an armed leap second is over, while STA_INS or STA_DEL still stands.
TIME_WAIT = 4

_NOMINAL_TICK_US = 10_000
_PPB_PER_TICK_US = 100_000

#: struct timex (adjtimex(2)) as the C compiler lays it out.
_TIMEX = struct.Struct("@I4li3l2ll2lil4li44x")
_Buffer = ctypes.c_char * _TIMEX.size  # made anew for each call: all 0 is `modes` 0, and threads share nothing
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Timex:
    """
    struct timex as it stands, behind what the call returned, `state`. `freq` and `tolerance` are ppm x 2^16; `offset` and
    `time_fraction` are microseconds, or nanoseconds where `status` has STA_NANO.
    """

    state: int
    modes: int
    offset: int
    freq: int
    maxerror_us: int
    esterror_us: int
    status: int
    constant: int
    precision_us: int
    tolerance: int
    time_s: int
    time_fraction: int
    tick_us: int
    ppsfreq: int
    jitter: int
    shift: int
    stabil: int
    jitcnt: int
    calcnt: int
    errcnt: int
    stbcnt: int
    tai_s: int


def parse(timex: bytes, state: int) -> Timex:
    return Timex(state, *_TIMEX.unpack_from(timex))


def system_timex() -> Timex:
    """Of CLOCK_REALTIME. Raises OSError."""
    timex = _Buffer()
    return _parsed(timex, _libc.adjtimex(timex))


def phc_timex(fd: int) -> Timex:
    """Of the PTP hardware clock that is open as `fd`. Older kernels want it open for writing. Raises OSError."""
    timex = _Buffer()
    return _parsed(timex, _libc.clock_adjtime(clock_id(fd), timex))


def clock_id(fd: int) -> int:
    """The dynamic clock behind a file descriptor: FD_TO_CLOCKID of clock_gettime(2)."""
    return (~fd << 3) | 3


def frequency_ppb() -> int | None:
    """How much faster than its oscillator CLOCK_REALTIME is made to run; None where the kernel does not say."""
    try:
        timex = system_timex()
    except OSError:
        return None
    return to_ppb(timex.freq, timex.tick_us)


def to_ppb(freq: int, tick_us: int = _NOMINAL_TICK_US) -> int:
    """`freq` is ppm x 2^16, `tick_us` the microseconds that a tick of a hundredth second adds; a PHC has no ticks."""
    return round(freq * 1000 / 65536) + (tick_us - _NOMINAL_TICK_US) * _PPB_PER_TICK_US


def _parsed(timex: ctypes.Array[ctypes.c_char], state: int) -> Timex:
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return parse(timex.raw, state)
