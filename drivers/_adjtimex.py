"""The frequency that the kernel gives CLOCK_REALTIME, read through adjtimex with modes 0, which changes nothing."""

from __future__ import annotations

import ctypes

_NOMINAL_TICK_US = 10_000
_PPB_PER_TICK_US = 100_000


class _Timex(ctypes.Structure):
    """The front of struct timex (adjtimex(2)); `rest` is longer than what the kernel writes behind it."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_long * 32),
    ]


_libc = ctypes.CDLL(None)


def frequency_ppb() -> int | None:
    """How much faster than its oscillator CLOCK_REALTIME is made to run; None where the kernel does not say."""
    timex = _Timex()
    return None if _libc.adjtimex(ctypes.byref(timex)) < 0 else to_ppb(timex.freq, timex.tick)


def to_ppb(freq: int, tick_us: int) -> int:
    """`freq` is ppm x 2^16, `tick_us` the microseconds that a tick of a hundredth second adds."""
    return round(freq * 1000 / 65536) + (tick_us - _NOMINAL_TICK_US) * _PPB_PER_TICK_US
