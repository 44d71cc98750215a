"""One node's path delay against its own past. Pure."""

from __future__ import annotations

from array import array
from statistics import median

from timesyncd.clocks import NS_PER_S

#: Readings are taken as they come at first, then one a minute: the median is that of an hour.
MIN_READINGS = 24
MAX_READINGS = 60
_FIRST_EVERY_NS = 4 * NS_PER_S
_EVERY_NS = 60 * NS_PER_S

#: A path moved when the delay is so many standard deviations from its median, and so much, and such a share of it. Of a group
#: nearly all must, so that for a single node the limit may be low.
SIGMAS = 5
LEAST_NS = 100
LEAST_SHARE = 20

#: What has stood for so long is how it is now.
NORMAL_AFTER_NS = 3_600 * NS_PER_S

#: The standard deviation of a normal distribution is so many times its median deviation from the median.
SIGMA_PER_MAD = 1.4826


class DelayHistory:
    """
    Of one path: whoever follows another parent begins anew. `way` is 1 while the delay is longer than before, -1 while it is
    shorter, since `since_ns` and by `moved_ns`, and meanwhile the median stays what it was.
    """

    __slots__ = ("_limit_ns", "_next_ns", "_oldest", "_readings", "median_ns", "moved_ns", "since_ns", "way")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.way = 0
        self.since_ns = self.moved_ns = self.median_ns = 0
        self._limit_ns = 0
        self._next_ns = 0
        self._oldest = 0
        self._readings = array("q")

    @property
    def is_known(self) -> bool:
        return len(self._readings) >= MIN_READINGS

    def note(self, delay_ns: int, now_ns: int) -> None:
        self.moved_ns = delay_ns - self.median_ns
        is_moved = self.is_known and abs(self.moved_ns) > self._limit_ns
        way = (1 if self.moved_ns > 0 else -1) if is_moved else 0
        if way != self.way:
            self.way, self.since_ns = way, now_ns
        elif way and now_ns - self.since_ns >= NORMAL_AFTER_NS:
            self._begin()
        if not self.way and now_ns >= self._next_ns:
            self._keep(delay_ns, now_ns)

    def _keep(self, delay_ns: int, now_ns: int) -> None:
        readings = self._readings
        if len(readings) < MAX_READINGS:
            readings.append(delay_ns)
        else:
            readings[self._oldest] = delay_ns
            self._oldest = (self._oldest + 1) % MAX_READINGS
        if len(readings) < MIN_READINGS:
            self._next_ns = now_ns + _FIRST_EVERY_NS
            return
        self._next_ns = now_ns + _EVERY_NS
        self.median_ns = int(median(readings))
        spread_ns = SIGMAS * SIGMA_PER_MAD * median(abs(each - self.median_ns) for each in readings)
        self._limit_ns = max(LEAST_NS, self.median_ns // LEAST_SHARE, int(spread_ns))
