"""A machine with a simulated PTP hardware clock, which answers octet for octet as linux/ptp_clock.h defines."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_clocks import FakeClocks

from timesyncd.clocks import NS_PER_S
from timesyncd.drivers.kernel._machine import Machine, Timex, parse
from timesyncd.drivers.phc._ioctl import PhcIoctl
from timesyncd.drivers.phc.phc import Phc, PhcOptions

CAPABILITIES, PRECISE, EXTENDED, BASIC = PhcIoctl
TAI_NS = 37_000_000_000


@dataclass
class SimulatedPhc:
    """
    A PHC on TAI, `ahead_ns` of it, that runs `drift_ppb` fast. Each of `delays` is what a reading takes before and after the PHC's own
    instant; `fails` are errors that are due, by request; `steps_ns` is a step of CLOCK_REALTIME within the next reading.
    """

    clocks: FakeClocks = field(default_factory=FakeClocks)
    knows: set[PhcIoctl] = field(default_factory=lambda: {EXTENDED, BASIC})
    ahead_ns: int = 0
    drift_ppb: int = 0
    delays: list[tuple[int, int]] = field(default_factory=lambda: [(500, 500)])
    fails: dict[PhcIoctl, list[int]] = field(default_factory=dict)
    unknown: int = errno.EOPNOTSUPP
    steps_ns: int = 0
    max_adj_ppb: int | None = 62_499_999
    asked: list[PhcIoctl] = field(default_factory=list)
    readings: list[int] = field(default_factory=list)

    def now_ns(self) -> int:
        drifted = (self.clocks.boot_ns - 1_000 * NS_PER_S) * self.drift_ppb // NS_PER_S
        return self.clocks.real_ns + TAI_NS + self.ahead_ns + drifted

    def ask(self, fd: int, request: PhcIoctl, asked: bytearray) -> None:
        if request is CAPABILITIES:
            if self.max_adj_ppb is None:
                raise OSError(self.unknown, "not known")
            struct.pack_into("=i", asked, 0, self.max_adj_ppb)
            return
        self.asked.append(request)
        if self.fails.get(request):
            raise OSError(self.fails[request].pop(0), "due")
        if request not in self.knows:
            raise OSError(self.unknown, "not known")
        self.clocks.step(self.steps_ns)
        self.steps_ns = 0
        if request is PRECISE:
            put(asked, 0, self.now_ns())
            put(asked, 16, self.clocks.real_ns)
            put(asked, 32, self.clocks.boot_ns)
            return
        (count,) = struct.unpack_from("<I", asked)
        self.readings.append(count)
        self.take(asked, count, request)

    def take(self, asked: bytearray, count: int, request: PhcIoctl) -> None:
        """Three instants a reading; BASIC has one between two, shared."""
        apart = 48 if request is EXTENDED else 32
        put(asked, 16, self.clocks.real_ns)
        for reading in range(count):
            before_ns, after_ns = self.delays[reading % len(self.delays)]
            put(asked, 16 + reading * apart, self.clocks.real_ns)
            self.clocks.advance(before_ns)
            put(asked, 32 + reading * apart, self.now_ns())
            self.clocks.advance(after_ns)
            put(asked, 48 + reading * apart, self.clocks.real_ns)


def put(asked: bytearray, at: int, ns: int) -> None:
    struct.pack_into("<qII", asked, at, ns // NS_PER_S, ns % NS_PER_S, 0)


def timex(freq: int = 0, tick: int = 0, state: int = 0) -> Timex:
    """As the kernel fills it for a PHC: everything that a PHC does not have is 0."""
    octets = bytearray(208)
    struct.pack_into("<q", octets, 16, freq)
    struct.pack_into("<q", octets, 88, tick)
    return parse(bytes(octets), state)


def denied(*_: object) -> Timex:
    raise PermissionError(errno.EACCES, "Permission denied")


@dataclass
class Lab:
    """A machine with one PHC, /dev/ptp3, behind eth0."""

    root: Path
    phc: SimulatedPhc

    def machine(self, **others: Any) -> Machine:
        parts: dict[str, Any] = {
            "dev": self.root / "dev",
            "net": self.root / "net",
            "proc": self.root / "proc",
            "phc_ioctl": self.phc.ask,
            "ethtool_ts_info": lambda interface: ts_info(3 if interface == "eth0" else -1),
            "phc_timex": lambda fd: timex(freq=65536),
            "system_timex": lambda: timex(freq=-65536, tick=10_000),
        }
        return Machine(**{**parts, **others})

    def driver(self, kind: Callable[..., Phc] = Phc, machine: Machine | None = None, **options: Any) -> Phc:
        asked = PhcOptions.model_validate(options or {"index": 3})
        return kind("nic", asked, self.root, self.phc.clocks, machine or self.machine())

    def process(self, pid: int, *command: str) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(Path(command[0]).name[:15] + "\n")
        (folder / "cmdline").write_bytes("\0".join((*command, "")).encode())


def ts_info(index: int) -> bytes:
    return struct.pack("<IIi8I", 0x41, 0, index, *[0] * 8)
