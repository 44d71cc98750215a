"""
The driver `kernel`: the kernel's status of CLOCK_REALTIME, and the programs that steer it. See docs/clock-sources.md.

It also reads VMClock, the page in which a hypervisor reports to its guest that the guest was migrated or restored.

`MovementDetector` finds steering that no known program explains, by what the kernel shows from poll to poll.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from timesyncd.clocks import NS_PER_S, Clocks, SystemClocks
from timesyncd.config import Section
from timesyncd.drivers.kernel._disciplines import (
    MIN_SCAN_INTERVAL_NS,
    SCAN_EVERY_NS,
    Disciplines,
    ProcessScanner,
    disciplines,
    hyperv_steers,
    sees_whole_machine,
    with_hyperv,
)
from timesyncd.drivers.kernel._machine import (
    STA_DEL,
    STA_INS,
    STA_PPSFREQ,
    STA_PPSTIME,
    STA_UNSYNC,
    TIME_WAIT,
    Machine,
    Timex,
    to_ppb,
)
from timesyncd.drivers.kernel._programs import COMMS
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.model.leap import Leap
from timesyncd.sample import KernelSample, Movement, Reading

_NS_PER_US = 1_000


class KernelOptions(Section):
    poll_interval_s: Annotated[float, Field(ge=0.2, le=60)] = 1.0


class Kernel:
    """Reads adjtimex, and changes nothing. What moves between two polls shows steering by a program that is not known."""

    Options: ClassVar[type[BaseModel]] = KernelOptions
    timeout_s = 5.0

    def __init__(
        self,
        name: str,
        options: KernelOptions,
        runtime_dir: Path,
        clocks: Clocks | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.poll_interval_s = options.poll_interval_s
        self._name = name
        self._clocks = clocks or SystemClocks()
        self._machine = machine or Machine()
        self._scanner = ProcessScanner(self._machine.proc, COMMS)
        self._freq: int | None = None
        self._discipline: tuple[int, int, bool] | None = None
        self._movement = MovementDetector()
        self._hyperv: bool | None = False

    async def open(self) -> None:
        """Raises Refused."""
        self._timex()
        self._hyperv = hyperv_steers(self._machine.sys)

    async def poll(self) -> Sequence[Reading]:
        """Raises Refused; Unreachable and Malformed for a VMClock that cannot be read."""
        now_ns, timex = self._clocks.boottime_ns(), self._timex()
        if self._has_changed(timex) | self._movement.add(timex, self._adjtime_left_us(), now_ns):
            self._scanner.request_scan()
        found, visible = await self._programs(now_ns)
        return [
            KernelSample(
                source=self._name,
                boottime_ns=now_ns,
                frequency_ppb=to_ppb(timex.freq, timex.tick_us),
                maxerror_ns=timex.maxerror_us * _NS_PER_US,
                esterror_ns=timex.esterror_us * _NS_PER_US,
                synchronized=not timex.status & STA_UNSYNC,
                leap=leap(timex),
                tai_offset_s=timex.tai_s,
                disciplines=found.steering,
                undecided_disciplines=found.undecided,
                undecided_ptp4l=found.undecided_ptp4l,
                programs_visible=visible,
                unexplained_movement=self._movement.unexplained(now_ns),
                vm_disruptions=disruption_marker(self._machine.dev / "vmclock0"),
            )
        ]

    async def close(self) -> None:
        pass

    async def _programs(self, now_ns: int) -> tuple[Disciplines, bool]:
        """The programs that steer or may, and whether all of this machine's are visible."""
        processes = await self._scanner.processes(now_ns)
        found = with_hyperv(disciplines(processes or ()), self._hyperv)
        self._movement.add_scan(self._scanner.scanned_ns or 0, bool(found.steering or found.undecided))
        return found, processes is not None and sees_whole_machine(self._machine.proc)

    def _adjtime_left_us(self) -> int:
        """0 also where a system call filter forbids the question."""
        try:
            return self._machine.adjtime_left_us()
        except OSError:
            return 0

    def _timex(self) -> Timex:
        try:
            return self._machine.system_timex()
        except OSError as error:
            raise Refused(
                f"adjtimex: {error.strerror}: permit adjtimex in this process's system call filter"
            ) from error

    def _has_changed(self, timex: Timex) -> bool:
        """Whether the status or tick changed, or the frequency began or ceased to change: a daemon may have started or stopped."""
        before, moves = self._discipline, self._freq not in (None, timex.freq)
        self._freq, self._discipline = timex.freq, (timex.status, timex.tick_us, moves)
        return before is not None and before != self._discipline


def leap(timex: Timex) -> str:
    """The armed leap second: none, insert, delete, or both. The flag stays set after the leap second, until a daemon clears it."""
    if timex.state == TIME_WAIT:
        return "none"
    return Leap.of_flags(bool(timex.status & STA_INS), bool(timex.status & STA_DEL)).value


_VMCLOCK_MAGIC = 0x4B4C4356  # "VCLK"
_VMCLOCK_SEQUENCE = 12
_VMCLOCK_FRONT = struct.Struct("<I8xIQ")
_VMCLOCK_TRIES = 100


def disruption_marker(path: Path) -> int | None:
    """
    A number that changes with every disruption of the guest's clock: live migration, restoring a snapshot. None if there is no
    VMClock. Raises Unreachable and Malformed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}; docs/clock-sources.md says how to grant reading") from error
    try:
        return _read_vmclock(fd, path)
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def _read_vmclock(fd: int, path: Path) -> int:
    """Read consistently by the sequence count, which is odd during a write. Raises OSError, Unreachable and Malformed."""
    for _ in range(_VMCLOCK_TRIES):
        front = os.pread(fd, _VMCLOCK_FRONT.size, 0)
        if len(front) < _VMCLOCK_FRONT.size:
            raise Malformed(f"{path}: {len(front)} octets; a VMClock has at least {_VMCLOCK_FRONT.size}")
        magic, sequence, marker = _VMCLOCK_FRONT.unpack(front)
        if magic != _VMCLOCK_MAGIC:
            raise Malformed(f"{path}: not a VMClock")
        if sequence % 2 == 0 and os.pread(fd, 4, _VMCLOCK_SEQUENCE) == front[_VMCLOCK_SEQUENCE : _VMCLOCK_SEQUENCE + 4]:
            return int(marker)
    raise Unreachable(f"{path}: no consistent value in {_VMCLOCK_TRIES} tries: the hypervisor keeps writing")


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
