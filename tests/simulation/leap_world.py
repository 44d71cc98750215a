"""A node through the end of a UTC day, second by second: the truth, its clocks, its ptp4l, the model, and a client."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from samples import HEALTHY

from timesyncd.bound import Interval, Reference
from timesyncd.client import clock as clock_module
from timesyncd.client import past
from timesyncd.client.clock import Clock
from timesyncd.clocks import NS_PER_S, boot_id, time_namespace
from timesyncd.ipc import clock_segment
from timesyncd.ipc.seqlock import SegmentWriter
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings
from timesyncd.model.leap import Leap, LeapTable
from timesyncd.sample import ClockSample, KernelSample, NoSample, PhcSample, UtcSample

#: 2028-01-01T00:00:00Z; the seconds of this world count from there, on a clock that does not leap.
MIDNIGHT_S = 1_830_297_600
MIDNIGHT_NS = MIDNIGHT_S * NS_PER_S
TAI_OFFSET_S = 37

BOOT_NS = 900_000 * NS_PER_S


@dataclass(frozen=True)
class LeapScenario:
    """
    `truth`: what happens to UTC. `flags`: what Announce says until `cleared_s`, when it also changes its UTC offset by
    `offset_change_s`. `kernel_s`: by how much the kernel steps CLOCK_REALTIME at midnight. `servo_steps_s`: when ptp4l itself steps the
    clock instead (kernel_leap 0); None: never. `adopts`: ptp4l removes the new UTC offset at once, as 4.x does; 3.1.1 goes on
    with the old one, or (`keeps_offset`) took the new one over and keeps it, and steps the clock back at `restored_s`. At `corrected_s` the
    grandmaster announces the former offset again. `hardware`: ptp4l steers a PHC on TAI, against which the system clock is read; `read_at_sync`: by ptp4l's driver. `ntp`: a
    server that leaps, or one that spreads the second over the day around it. The daemon polls `poll_s` after each whole second;
    CLOCK_REALTIME is off by `clock_error_ns`.
    """

    truth: Leap
    flags: Leap
    kernel_s: int
    offset_change_s: int
    cleared_s: int = 3
    servo_steps_s: int | None = None
    daemon_dies_s: int | None = None
    hardware: bool = False
    read_at_sync: bool = False
    adopts: bool = True
    keeps_offset: bool = False
    restored_s: int | None = None
    corrected_s: float = math.inf
    ntp: Literal["none", "steps", "smears"] = "none"
    table: LeapTable | None = None
    path_ns: int = 10_000
    clock_error_ns: int = 3_000
    poll_s: float = 0.5


KNOWN = LeapTable(((0, 36), (1_483_228_800, 37), (MIDNIGHT_S, 38)), MIDNIGHT_S + 10**7)
DELETED = LeapTable(((0, 36), (1_483_228_800, 37), (MIDNIGHT_S, 36)), MIDNIGHT_S + 10**7)

#: They keep the assumptions: no interval that a client gets excludes the truth.
LEAP_SCENARIOS = {
    "inserted": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, table=KNOWN),
    "inserted, no table": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1),
    "inserted, ptp4l 3.1.1": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, adopts=False, table=KNOWN),
    "inserted, ptp4l 3.1.1 steps": LeapScenario(
        Leap.INSERT, Leap.INSERT, -1, 1, adopts=False, restored_s=20, table=KNOWN
    ),
    "deleted": LeapScenario(Leap.DELETE, Leap.DELETE, 1, -1, table=DELETED),
    "announced falsely": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0),
    "announced falsely, flag stuck": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0, cleared_s=10**6),
    "announced falsely, UTC offset follows": LeapScenario(Leap.NONE, Leap.INSERT, -1, 1),
    "announced falsely, UTC offset follows, is corrected": LeapScenario(Leap.NONE, Leap.INSERT, -1, 1, corrected_s=20),
    "the same, and ptp4l 3.1.1 keeps it": LeapScenario(
        Leap.NONE, Leap.INSERT, -1, 1, corrected_s=20, keeps_offset=True
    ),
    "the kernel does not step": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, servo_steps_s=30, table=KNOWN),
    "the kernel does not step, nor anything else": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, table=KNOWN),
    "the daemon died before": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, daemon_dies_s=-20, table=KNOWN),
    "both flags": LeapScenario(Leap.INSERT, Leap.BOTH, 0, 1, table=KNOWN),
    "hardware stamps": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, hardware=True, table=KNOWN),
    "hardware stamps, deleted": LeapScenario(Leap.DELETE, Leap.DELETE, 1, -1, hardware=True, table=DELETED),
    "hardware stamps, no step": LeapScenario(Leap.INSERT, Leap.INSERT, 0, 1, hardware=True, table=KNOWN),
    "hardware stamps, falsely": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0, hardware=True),
    "read at each Sync": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, hardware=True, read_at_sync=True, table=KNOWN),
    "read at each Sync, deleted": LeapScenario(
        Leap.DELETE, Leap.DELETE, 1, -1, hardware=True, read_at_sync=True, table=DELETED
    ),
    "read at each Sync, no step": LeapScenario(
        Leap.INSERT, Leap.INSERT, 0, 1, hardware=True, read_at_sync=True, table=KNOWN
    ),
    "read at each Sync, falsely": LeapScenario(Leap.NONE, Leap.INSERT, -1, 0, hardware=True, read_at_sync=True),
    "an NTP server that leaps too": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, ntp="steps", table=KNOWN),
    "an NTP server that smears": LeapScenario(Leap.INSERT, Leap.INSERT, -1, 1, ntp="smears", table=KNOWN),
    "not announced, but known": LeapScenario(Leap.INSERT, Leap.NONE, 0, 1, cleared_s=2, table=KNOWN),
}


class LeapWorld:
    """`now_s` counts true seconds from midnight before the leap; the client reads the clocks of this moment."""

    def __init__(self, scenario: LeapScenario, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scenario = scenario
        self.now_s = -90.0
        self.stepped_s = 0
        self.ensemble = Ensemble({name: EnsembleSettings() for name in ("ptp", "nic", "ntp", "kernel")}, scenario.table)
        self._writer = SegmentWriter(
            folder / clock_segment.NAME, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
        )
        self._epoch = clock_segment.Epoch(boot_id(), time_namespace())
        self._count = 0
        self._seen_stepped_s = 0
        self._patch(monkeypatch)
        self.client = Clock(folder)

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clock_module, "_realtime_ns", self.realtime_ns)
        monkeypatch.setattr(clock_module, "_monotonic_ns", self.boottime_ns)
        monkeypatch.setattr(past, "boottime_ns", self.boottime_ns)
        monkeypatch.setattr(past, "time", SimpleNamespace(time_ns=self.realtime_ns, monotonic_ns=self.boottime_ns))

    def boottime_ns(self) -> int:
        return BOOT_NS + round(self.now_s * NS_PER_S)

    def realtime_ns(self) -> int:
        return MIDNIGHT_NS + round((self.now_s + self.stepped_s) * NS_PER_S) + self.scenario.clock_error_ns

    def tai_ns(self, at_s: float | None = None) -> int:
        return MIDNIGHT_NS + round(((self.now_s if at_s is None else at_s) + TAI_OFFSET_S) * NS_PER_S)

    def utc_ns(self, at_s: float | None = None) -> set[int]:
        """POSIX time; in an inserted second both readings are right: 23:59:59 again, and the next day's first second."""
        at_s = self.now_s if at_s is None else at_s
        change = self.scenario.truth.change_s
        before, after = (
            self.tai_ns(at_s) - TAI_OFFSET_S * NS_PER_S,
            self.tai_ns(at_s) - (TAI_OFFSET_S + change) * NS_PER_S,
        )
        first_s, last_s = (0, 1) if change > 0 else (-1, -1)
        return {before} if at_s < first_s or not change else {before, after} if at_s < last_s else {after}

    def step(self) -> None:
        """A quarter of a second passes; once a second the daemon polls."""
        self.now_s += 0.25
        scenario = self.scenario
        leap_s = -1 if scenario.kernel_s > 0 else 0
        if self.stepped_s == 0 and scenario.kernel_s and leap_s <= self.now_s < leap_s + 1:
            self.stepped_s = scenario.kernel_s
        if scenario.servo_steps_s is not None and self.stepped_s == 0 and self.now_s >= scenario.servo_steps_s:
            self.stepped_s = -scenario.truth.change_s
        if scenario.restored_s is not None and self.stepped_s and self.now_s >= scenario.restored_s:
            self.stepped_s = 0
        if self.now_s % 1 == scenario.poll_s and (
            scenario.daemon_dies_s is None or self.now_s < scenario.daemon_dies_s
        ):
            self._poll()

    def _poll(self) -> None:
        apart = None if self.scenario.read_at_sync else self._phc("nic")
        for reading in (self._kernel(), self._utc(), apart, self._ptp()):
            if reading is not None and (bound := self.ensemble.accept(reading).bound) is not None:
                self._writer.write(clock_segment.encode(bound, self._epoch))
        self._seen_stepped_s = self.stepped_s

    def _announced(self) -> tuple[Leap, int]:
        if self.now_s < self.scenario.cleared_s:
            return self.scenario.flags, TAI_OFFSET_S
        is_changed = self.now_s < self.scenario.corrected_s
        return Leap.NONE, TAI_OFFSET_S + (self.scenario.offset_change_s if is_changed else 0)

    def _removed_s(self) -> int:
        """What ptp4l takes out of the offset (clock.c: clock_utc_correct)."""
        leap, offset_s = self._announced()
        if not self.scenario.adopts:
            offset_s = TAI_OFFSET_S
        elif self.scenario.keeps_offset and self.now_s >= self.scenario.cleared_s:
            offset_s = TAI_OFFSET_S + self.scenario.offset_change_s
        return offset_s + (leap.change_s if self._is_past_midnight() else 0)

    def _is_past_midnight(self) -> bool:
        return self.realtime_ns() >= MIDNIGHT_NS

    def _ptp(self) -> ClockSample | NoSample | None:
        if self.stepped_s != self._seen_stepped_s:
            return NoSample("ptp", self.boottime_ns(), "the clock was stepped", stepped=True)
        leap, offset_s = self._announced()
        if leap is not Leap.NONE and 0 < MIDNIGHT_NS - self.realtime_ns() <= NS_PER_S:
            return None  # clock update suspended due to leap second
        self._count += 1
        return replace(
            HEALTHY,
            as_of_ns=self.boottime_ns(),
            read_ns=self.boottime_ns(),
            real_minus_boot_ns=self.realtime_ns() - self.boottime_ns(),
            ingress_time_ns=self.tai_ns() if self.scenario.hardware else self.realtime_ns(),
            clock="phc:0" if self.scenario.hardware else "realtime",
            offset_ns=0 if self.scenario.hardware else self._software_offset_ns(),
            path_delay_ns=self.scenario.path_ns,
            sync_interval_ns=NS_PER_S,
            delay_interval_ns=NS_PER_S,
            delay_requests_sent=self._count,
            delay_responses_received=self._count,
            current_utc_offset_s=offset_s,
            phc=self._phc("ptp") if self.scenario.read_at_sync else None,
            **_TRACEABLE,
            **_flags(leap),
        )

    def _utc(self) -> UtcSample | None:
        """chronyd knows a step of the clock, and takes a minute to measure again."""
        if self.scenario.ntp == "none" or (self.stepped_s and self.now_s < 64):
            return None
        leap, change_s = self._announced()[0], self.scenario.truth.change_s
        leapt_s = float(change_s if self.now_s >= 0 else 0)
        if self.scenario.ntp == "smears":
            leap, leapt_s = Leap.NONE, change_s * (self.now_s + 43_200) / 86_400
        utc_ns = self.tai_ns() - TAI_OFFSET_S * NS_PER_S - round(leapt_s * NS_PER_S)
        return UtcSample(
            source="ntp",
            as_of_ns=self.boottime_ns(),
            real_minus_boot_ns=self.realtime_ns() - self.boottime_ns(),
            offset_ns=self.realtime_ns() - utc_ns,
            error_ns=200_000,
            growth_ppb=1_000,
            reference="10.0.0.1",
            stratum=2,
            leap=leap.value,
            root_delay_ns=100_000,
            root_dispersion_ns=100_000,
        )

    def _phc(self, source: str) -> PhcSample | None:
        """A PHC that is exactly on TAI."""
        if not self.scenario.hardware:
            return None
        return PhcSample(
            source=source,
            clock="phc:0",
            as_of_ns=self.boottime_ns(),
            real_minus_boot_ns=self.realtime_ns() - self.boottime_ns(),
            offset_ns=self.realtime_ns() - self.tai_ns(),
            width_ns=1_000,
            method="extended",
            frequency_ppb=0,
            system_frequency_ppb=0,
        )

    def _software_offset_ns(self) -> int:
        return self.realtime_ns() - self.tai_ns() + self._removed_s() * NS_PER_S

    def _kernel(self) -> KernelSample:
        armed = self.scenario.flags if self.scenario.kernel_s and self.now_s < 0 else Leap.NONE
        return KernelSample("kernel", self.boottime_ns(), 0, 0, 0, True, armed.value, 37, disciplines=("ptp4l",))


_TRACEABLE: dict[str, Any] = {"ptp_timescale": True, "time_traceable": True}


def _flags(leap: Leap) -> dict[str, Any]:
    """Of this world's ptp4l; a driver that does not know them leaves them out of its sample."""
    return {"leap61": leap in (Leap.INSERT, Leap.BOTH), "leap59": leap in (Leap.DELETE, Leap.BOTH)}


def contains(interval: Interval, truths: set[int]) -> bool:
    """Whether the interval holds; an unknown one claims nothing."""
    if interval.earliest is None or interval.latest is None:
        return True
    return any(interval.earliest <= truth <= interval.latest for truth in truths)


def is_narrow(interval: Interval) -> bool:
    return (
        interval.earliest is not None
        and interval.latest is not None
        and interval.latest - interval.earliest < NS_PER_S // 100
    )


TAI = Reference.TAI
