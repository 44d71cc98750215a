"""
Leap seconds: when an announced one is applied, whether one is due, and what is uncertain around it. Pure.

Announce's flags and the kernel's mean the end of the current UTC day, NTP's indicator the end of the month (IEEE 1588-2019, 9.4;
RFC 5905, figure 9). All count from the day's midnight in UTC, which is also where POSIX time repeats or omits a second.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from timesyncd.bound import ErrorBound
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.sample import ClockSample, KernelSample, NoSample, PhcSample, UtcOrigin, UtcSample

_S_PER_DAY = 86_400
_NS_PER_DAY = _S_PER_DAY * NS_PER_S

#: Seconds from 1900, where NTP time begins, to 1970.
_NTP_TO_UNIX_S = 2_208_988_800

#: ptp4l suspends its clock in the last second before midnight, and a deleted second is the last but one.
GUARD_NS = 2 * NS_PER_S

#: While a flag is set so long after midnight, ptp4l assumes that the leap second has passed and that the announced UTC offset does
#: not include it yet (util.c: leap_second_status).
AMBIGUOUS_AFTER_NS = 6 * 3_600 * NS_PER_S

#: An NTP daemon has measured again by then: it polls every 1,024 s at most.
NTP_NOTICES_NS = 3_600 * NS_PER_S


class Leap(StrEnum):
    """What a clock announces: no leap second, one that is inserted or deleted, or (a contradiction) both."""

    NONE = "none"
    INSERT = "insert"
    DELETE = "delete"
    BOTH = "both"

    @classmethod
    def of_flags(cls, leap61: bool, leap59: bool) -> Leap:
        return (cls.BOTH if leap59 else cls.INSERT) if leap61 else cls.DELETE if leap59 else cls.NONE

    @property
    def change_s(self) -> int:
        """What it adds to TAI - UTC."""
        return {Leap.INSERT: 1, Leap.DELETE: -1}.get(self, 0)


@dataclass(frozen=True, slots=True)
class LeapTable:
    """
    The leap seconds that are known: TAI - UTC in seconds since each Unix time, in ascending order. Nothing is known of the time
    from `expires_s` on.
    """

    steps: tuple[tuple[int, int], ...]
    expires_s: int

    def change_at(self, unix_s: int) -> int | None:
        """What is added to TAI - UTC at this midnight: 1, -1, or 0; None where the table does not reach."""
        if unix_s >= self.expires_s:
            return None
        at = bisect_right(self.steps, (unix_s, 10**6)) - 1
        return self.steps[at][1] - self.steps[at - 1][1] if at > 0 and self.steps[at][0] == unix_s else 0

    def offset_at(self, unix_s: int) -> int:
        """TAI - UTC in seconds."""
        return self.steps[max(0, bisect_right(self.steps, (unix_s, 10**6)) - 1)][1]

    def has_changed(self, before_s: int, after_s: int, realtime_ns: int) -> bool:
        """Whether TAI - UTC went from the one to the other at a leap second that has passed."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return any(
            (old, new) == (before_s, after_s) and at_s * NS_PER_S <= realtime_ns for (_, old), (at_s, new) in pairs
        )


def parse_leap_seconds(text: str) -> LeapTable:
    """A leap-seconds.list as of NIST, IERS and tzdata. Raises Malformed."""
    steps, expires_s = [], None
    try:
        for line in text.splitlines():
            if line.startswith("#@"):
                expires_s = int(line[2:].split()[0]) - _NTP_TO_UNIX_S
            elif line.strip() and not line.startswith("#"):
                at, offset_s = line.split()[:2]
                steps.append((int(at) - _NTP_TO_UNIX_S, int(offset_s)))
    except (ValueError, IndexError) as error:
        raise Malformed(f"leap-seconds.list: {error}") from error
    if not steps or expires_s is None or steps != sorted(steps):
        raise Malformed("leap-seconds.list: no leap seconds in ascending order, or no date of expiry")
    return LeapTable(tuple(steps), expires_s)


def end_of_day_s(realtime_ns: int) -> int:
    """The Unix time of the next midnight in UTC."""
    return (realtime_ns // NS_PER_S // _S_PER_DAY + 1) * _S_PER_DAY


def end_of_month_s(realtime_ns: int) -> int:
    """The Unix time at which the next month begins in UTC."""
    day = datetime.fromtimestamp(realtime_ns // NS_PER_S, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((day.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp())


def is_around_month_end(realtime_ns: int) -> bool:
    """Whether this UTC day ends a month, or began one so lately that a flag may still mean that midnight."""
    return any(end_of_day_s(ns) == end_of_month_s(ns) for ns in (realtime_ns, realtime_ns - AMBIGUOUS_AFTER_NS))


def end_of_half_year_s(realtime_ns: int) -> int:
    """The Unix time at which the next half-year begins in UTC: every leap second so far was then."""
    now = datetime.fromtimestamp(realtime_ns // NS_PER_S, UTC)
    return int(datetime(now.year + now.month // 7, 7 if now.month < 7 else 1, 1, tzinfo=UTC).timestamp())


def doubt_text(leap: Leap, at_s: int, table: LeapTable | None) -> str | None:
    """Why a leap second at this midnight is not to be believed; None where nothing speaks against it."""
    if at_s != end_of_month_s((at_s - 1) * NS_PER_S):
        return f"{_date(at_s)} is not the end of a month, and leap seconds are"
    change_s = None if table is None else table.change_at(at_s)
    if change_s is not None:
        known = "no leap second" if change_s == 0 else f"a leap second of {change_s:+} s"
        return None if change_s == leap.change_s else f"leap-seconds.list has {known} then"
    month = (datetime.fromtimestamp(at_s, UTC) - timedelta(days=1)).month
    return None if month in (6, 12) else "every leap second so far was at the end of June or December"


def when_text(leap: Leap, at_s: int) -> str:
    """As "23:59:60 UTC of 2016-12-31 is inserted"."""
    if leap is Leap.BOTH:
        return f"a second is both inserted and deleted at the end of {_date(at_s)} UTC"
    name, verb = ("23:59:60", "inserted") if leap is Leap.INSERT else ("23:59:59", "deleted")
    return f"{name} UTC of {_date(at_s)} is {verb}"


def _date(midnight_s: int) -> str:
    """The day that ends at this midnight."""
    return f"{datetime.fromtimestamp(midnight_s - 1, UTC):%Y-%m-%d}"


def around_leap(bound: ErrorBound, ends: bool, begins: bool, is_uncertain: bool) -> ErrorBound:
    """
    The bound on a day that may end (`ends`) or may have begun (`begins`) with a leap second.

    It does not reach across that midnight, neither forward nor back: there UTC moves by a second against every clock that is not
    stepped in the same instant. `is_uncertain`: the leap second may or may not be in the clock yet, so UTC is uncertain by it.
    """
    into_day_ns = (bound.as_of_ns + bound.real_minus_boot_ns) % _NS_PER_DAY
    limits_ns = [bound.void_after_ns]
    if ends:
        limits_ns.append(max(0, _NS_PER_DAY - GUARD_NS - into_day_ns))
    if begins:
        limits_ns.append(into_day_ns)
    void_after_ns = min(limits_ns)
    bound = replace(bound, void_after_ns=void_after_ns, holdover_after_ns=min(bound.holdover_after_ns, void_after_ns))
    if not is_uncertain:
        return bound
    return replace(bound, utc_hard=bound.utc_hard.plus(NS_PER_S), utc_stat=bound.utc_stat.plus(NS_PER_S))


class LeapWatch:
    """Which midnights are leap seconds, by what the sources announced and by the table."""

    def __init__(self, table: LeapTable | None = None) -> None:
        self.table = table
        self._announced: dict[str, Leap] = {}
        self._announced_midnight_s: int | None = None

    def update(self, source: str, leap: Leap) -> None:
        self._announced[source] = leap

    def drop(self, source: str) -> None:
        """The source's newest sample no longer applies."""
        self._announced.pop(source, None)

    @property
    def is_announced(self) -> bool:
        return any(leap is not Leap.NONE for leap in self._announced.values())

    def limit(self, bound: ErrorBound) -> ErrorBound:
        """The bound as far as it holds around a leap second."""
        realtime_ns = bound.as_of_ns + bound.real_minus_boot_ns
        into_day_ns, end_s = realtime_ns % _NS_PER_DAY, end_of_day_s(realtime_ns)
        is_early = into_day_ns < AMBIGUOUS_AFTER_NS
        if self.is_announced:
            # A flag that is still set so early in the day is that of the midnight before.
            self._announced_midnight_s = end_s - _S_PER_DAY if is_early else end_s
        ends, begins = self._is_leap(end_s), self._is_leap(end_s - _S_PER_DAY)
        if not (ends or begins or self.is_announced):
            return bound
        is_uncertain = (self.is_announced and is_early) or (begins and self._is_late(bound, realtime_ns))
        return around_leap(bound, ends or self.is_announced, begins, is_uncertain)

    def _is_leap(self, midnight_s: int) -> bool:
        return midnight_s == self._announced_midnight_s or bool(self.table and self.table.change_at(midnight_s))

    def _is_late(self, bound: ErrorBound, realtime_ns: int) -> bool:
        """Whether the source may not have noticed the leap second at the beginning of this day, which the table has."""
        into_day_ns = realtime_ns % _NS_PER_DAY
        if self.table is None or not self.table.change_at(end_of_day_s(realtime_ns) - _S_PER_DAY):
            return False
        if bound.utc_seconds_removed is None:
            return into_day_ns < NTP_NOTICES_NS
        return bound.utc_seconds_removed not in (0, self.table.offset_at(realtime_ns // NS_PER_S))


_LEAPS = {leap.value: leap for leap in Leap}


def announced_leap(reading: ClockSample | PhcSample | UtcSample | KernelSample | NoSample) -> Leap | None:
    """What the source announces now; None where this reading does not show it."""
    match reading:
        case ClockSample():
            return Leap.of_flags(reading.leap61, reading.leap59)
        case UtcSample():
            # NTP announces the end of the month, and may do so for all of it.
            if reading.origin is UtcOrigin.CLOCKBOUND:
                return None
            now = is_around_month_end(reading.as_of_ns + reading.real_minus_boot_ns)
            return _LEAPS.get(reading.leap, Leap.NONE) if now else Leap.NONE
        case KernelSample():
            return _LEAPS.get(reading.leap, Leap.NONE)
    return None
