"""Finds steering that no known program explains, by what the kernel shows from poll to poll. Pure: time is an argument."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.kernel._disciplines import MIN_SCAN_INTERVAL_NS, SCAN_EVERY_NS
from timesyncd.drivers.kernel._machine import STA_PPSFREQ, STA_PPSTIME, Timex
from timesyncd.sample import Movement

#: NTP daemons poll every 34 minutes at most, so a clock that did not move for so long is no longer steered.
STEERED_FOR_NS = 3_600 * NS_PER_S


class MovementDetector:
    """
    What moved in the clock's discipline between two polls, and whether a program explains it.

    A movement is unexplained if neither the last scan before it nor the first one after it found a program that steers or may. A
    single one may be a command that has ended, so two are needed, of two scans.
    """

    def __init__(self) -> None:
        self._last: Timex | None = None
        self._adjtime_us = 0
        self._known_ns: int | None = None
        self._waiting: tuple[Movement, int] | None = None
        self._unexplained: list[tuple[Movement, int]] = []

    def add(self, timex: Timex, adjtime_us: int, boottime_ns: int) -> bool:
        """Add one poll. Returns whether the processes have to be scanned soon to explain what moved."""
        movement = self._movement(timex, adjtime_us)
        self._last, self._adjtime_us = timex, adjtime_us
        if movement is None or timex.status & (STA_PPSFREQ | STA_PPSTIME):
            return False  # with these the kernel itself steers by a PPS signal
        self._waiting = movement, boottime_ns
        return self._known_ns is None and self.unexplained(boottime_ns) is None

    def add_scan(self, scanned_ns: int, programs: bool) -> None:
        """Add the newest scan of the processes: when it was made, and whether it found a program that steers or may."""
        if programs:
            self._known_ns, self._waiting = scanned_ns, None
            self._unexplained.clear()
            return
        if self._waiting is None or scanned_ns < self._waiting[1]:
            return
        (movement, moved_ns), self._waiting = self._waiting, None
        if self._known_ns is not None and moved_ns - self._known_ns <= SCAN_EVERY_NS + MIN_SCAN_INTERVAL_NS:
            return
        self._known_ns = None
        self._unexplained = [*self._unexplained[-1:], (movement, moved_ns)]

    def unexplained(self, boottime_ns: int) -> Movement | None:
        """The newest movement that no program explains; None where there are not two, or none for STEERED_FOR_NS."""
        recent = [movement for movement, moved_ns in self._unexplained if boottime_ns - moved_ns < STEERED_FOR_NS]
        return recent[-1] if len(recent) == 2 else None

    def _movement(self, timex: Timex, adjtime_us: int) -> Movement | None:
        """Only what a program must have written: a pending slew decays by itself."""
        last = self._last
        if last is None:
            return None
        if timex.tick_us != last.tick_us:
            return Movement.TICK
        if timex.freq != last.freq:
            return Movement.FREQUENCY
        is_slewed = _grew(self._adjtime_us, adjtime_us) or _grew(last.offset, timex.offset)
        return Movement.SLEW if is_slewed else None


def _grew(before: int, now: int) -> bool:
    return abs(now) > abs(before) or before * now < 0
