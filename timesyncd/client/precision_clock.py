"""
A wall clock for traces of collectives, with the five calls of torchcomms' PrecisionClock (meta-pytorch/torchcomms, pull
request 2325), served from the clock segment. `schemas/timesyncd_precision_clock.hpp` is the same in C++.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from timesyncd.client.clock import Clock
from timesyncd.client.scales import UtcNs

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: "0" switches it off.
SWITCH = "NCCL_USE_PTP"


class PrecisionClock:
    """
    UTC, never TAI, with its error. Each call reads the segment again: a daemon that starts or dies later counts.

    Where no bound is known, the range and the error are None, `using_ptp` is False, and `now` is CLOCK_REALTIME as it is:
    an unknown error is never 0. The environment's NCCL_USE_PTP=0 has the same effect. Threads may share an object.
    """

    def __init__(self, runtime_dir: Path | str | None = None) -> None:
        self._clock = None if os.environ.get(SWITCH) == "0" else Clock(runtime_dir)

    def now(self) -> datetime:
        """`now_ns` to the microsecond, rounded down, as a datetime resolves no more."""
        return _EPOCH + timedelta(microseconds=int(self.now_ns()) // 1_000)

    def range_ns(self) -> tuple[UtcNs, UtcNs] | None:
        """The true UTC lies in [earliest, latest]; None: unknown."""
        earliest, latest, _, _ = self._clock.now() if self._clock is not None else (None, None, None, None)
        return None if earliest is None or latest is None else (UtcNs(earliest), UtcNs(latest))

    def now_ns(self) -> UtcNs:
        """The middle of the range, or CLOCK_REALTIME where that is unknown."""
        known = self.range_ns()
        return UtcNs(time.time_ns()) if known is None else known[0] + (known[1] - known[0]) // 2

    def error_ns(self) -> int | None:
        """How far `now_ns` may be off, either way; None: unknown."""
        known = self.range_ns()
        return None if known is None else (known[1] - known[0] + 1) // 2

    def using_ptp(self) -> bool:
        """Whether the bound holds now."""
        return self.range_ns() is not None
