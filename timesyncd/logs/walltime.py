"""The date and time that a logging service puts before a message: used only where linuxptp's own stamp is missing. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S

_ISO = re.compile(
    r"(?:[A-Z][a-z]{2} )?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s*"
    r"(?:Z|([+-])(\d\d):?(\d\d)|[A-Z]{2,5})?(?: stdout F| stderr F)?"
)
_SHORT = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?")
_UNIX = re.compile(r"(\d{9,11})\.(\d{1,9})")
_UNIX_US = re.compile(r"\d{15,17}")
_MONOTONIC = re.compile(r"\[\s*(\d{1,11})\.(\d{6})\]")

#: The short form has no year. A leap year has each date that may occur.
_YEAR = 2024


class WallTime(NamedTuple):
    """Nanoseconds since 1970 or, without a year, since some year's begin. `is_whole`: the fraction was not logged."""

    time_ns: int
    is_whole: bool


def parse_walltime(text: str) -> WallTime | None:
    """A date and time in a form of syslog, journalctl or Kubernetes; None: in no known form."""
    try:
        return _parsed(text)
    except (ValueError, OverflowError):
        return None


def _parsed(text: str) -> WallTime | None:
    if (found := _ISO.fullmatch(text)) is not None:
        date, clock, fraction, sign, hours, minutes = found.groups()
        moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=UTC)
        if sign is not None:
            moment -= (1 if sign == "+" else -1) * timedelta(hours=int(hours), minutes=int(minutes))
        return _with_fraction(moment, fraction)
    if (found := _SHORT.fullmatch(text)) is not None:
        month, day, clock, fraction = found.groups()
        moment = datetime.strptime(f"{_YEAR} {month} {day} {clock}", "%Y %b %d %H:%M:%S")
        return _with_fraction(moment.replace(tzinfo=UTC), fraction)
    if (found := _UNIX.fullmatch(text) or _MONOTONIC.fullmatch(text)) is not None:
        return WallTime(int(found[1]) * NS_PER_S + _fraction_ns(found[2]), is_whole=False)
    if _UNIX_US.fullmatch(text):
        return WallTime(int(text) * 1_000, is_whole=False)
    return None


def _with_fraction(moment: datetime, fraction: str | None) -> WallTime:
    seconds = round((moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1))
    return WallTime(seconds * NS_PER_S + _fraction_ns(fraction or ""), is_whole=fraction is None)


def _fraction_ns(digits: str) -> int:
    return int((digits + "000000000")[:9])
