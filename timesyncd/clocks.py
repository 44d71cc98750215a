"""The system's clocks as integer nanoseconds, alone and read together."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

NS_PER_S = 1_000_000_000

#: Two clocks that are apart by less agree on the second.
HALF_SECOND_NS = NS_PER_S // 2

#: A step of CLOCK_REALTIME smaller than this is not detected, so it is a term of every bound.
STEP_TOLERANCE_NS = 2_000


class Clocks(Protocol):
    """The clocks that the product reads."""

    def realtime_ns(self) -> int:
        """CLOCK_REALTIME: UTC, as far as the machine is synchronized."""

    def boottime_ns(self) -> int:
        """CLOCK_BOOTTIME: never steps, and runs during suspend; every age is counted on it."""


class SystemClocks:
    """The machine's own clocks."""

    def realtime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_REALTIME)

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """
    CLOCK_REALTIME and CLOCK_BOOTTIME, read together. Both are given by name: two integers alike are easily exchanged.
    """

    realtime_ns: int
    boottime_ns: int

    @classmethod
    def read(cls, clocks: Clocks, readings: int = 3) -> Moment:
        """
        The best of a few readings.

        REALTIME is read before BOOTTIME, so a preemption between the two errs in one direction: REALTIME looks stepped
        back. The reading with the largest difference is therefore the best.
        """
        taken = [cls(realtime_ns=clocks.realtime_ns(), boottime_ns=clocks.boottime_ns()) for _ in range(readings)]
        return max(taken, key=lambda moment: moment.real_minus_boot_ns)

    @property
    def real_minus_boot_ns(self) -> int:
        """Only a step changes it: a slew changes both clocks alike."""
        return self.realtime_ns - self.boottime_ns

    def at_boottime(self, boottime_ns: int) -> Moment:
        """The same clocks at another BOOTTIME, with REALTIME not stepped in between."""
        return Moment(realtime_ns=boottime_ns + self.real_minus_boot_ns, boottime_ns=boottime_ns)


def real_minus_boot_ns(clocks: Clocks, readings: int = 3) -> int:
    """CLOCK_REALTIME minus CLOCK_BOOTTIME, the best of a few readings."""
    return Moment.read(clocks, readings).real_minus_boot_ns


class RawReading(NamedTuple):
    """
    CLOCK_MONOTONIC between two readings of CLOCK_MONOTONIC_RAW, the same oscillator without any steering. Their difference
    shows what was done to the system clock, by whatever program.
    """

    before_ns: int
    monotonic_ns: int
    after_ns: int

    @property
    def width_ns(self) -> int:
        return self.after_ns - self.before_ns

    @classmethod
    def read(cls, readings: int = 3) -> RawReading:
        """The narrowest of a few readings."""
        return min((cls._read() for _ in range(readings)), key=lambda reading: reading.width_ns)

    @classmethod
    def _read(cls) -> RawReading:
        raw = time.CLOCK_MONOTONIC_RAW
        return cls(time.clock_gettime_ns(raw), time.monotonic_ns(), time.clock_gettime_ns(raw))


def boot_id() -> int:
    """This boot's random 128-bit id; with another one CLOCK_BOOTTIME started at 0 again."""
    return int(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""), 16)


def time_namespace() -> int:
    """
    The inode of this process's time namespace, which may shift CLOCK_BOOTTIME; 0 where the kernel has no time
    namespaces.
    """
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except FileNotFoundError:
        return 0
