"""
Slews CLOCK_REALTIME by adjtimex's tick for some seconds, as `adjtimex --tick` does, then restores the tick: slew.py TICK_US SECONDS

The kernel takes 9 000 to 11 000 us: 10 % slower or faster.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

ADJ_TICK = 0x4000
NORMAL_TICK_US = 10_000

#: Exists while the clock is slewed.
BEGUN = Path("/run/vm/slewing")


class Timex(ctypes.Structure):
    """struct timex of Linux, of 64 bits (adjtimex(2))."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("microseconds", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_byte * 128),
    ]


def set_tick(tick_us: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(Timex(modes=ADJ_TICK, tick=tick_us))) < 0:
        raise OSError(ctypes.get_errno(), f"adjtimex, tick {tick_us}")


def main() -> None:
    set_tick(int(sys.argv[1]))
    BEGUN.touch()
    try:
        time.sleep(float(sys.argv[2]))
    finally:
        set_tick(NORMAL_TICK_US)
        BEGUN.unlink()


if __name__ == "__main__":
    main()
