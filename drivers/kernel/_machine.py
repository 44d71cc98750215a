"""
This machine's clocks, interfaces and processes, in one object that tests replace.

A clock's discipline is read by adjtimex and clock_adjtime with modes 0 and ADJ_OFFSET_SS_READ, which change nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from timesyncd.drivers.phc._ioctl import PhcIoctl

STA_INS = 0x10
STA_DEL = 0x20
STA_UNSYNC = 0x40
STA_PPSFREQ = 0x02
STA_PPSTIME = 0x04

#: What adjtimex returns after an armed leap second, while STA_INS or STA_DEL is still set.
TIME_WAIT = 4

#: Returns what is left of adjtime(3) in `offset`; the kernel requires no privilege for it (timekeeping_validate_timex).
_ADJ_OFFSET_SS_READ = 0xA001

#: Of Linux' include/uapi/linux/timex.h and include/linux/timex.h.
_STA_NANO = 0x2000
_SHIFT_PLL = 2
_ADJTIME_US_PER_S = 500

_NS_PER_US = 1_000
_NOMINAL_TICK_US = 10_000
_PPB_PER_TICK_US = 100_000

#: struct timex (adjtimex(2)) as the C compiler lays it out.
_TIMEX = struct.Struct("@I4li3l2ll2lil4li44x")
_Buffer = ctypes.c_char * _TIMEX.size  # a new one for each call: all 0 is `modes` 0, and threads share nothing
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Timex:
    """
    `state`, the call's result, and the fields of struct timex. `freq` and `tolerance` are ppm x 2^16; `offset` and `time_fraction`
    are microseconds, or nanoseconds if `status` has STA_NANO.
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
    """The state of CLOCK_REALTIME. Raises OSError."""
    timex = _Buffer()
    return _parsed(timex, _libc.adjtimex(timex))


def adjtime_left_us() -> int:
    """The microseconds that adjtime(3) has still to slew, which neither frequency nor tick shows. Raises OSError."""
    timex = _Buffer()
    struct.pack_into("@I", timex, 0, _ADJ_OFFSET_SS_READ)
    return _parsed(timex, _libc.adjtimex(timex)).offset


def phc_timex(fd: int) -> Timex:
    """The state of the PTP hardware clock that is open as `fd`. Older kernels require write access. Raises OSError."""
    timex = _Buffer()
    return _parsed(timex, _libc.clock_adjtime(clock_id(fd), timex))


def clock_id(fd: int) -> int:
    """The dynamic clock behind a file descriptor: FD_TO_CLOCKID of clock_gettime(2)."""
    return (~fd << 3) | 3


def frequency_ppb() -> int | None:
    """
    How much faster CLOCK_REALTIME is made to run than its oscillator, in ppb: by frequency, tick, and what slews a phase;
    None if unreadable.
    """
    return system_frequency_ppb(system_timex, adjtime_left_us)


def system_frequency_ppb(read_timex: Callable[[], Timex], read_adjtime_left_us: Callable[[], int]) -> int | None:
    """The same by these two calls of adjtimex."""
    try:
        timex, left_us = read_timex(), read_adjtime_left_us()
    except OSError:
        return None
    return to_ppb(timex.freq, timex.tick_us) + slewing_ppb(timex, left_us)


def slewing_ppb(timex: Timex, adjtime_left_us: int) -> int:
    """
    The rate at which the kernel itself slews a phase now, beside frequency and tick: the offset of its phase-locked loop
    (ntpd, systemd-timesyncd), of which a share of 2^-(2 + time constant) is slewed in each second, and what is left of
    adjtime(3), by at most 500 us a second (second_overflow in kernel/time/ntp.c). Positive: the clock runs faster.
    """
    offset_ns = timex.offset if timex.status & _STA_NANO else timex.offset * _NS_PER_US
    loop_ppb = abs(offset_ns) >> (_SHIFT_PLL + max(0, timex.constant))
    left_ppb = min(abs(adjtime_left_us), _ADJTIME_US_PER_S) * _NS_PER_US
    return (loop_ppb if offset_ns > 0 else -loop_ppb) + (left_ppb if adjtime_left_us > 0 else -left_ppb)


def to_ppb(freq: int, tick_us: int = _NOMINAL_TICK_US) -> int:
    """The correction in ppb. `freq` is ppm x 2^16, `tick_us` the microseconds that each 10 ms tick adds; a PHC has no ticks."""
    return round(freq * 1000 / 65536) + (tick_us - _NOMINAL_TICK_US) * _PPB_PER_TICK_US


def _parsed(timex: ctypes.Array[ctypes.c_char], state: int) -> Timex:
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return parse(timex.raw, state)


_SIOCETHTOOL = 0x8946
_GET_TS_INFO = 0x41
_TS_INFO = struct.Struct("=I40x")
_IFREQ = struct.Struct("@16sP16x")


def phc_ioctl(fd: int, request: PhcIoctl, buffer: bytearray) -> None:
    """The kernel writes the result into `buffer`. Raises OSError."""
    fcntl.ioctl(fd, request, buffer)


def ethtool_ts_info(interface: str) -> bytes:
    """struct ethtool_ts_info of an interface; reading it needs no privilege. Raises OSError."""
    info = ctypes.create_string_buffer(_TS_INFO.pack(_GET_TS_INFO), _TS_INFO.size)
    request = bytearray(_IFREQ.pack(interface.encode()[:15], ctypes.addressof(info)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        fcntl.ioctl(end.fileno(), _SIOCETHTOOL, request)
    return info.raw


@dataclass(frozen=True, slots=True)
class Machine:
    """Read-only access: everything is opened for reading, and no call changes anything."""

    dev: Path = Path("/dev")
    net: Path = Path("/sys/class/net")
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    phc_ioctl: Callable[[int, PhcIoctl, bytearray], None] = phc_ioctl
    ethtool_ts_info: Callable[[str], bytes] = ethtool_ts_info
    phc_timex: Callable[[int], Timex] = phc_timex
    system_timex: Callable[[], Timex] = system_timex
    adjtime_left_us: Callable[[], int] = adjtime_left_us
