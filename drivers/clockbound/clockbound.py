"""
The driver for ClockBound: its own bound on the system clock against UTC, from its shared memory. See docs/clock-sources.md.

`ClockBoundHistory` turns what was read into a sample, or the reason why there is none, without I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from timesyncd.clocks import NS_PER_S, STEP_TOLERANCE_NS, Clocks, SystemClocks, real_minus_boot_ns
from timesyncd.config import FilePath, Section
from timesyncd.drivers.kernel._machine import Machine
from timesyncd.drivers.kernel.kernel import disruption_marker
from timesyncd.errors import Malformed, Refused, Unreachable
from timesyncd.ipc.clockbound import DEFAULT_PATH, GRACE_NS, SegmentContent, SegmentStatus, read_segment
from timesyncd.sample import UNSPECIFIED_STRATUM, NoSample, NoSampleCause, Reading, UtcOrigin, UtcSample

#: ClockBound's clients allow as_of to be ahead of their own clock by so much.
_CAUSALITY_NS = 1_000

#: CLOCK_BOOTTIME - CLOCK_MONOTONIC moves by a suspend alone; reading the two takes far less.
_SHORTEST_SUSPEND_NS = NS_PER_S // 100


@dataclass(frozen=True, slots=True)
class ClockBoundSnapshot:
    """
    The segment's content, and the clocks, which were read after it, BOOTTIME before MONOTONIC. `vm_marker` is VMClock's
    marker, read last; None where the segment does not refer to it.
    """

    content: SegmentContent
    boottime_ns: int
    monotonic_ns: int
    real_minus_boot_ns: int
    vm_marker: int | None


class ClockBoundHistory:
    """
    Detects what makes a claim of before untrue: a step of the clock, a suspend, a disruption. Only what ClockBound computed
    after the driver's first look counts, since before it the driver would have missed these.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._last: ClockBoundSnapshot | None = None
        self._since_ns = 0
        self._since_text = ""
        self._as_of_ns: int | None = None
        self._is_disrupted = False

    def take(self, snapshot: ClockBoundSnapshot) -> UtcSample | NoSample | None:
        """None: ClockBound has computed nothing since the last sample, which is fresh still. Raises Malformed."""
        last, self._last = self._last, snapshot
        content = snapshot.content
        if content.as_of_ns > snapshot.monotonic_ns + _CAUSALITY_NS:
            ahead_s = (content.as_of_ns - snapshot.monotonic_ns) / NS_PER_S
            raise Malformed(
                f"as_of is {ahead_s:.3f} s in the future: written before this boot, or in another time namespace"
            )
        if last is None:
            self._begin(snapshot, "timesyncd began to watch this clock")
        else:
            by_ns = snapshot.real_minus_boot_ns - last.real_minus_boot_ns
            if abs(by_ns) > STEP_TOLERANCE_NS:
                self._begin(snapshot, "the clock was stepped")
                return self._none(snapshot, f"the clock was stepped by {by_ns / 1e6:+.3f} ms", stepped=True)
            if _suspended_ns(snapshot) - _suspended_ns(last) > _SHORTEST_SUSPEND_NS:
                self._begin(snapshot, "the machine was suspended")
        return self._disruption(snapshot, last) or self._withdrawal(snapshot) or self._sample(snapshot)

    def _begin(self, snapshot: ClockBoundSnapshot, event: str) -> None:
        """From now on only later claims count."""
        self._since_ns, self._since_text = snapshot.monotonic_ns, event

    def _disruption(self, snapshot: ClockBoundSnapshot, last: ClockBoundSnapshot | None) -> NoSample | None:
        """It withdraws all that is known once, when it begins: other sources may know the clock again before ClockBound does."""
        reason = _disruption_text(snapshot, last)
        has_begun = reason is not None and not self._is_disrupted
        self._is_disrupted = reason is not None
        if reason is None:
            return None
        self._begin(snapshot, "the clock was disrupted")
        return self._none(snapshot, reason, change=NoSampleCause.VM_MIGRATED if has_begun else None)

    def _withdrawal(self, snapshot: ClockBoundSnapshot) -> NoSample | None:
        """ClockBound itself no longer holds its earlier claims."""
        content, reason = snapshot.content, None
        if content.status is SegmentStatus.UNKNOWN:
            reason = "ClockBound's status is Unknown: it cannot bound the clock"
        elif snapshot.monotonic_ns >= content.void_after_ns:
            since_s = (snapshot.monotonic_ns - content.void_after_ns) / NS_PER_S
            reason = f"ClockBound's bound is void since {since_s:.0f} s: is its daemon running?"
        return None if reason is None else self._none(snapshot, reason, change=NoSampleCause.SOURCE_WITHDRAWN)

    def _sample(self, snapshot: ClockBoundSnapshot) -> UtcSample | NoSample | None:
        content = snapshot.content
        age_ns = snapshot.monotonic_ns - content.as_of_ns
        if content.as_of_ns <= self._since_ns:
            return self._none(snapshot, f"ClockBound has computed no bound since {self._since_text}")
        if self._as_of_ns is not None and content.as_of_ns <= self._as_of_ns:
            status = "Synchronized" if content.status is SegmentStatus.SYNCHRONIZED else "FreeRunning"
            text = f"ClockBound's newest bound is {age_ns / NS_PER_S:.1f} s old, and its status is {status}"
            return (
                None if age_ns < GRACE_NS else self._none(snapshot, f"{text}: is its daemon running and synchronized?")
            )
        self._as_of_ns = content.as_of_ns
        return UtcSample(
            source=self._source,
            as_of_ns=content.as_of_ns + _suspended_ns(snapshot),
            real_minus_boot_ns=snapshot.real_minus_boot_ns,
            offset_ns=0,
            error_ns=content.bound_ns,
            growth_ppb=content.max_drift_ppb,
            reference="ClockBound",
            stratum=UNSPECIFIED_STRATUM,
            leap="unknown",
            root_delay_ns=0,
            root_dispersion_ns=content.bound_ns,
            origin=UtcOrigin.CLOCKBOUND,
        )

    def _none(
        self, snapshot: ClockBoundSnapshot, reason: str, *, stepped: bool = False, change: NoSampleCause | None = None
    ) -> NoSample:
        return NoSample(self._source, snapshot.boottime_ns, reason, stepped=stepped, change=change)


def _suspended_ns(snapshot: ClockBoundSnapshot) -> int:
    """CLOCK_BOOTTIME minus CLOCK_MONOTONIC, less the time between the two readings: it makes a claim older, never younger."""
    return snapshot.boottime_ns - snapshot.monotonic_ns


def _disruption_text(snapshot: ClockBoundSnapshot, last: ClockBoundSnapshot | None) -> str | None:
    content, before = snapshot.content, last and last.content.disruption_marker
    if content.status is SegmentStatus.DISRUPTED:
        return "ClockBound's status is Disrupted: the clock's error is unknown until it is synchronized again"
    if content.disruption_marker is not None and content.disruption_marker != snapshot.vm_marker:
        return "VMClock reports a disruption that ClockBound has not accounted for yet"
    if content.disruption_marker is not None and before not in (None, content.disruption_marker):
        return "ClockBound's disruption marker changed: the clock was disrupted since the last reading"
    return None


class ClockBoundOptions(Section):
    """`path`: the segment that ClockBound's own daemon writes, of layout version 2."""

    path: FilePath = DEFAULT_PATH
    poll_interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0


class ClockBound:
    """Reads one segment, and writes nothing."""

    Options: ClassVar[type[BaseModel]] = ClockBoundOptions
    timeout_s = 5.0

    def __init__(
        self,
        name: str,
        options: ClockBoundOptions,
        runtime_dir: Path,
        clocks: Clocks | None = None,
        machine: Machine | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.poll_interval_s = options.poll_interval_s
        self._path = options.path
        self._clocks = clocks or SystemClocks()
        self._vmclock = (machine or Machine()).dev / "vmclock0"
        self._monotonic_ns = monotonic_ns
        self._history = ClockBoundHistory(name)

    async def open(self) -> None:
        """The segment is opened at each poll: ClockBound's daemon may replace it."""

    async def poll(self) -> Sequence[Reading]:
        """Raises Unreachable, Malformed and Refused."""
        reading = self._history.take(self._snapshot())
        return [] if reading is None else [reading]

    async def close(self) -> None:
        pass

    def _snapshot(self) -> ClockBoundSnapshot:
        content = read_segment(self._path)
        if content.is_own:
            raise Refused(
                f"{self._path}: timesyncd itself wrote this segment, and its own bound proves nothing: "
                "set path to the segment of ClockBound's daemon"
            )
        boottime_ns, monotonic_ns = self._clocks.boottime_ns(), self._monotonic_ns()
        offset_ns = real_minus_boot_ns(self._clocks)
        return ClockBoundSnapshot(content, boottime_ns, monotonic_ns, offset_ns, self._vm_marker(content))

    def _vm_marker(self, content: SegmentContent) -> int | None:
        """As ClockBound's clients do, where its daemon watches for disruptions. Raises Unreachable and Malformed."""
        if content.disruption_marker is None:
            return None
        marker = disruption_marker(self._vmclock)
        if marker is None:
            raise Unreachable(
                f"{self._vmclock}: no such device, and ClockBound's segment refers to it: "
                "give this daemon the device, or start ClockBound with --disable-clock-disruption-support"
            )
        return marker
