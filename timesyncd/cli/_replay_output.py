"""What `timesyncd replay` writes: a row for each line that was replayed, and what a log's report amounts to."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from timesyncd.bound import ClockStatus
from timesyncd.clocks import NS_PER_S
from timesyncd.logs.bounds import BoundRow
from timesyncd.logs.reading import LogFormat
from timesyncd.logs.report import LogReport
from timesyncd.model.replay import REPLAYED_HEADER, ReplayedRow, replayed_line
from timesyncd.units import duration_text

_COLUMNS = REPLAYED_HEADER.rstrip("\n").split(",")

#: What a kind's hard bound is against: a column after those of a trace, where it is none of them.
_REFERENCES = {
    LogFormat.CSV: ("gm_hard_ns", "the grandmaster"),
    LogFormat.PTP4L: ("gm_hard_ns", "the grandmaster"),
    LogFormat.PHC2SYS: ("phc_hard_ns", "the clock that phc2sys follows"),
    LogFormat.CHRONY_TRACKING: ("utc_hard_ns", "UTC, as chronyd has it"),
    LogFormat.CHRONY_MEASUREMENTS: ("corrected_hard_ns", "the server, of chronyd's corrected time"),
}
_MEASUREMENTS = {
    LogFormat.PTP4L: "Syncs",
    LogFormat.PHC2SYS: "readings",
    LogFormat.CHRONY_TRACKING: "updates",
    LogFormat.CHRONY_MEASUREMENTS: "measurements",
}


class Output:
    """Collects rows for one write: a system call per row would double the cost where Python does not buffer stdout."""

    def __init__(self, is_json: bool = False) -> None:
        self.statuses: Counter[ClockStatus] = Counter()
        self.widest: tuple[int, str] | None = None
        self._lines: list[str] = []
        self._is_json = is_json
        self._columns = _COLUMNS
        self._column = self._reference = ""

    def begin(self, kind: LogFormat) -> None:
        """Write the header."""
        self._column, self._reference = _REFERENCES[kind]
        self._columns = _COLUMNS if self._column in _COLUMNS else [*_COLUMNS, self._column]
        if not self._is_json:
            self._lines.append(",".join(self._columns) + "\n")

    def flush(self) -> None:
        sys.stdout.write("".join(self._lines))
        self._lines.clear()
        sys.stdout.flush()

    def put(self, t_s: str, row: ReplayedRow) -> None:
        """A row of the model."""
        self._count(row.status, row.gm_hard_ns, t_s)
        if self._is_json:
            values = (t_s, row.status.name, *row[2:])
            self._lines.append(json.dumps(dict(zip(self._columns, values, strict=True))) + "\n")
        else:
            self._lines.append(replayed_line(t_s, row))

    def put_bound(self, row: BoundRow) -> None:
        """A row that a line of the log gives by itself."""
        self._count(row.status, row.hard_ns, row.t_s)
        is_utc = self._column == "utc_hard_ns"
        values = dict.fromkeys(self._columns, None) | {"t_s": row.t_s, "status": row.status.name}
        cells: dict[str, str | int | None] = {**values, self._column: row.hard_ns}
        if is_utc:
            cells["utc_stat_ns"] = row.hard_ns
        if self._is_json:
            self._lines.append(json.dumps(cells) + "\n")
        else:
            self._lines.append(",".join("" if cell is None else str(cell) for cell in cells.values()) + "\n")

    def _count(self, status: ClockStatus, hard_ns: int | None, t_s: str) -> None:
        self.statuses[status] += 1
        if hard_ns is not None and (self.widest is None or hard_ns > self.widest[0]):
            self.widest = hard_ns, t_s

    def summarize(self, name: str, kind: LogFormat, report: LogReport) -> None:
        """The report of a log: for people on standard error, or as the last line of JSON."""
        self.flush()
        if self._is_json:
            statuses = {status.name: self.statuses[status] for status in ClockStatus}
            widest = {"hard_ns": self.widest[0], "t_s": self.widest[1]} if self.widest else None
            print(json.dumps({"summary": asdict(report) | {"rows": statuses, "widest": widest}}))
            return
        for line in self._summary(name, kind, report):
            print(line, file=sys.stderr)

    def _summary(self, name: str, kind: LogFormat, report: LogReport) -> Iterator[str]:
        span = f"t_s {report.first_t_s} to {report.last_t_s}"
        yield f"{name}: {kind}: {report.measurements} {_MEASUREMENTS[kind]} in {report.lines} lines, {span}"
        yield "  rows: " + ", ".join(f"{status.name} {self.statuses[status]}" for status in ClockStatus)
        if self.widest is None:
            yield f"  no hard bound against {self._reference}"
        else:
            yield f"  widest hard bound against {self._reference}: {duration_text(self.widest[0])} at t_s {self.widest[1]}"
        if report.longest_pause_ns >= 2 * NS_PER_S:
            yield f"  longest pause between two: {duration_text(report.longest_pause_ns)}, until {name}:{report.pause_line}"
        yield from (f"  {line}" for line in events(report))
        yield from (f"  left out: {line}" for line in left_out(name, report))
        yield from (f"  note: {note}" for note in report.notes)


def events(report: LogReport) -> Iterator[str]:
    """What happened to the clock."""
    if report.clock is not None:
        yield f"the bounds are those of {report.clock}, not of the system clock"
    yield from _counts(
        ("steps of the clock", report.steps),
        ("restarts of the program", report.restarts),
        ("changes of the master", report.parent_changes),
        ("another program stepped or steered the clock", report.foreign_steering),
        ("notices that the logging service dropped lines", report.lost),
        ("lines that it dropped, as far as it reports them", report.lost_lines),
        ("places where changes of the port's state are missing", report.contradictions),
        ("measurements with an unlocked servo (s0), whose frequency is not known", report.unlocked),
    )


def left_out(name: str, report: LogReport) -> Iterator[str]:
    """What was not replayed."""
    yield from _counts(
        (f"lines cut or garbled, the first is {name}:{report.first_unreadable}", report.unreadable),
        ("measurements of other instances", report.other_instances),
        ("Syncs of other ports", report.other_ports),
        ("lines that the log has twice", report.duplicates),
        ("messages that say nothing of the clock", report.other_messages),
        ("measurements that bound nothing", report.without_bound),
        ("lines of other programs", report.lines - report.messages - report.lost),
    )


def _counts(*counts: tuple[str, int]) -> Iterator[str]:
    yield from (f"{text}: {count}" for text, count in counts if count)
