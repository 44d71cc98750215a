"""
From the log of phc2sys to bounds of the clock that it steers against the one that it follows. Pure.

Each line is a reading of its own: the offset lies within half the width of the reading. A step (s1) is made after the
reading, and before the line is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from timesyncd.bound import ClockStatus
from timesyncd.errors import TraceError
from timesyncd.logs.bounds import BoundRow
from timesyncd.logs.entries import Entry, LogTime, concerns
from timesyncd.logs.instances import Instance, Instances
from timesyncd.logs.lines import PHC2SYS, Lost
from timesyncd.logs.messages import ClockCheck, Measurement, OffsetSummary, Unreadable
from timesyncd.logs.report import LogReport

_RECENT = 16

SUMMARY_ERROR = (
    'a summary ("rms ... max ...") of several readings: no single one can be replayed from it; run phc2sys without -u'
)


class Phc2sysLog:
    """Reads the messages of phc2sys."""

    def __init__(self, name: str, instances: Instances, report: LogReport) -> None:
        self._name, self._instances, self._report = name, instances, report
        self._current: Instance | None = None
        self._last: LogTime | None = None
        self._recent: deque[tuple[str, str]] = deque(maxlen=_RECENT)

    def rows(self, entries: Iterable[Entry]) -> Iterator[BoundRow]:
        """Each reading's bound. Raises TraceError, also during iteration."""
        for entry in entries:
            if (row := self._row(entry)) is not None:
                yield row
        if self._report.measurements == 0:
            unreadable = self._report.first_unreadable
            where = self._name if unreadable is None else f"{self._name}:{unreadable}"
            raise TraceError(f"{where}: no reading of phc2sys ('... offset N sN freq N delay N') can be read")

    def _row(self, entry: Entry) -> BoundRow | None:
        report, message, instance = self._report, entry.message, entry.instance
        if isinstance(message, Lost):
            report.lost += 1
            report.lost_lines += message.lines or 0
            return None
        if not concerns(entry, PHC2SYS, self._instances):
            return None
        report.messages += 1
        if isinstance(message, Unreadable):
            report.add_unreadable(entry.line)
        elif isinstance(message, ClockCheck):
            report.foreign_steering += 1
        elif instance is None or not isinstance(message, (Measurement, OffsetSummary)):
            report.other_messages += 1
        elif entry.time is None:
            raise TraceError(f"{self._name}:{entry.line}: no time: the line has neither phc2sys' [seconds] nor a date")
        elif self._select(instance, entry.line, entry.time):
            return self._reading(message, entry, entry.time)
        return None

    def _select(self, instance: Instance, line: int, time: LogTime) -> bool:
        self._instances.add(instance, line, time.time_ns)
        if instance not in self._instances:
            self._report.other_instances += 1
            return False
        if instance != self._current:
            self._instances.check(line)
            self._report.restarts += self._current is not None
            self._current = instance
        return True

    def _reading(self, message: Measurement | OffsetSummary, entry: Entry, time: LogTime) -> BoundRow | None:
        report, last = self._report, self._last or time
        if (time.t_s, entry.text) in self._recent:
            report.duplicates += 1
            return None
        self._recent.append((time.t_s, entry.text))
        if isinstance(message, OffsetSummary):
            raise TraceError(f"{self._name}:{entry.line}: {SUMMARY_ERROR}")
        if time.base != last.base or time.time_ns < last.time_ns:
            raise TraceError(
                f"{self._name}:{entry.line}: time goes back from {last.t_s} s to {time.t_s} s: these are lines of two"
                " boots, hosts or instances; give one of them"
            )
        self._last = time
        report.add_measurement(time.t_s, time.time_ns - last.time_ns, entry.line)
        if message.servo == 1:
            report.steps += 1
            return BoundRow(time.t_s, ClockStatus.DISRUPTED, None)
        report.unlocked += message.servo == 0
        if message.delay_ns is None:
            report.without_bound += 1
            report.add_note("without a delay (as of a PPS) the width of the reading is unknown, and so is the bound")
            return BoundRow(time.t_s, ClockStatus.UNKNOWN, None)
        return BoundRow(time.t_s, ClockStatus.SYNCHRONIZED, abs(message.offset_ns) + -(-message.delay_ns // 2))
