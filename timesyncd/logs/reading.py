"""Which log it is, and its rows: for `timesyncd replay`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain

from timesyncd.logs.bounds import BoundRow
from timesyncd.logs.chrony import MEASUREMENT, TRACKING, ChronyLog
from timesyncd.logs.entries import read_entries
from timesyncd.logs.instances import Instance, Instances
from timesyncd.logs.lines import PHC2SYS, PTP4L, Head, Marker, Origin, parse_line
from timesyncd.logs.messages import Measurement, OffsetSummary
from timesyncd.logs.phc2sys import Phc2sysLog
from timesyncd.logs.ptp4l import Ptp4lLog
from timesyncd.logs.report import LogReport
from timesyncd.model.replay import TraceRow

#: So many lines of a pipe are read until one shows what it is.
_PEEKED = 100_000

#: A column of a trace, by which its header is recognized.
_TRACE_COLUMN = "t_s"


class LogFormat(StrEnum):
    """What a file holds, by the names that --from takes."""

    CSV = "csv"
    PTP4L = "ptp4l-log"
    PHC2SYS = "phc2sys-log"
    CHRONY_TRACKING = "chrony-tracking"
    CHRONY_MEASUREMENTS = "chrony-measurements"


_PROGRAMS = {PTP4L: LogFormat.PTP4L, PHC2SYS: LogFormat.PHC2SYS}
_PROGRAM_OF = {kind: program for program, kind in _PROGRAMS.items()}
_FORMS = {LogFormat.CHRONY_TRACKING: TRACKING, LogFormat.CHRONY_MEASUREMENTS: MEASUREMENT}
_BANNERS = {"Rem. corr.": LogFormat.CHRONY_TRACKING, "Peer disp.": LogFormat.CHRONY_MEASUREMENTS}

LogRow = tuple[str, TraceRow] | BoundRow


def kind_of_line(line: str) -> LogFormat | None:
    """What a file with this line holds; None: the line does not show it."""
    text = line.strip()
    if _TRACE_COLUMN in [cell.strip(' "\ufeff') for cell in text.split(",")]:
        return LogFormat.CSV
    for kind, form in _FORMS.items():
        if form.fullmatch(text):
            return kind
    if "Date (UTC) Time" in text:
        return next((kind for column, kind in _BANNERS.items() if column in text), None)
    for entry in read_entries([line]):
        if entry.message is not None and entry.instance is not None and entry.program is not None:
            return _PROGRAMS[entry.program]
    return None


def peek_kind(lines: Iterator[str], most: int = _PEEKED) -> tuple[LogFormat | None, Iterator[str]]:
    """The kind by the first line that shows it, among the first `most`; and all lines."""
    peeked: list[str] = []
    for line in lines:
        peeked.append(line)
        if (kind := kind_of_line(line)) is not None:
            return kind, chain(peeked, lines)
        if len(peeked) == most:
            break
    return None, chain(peeked, lines)


def survey(lines: Iterable[str], name: str, kind: LogFormat | None, wanted: str | None) -> LogFormat | None:
    """
    Read a whole file before it is replayed: its kind, where that is not given, and whether its instances are clear.

    A log of both programs is that of ptp4l, unless `wanted` is an instance of phc2sys. None: no line shows a kind.
    Raises TraceError where there are several instances to choose among.
    """
    rest, shown, counting = iter(lines), kind, list[str]()
    if kind is None:
        for line in rest:
            if (shown := kind_of_line(line)) is not None:
                rest = chain(counting, [line], rest)
                break
            if isinstance(parse_line(line), (Head, Marker)):
                counting.append(line)  # the instances of the following lines depend on it
    if shown is LogFormat.CHRONY_MEASUREMENTS:
        _survey_servers(rest, Instances(name, wanted))
    elif shown in (LogFormat.PTP4L, LogFormat.PHC2SYS):
        found = _survey_programs(rest, name, wanted)
        if kind is None:
            order = [*(program for program in found if len(found[program])), *(p for p in found if found[p].others)]
            shown = _PROGRAMS[order[0]] if order else shown
        found[_PROGRAM_OF[shown]].check()
    return shown


def _survey_servers(lines: Iterable[str], servers: Instances) -> None:
    for line in lines:
        if (measured := MEASUREMENT.fullmatch(line.strip())) is not None:
            servers.add(Instance(Origin(measured["source"])), 0, 0)
    servers.check()


def _survey_programs(lines: Iterable[str], name: str, wanted: str | None) -> dict[str, Instances]:
    found = {program: Instances(name, wanted) for program in _PROGRAMS}
    for entry in read_entries(lines):
        if entry.program is None or entry.instance is None or entry.time is None:
            continue
        if isinstance(entry.message, (Measurement, OffsetSummary)):
            found[entry.program].add(entry.instance, entry.line, entry.time.time_ns)
    return found


def read_log(
    lines: Iterable[str], name: str, kind: LogFormat, wanted: str | None = None, port: str | None = None
) -> tuple[LogReport, Iterator[LogRow]]:
    """
    The rows of a log other than a CSV trace, each on demand, and the report, which is complete after the last row.

    `wanted` is the instance to replay, `port` the port of ptp4l. The iteration raises TraceError.
    """
    report, instances = LogReport(kind.value), Instances(name, wanted)
    lines = report.count_lines(lines)
    if kind is LogFormat.PTP4L:
        return report, Ptp4lLog(name, instances, report, port).rows(read_entries(lines))
    if kind is LogFormat.PHC2SYS:
        return report, Phc2sysLog(name, instances, report).rows(read_entries(lines))
    return report, ChronyLog(name, _FORMS[kind], instances, report).rows(lines)
