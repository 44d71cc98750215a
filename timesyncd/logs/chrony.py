"""
From chronyd's tracking.log and measurements.log to bounds. Pure; the columns are those of chrony.conf(5), `log`.

tracking.log: at each update the system clock is off by `Offset` minus `Rem. corr.` (positive = fast), within the root
distance: half of `Root delay` plus `Root disp.`. Both columns count: chronyd measures against its corrected time, which
is ahead of the system clock by the correction that it has still to make.

measurements.log does not contain that correction, so its bounds are those of the corrected time, not of the clock.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from timesyncd.bound import ClockStatus
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import TraceError
from timesyncd.logs.bounds import BoundRow
from timesyncd.logs.instances import Instance, Instances
from timesyncd.logs.lines import Origin
from timesyncd.logs.report import LogReport
from timesyncd.model.error_bound import MAX_PLAUSIBLE_NS

_WHEN = r"(?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?P<source>\S+) +"
#: RFC 5905, figure 11: 0 is unspecified, 16 unsynchronised.
_SYNCHRONISED_STRATA = range(1, 16)

_FLOAT = r"([+-]?\d\.\d{3}e[+-]\d\d)"
_DECIMAL = r"-?\d{1,9}\.\d{3}"

TRACKING = re.compile(
    _WHEN
    + rf"(?P<stratum>\d+) +{_DECIMAL} +{_DECIMAL} +{_FLOAT} (?P<leap>[N+?-]) +\d+ +{_FLOAT} +{_FLOAT} +{_FLOAT} +{_FLOAT}"
    rf"(?: +{_FLOAT})?"
)
MEASUREMENT = re.compile(
    _WHEN
    + rf"(?P<leap>[N+?-]) +\d+ (?P<tests>[01]{{3}} [01]{{3}} [01]{{3,4}}) +-?\d+ +-?\d+ +[\d.]+ +{_FLOAT} +{_FLOAT} +{_FLOAT}"
    rf" +{_FLOAT} +{_FLOAT} +[0-9A-F]{{8}}(?: .*)?"
)
_BANNER = re.compile(r"=+|\s*Date \(UTC\) Time .*|\s*")


class ChronyLog:
    """Reads one of the two logs, by its lines' `form` (TRACKING or MEASUREMENT)."""

    def __init__(self, name: str, form: re.Pattern[str], instances: Instances, report: LogReport) -> None:
        self._name, self._form, self._instances, self._report = name, form, instances, report
        self._last: tuple[int, str] | None = None
        self._margin_ns = 0

    def rows(self, lines: Iterable[str]) -> Iterator[BoundRow]:
        """The bound at each update or measurement. Raises TraceError, also during iteration."""
        report = self._report
        for number, line in enumerate(lines, start=1):
            report.messages += 1
            text = line.rstrip("\r\n")
            found = self._form.fullmatch(text.strip())
            if found is None:
                if not _BANNER.fullmatch(text):
                    report.add_unreadable(number)
            elif (row := self._row(found, number)) is not None:
                yield row
        if report.measurements == 0:
            where = self._name if report.first_unreadable is None else f"{self._name}:{report.first_unreadable}"
            raise TraceError(f"{where}: no line of chronyd's {report.kind.removeprefix('chrony-')}.log can be read")

    def _row(self, found: re.Match[str], line: int) -> BoundRow | None:
        seconds, source = self._seconds(found["when"], line), found["source"]
        is_tracking = self._form is TRACKING
        if not is_tracking:
            instance = Instance(Origin(source))
            self._instances.add(instance, line, 0)
            if instance not in self._instances:
                self._report.other_instances += 1
                return None
            self._check_sources(line)
        pause_ns = 0 if self._last is None else max(0, seconds - self._last[0]) * NS_PER_S
        self._check_time(seconds, found["when"], line)
        self._report.add_measurement(str(seconds), pause_ns, line)
        bound_ns = self._tracking_ns(found) if is_tracking else self._measurement_ns(found)
        if bound_ns is not None and bound_ns > MAX_PLAUSIBLE_NS:
            self._report.add_note("an error of more than a century bounds nothing")
            bound_ns = None
        self._margin_ns = bound_ns or 0
        if bound_ns is None:
            self._report.without_bound += 1
            return BoundRow(str(seconds), ClockStatus.UNKNOWN, None)
        return BoundRow(str(seconds), ClockStatus.SYNCHRONIZED, bound_ns)

    def _check_sources(self, line: int) -> None:
        if len(self._instances) > 1:
            self._instances.check(line)

    def _seconds(self, when: str, line: int) -> int:
        try:
            return int(datetime.strptime(when, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
        except ValueError as error:
            raise TraceError(f"{self._name}:{line}: {when!r} is not a date and time") from error

    def _check_time(self, seconds: int, when: str, line: int) -> None:
        """The lines are dated by the clock itself, which goes back where chronyd steps it by the offset just logged."""
        if self._last is not None and (self._last[0] - 1 - seconds) * NS_PER_S > self._margin_ns:
            raise TraceError(
                f"{self._name}:{line}: time goes back from {self._last[1]} to {when}, and no step of the clock explains"
                " it: are these two logs?"
            )
        if self._last is not None and seconds < self._last[0] - 1:
            self._report.steps += 1
        self._last = seconds, when

    def _tracking_ns(self, found: re.Match[str]) -> int | None:
        """The bound on |system clock - UTC|; None: chronyd follows no server, or a reference clock."""
        if found["leap"] == "?" or int(found["stratum"]) not in _SYNCHRONISED_STRATA:
            self._report.add_note(
                "where chronyd is not synchronised (leap status ?, stratum 0 or 16), nothing is known"
            )
            return None
        if not _is_address(found["source"]):
            self._report.add_note(
                f"{found['source']} is a reference clock, or the clock itself: its own error is not in the log"
            )
            return None
        offset, _, remaining, delay, dispersion, *_ = _values(found)
        offset_ns = abs(offset[0] - remaining[0])
        rounded_ns = offset[1] + remaining[1] + delay[1] / 2 + dispersion[1]
        return math.ceil(offset_ns + delay[0] / 2 + dispersion[0] + rounded_ns)

    def _measurement_ns(self, found: re.Match[str]) -> int | None:
        """The bound on |chronyd's corrected time - the server's UTC|; None: chronyd's own tests failed."""
        if "0" in found["tests"] or found["leap"] == "?":
            self._report.add_note("measurements that failed chronyd's tests, or of a server without UTC, give no bound")
            return None
        offset, delay, dispersion, root_delay, root_dispersion = _values(found)
        values = abs(offset[0]) + (delay[0] + root_delay[0]) / 2 + dispersion[0] + root_dispersion[0]
        rounded = offset[1] + (delay[1] + root_delay[1]) / 2 + dispersion[1] + root_dispersion[1]
        return math.ceil(values + rounded)


def _values(found: re.Match[str]) -> list[tuple[float, float]]:
    """The floating-point columns in nanoseconds, each with the most that its rounding to four digits has hidden."""
    texts = [text for text in found.groups() if text is not None and re.fullmatch(_FLOAT, text)]
    return [(float(text) * NS_PER_S, _rounding_ns(text)) for text in texts]


def _rounding_ns(text: str) -> float:
    """A value that is not 0 is never written as 0."""
    return 0.5e-3 * 10.0 ** int(text[-3:]) * NS_PER_S if float(text) else 0.0


def _is_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return str(address) != "127.127.1.1" and not address.is_unspecified
