"""Durations as text for people and as people write them, text that is safe to print, and quantiles of integers."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence

#: The standard deviation of a normal distribution over its median absolute deviation.
SIGMA_PER_MAD = 1.4826

_SCALES = ((1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s"))
_UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000} | {
    unit: seconds * 1_000_000_000 for unit, seconds in {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}.items()
}


def duration_text(ns: int | None) -> str:
    """
    A duration with three digits and a unit: "532 ns", "1.23 us", "-45.6 ms"; "unknown" for None. Rounded to nearest.
    """
    if ns is None:
        return "unknown"
    text = f"{ns} ns"
    for scale, unit in _SCALES:
        value = ns / scale
        if abs(value) < 0.9995:
            break
        text = f"{value:.{_decimals(abs(value))}f} {unit}"
    return text


def rounded_up_text(ns: int) -> str:
    """The same for a bound, which is 0 or more: rounded up, so that the text claims no less than the number."""
    step = 10 ** max(0, len(str(ns)) - 3)
    return duration_text(-(-ns // step) * step)


def _decimals(value: float) -> int:
    """The number of decimals that make three digits, after rounding."""
    return 2 if value < 9.995 else 1 if value < 99.95 else 0


def span_text(ns: int) -> str:
    """A span of time in at most two units: "3 h 40 min", "45 min", "12 s"; rounded down."""
    seconds = ns // 1_000_000_000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds // 60} min"
    if seconds < 2 * 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3_600} h"


def countdown_text(ns: int) -> str:
    """The time until an event, with seconds below ten minutes: "4 min 10 s", "16 min"; rounded down."""
    if ns < 1_000_000_000:
        return "under 1 s"
    minutes, seconds = divmod(ns // 1_000_000_000, 60)
    return f"{minutes} min {seconds} s" if 1 <= minutes < 10 else span_text(ns)


def limit_text(ns: int) -> str:
    """A limit with its unit, in as few digits as it has: "1 us", "2.5 ms"."""
    scale, unit = next((each for each in reversed(_SCALES) if ns >= each[0]), (1, "ns"))
    return f"{ns / scale:g} {unit}"


def span_ns(text: str) -> int:
    """
    A span of time in ns from "90s", "15m" (or "15min"), "1h" or "2d", and shorter ones as "500ns", "1us", "20ms"; a
    type for argparse.

    Raises ArgumentTypeError.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ns|us|ms|s|m|min|h|d)", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a span of time; write it as 90s, 15m, 1h, 2d, 500ns, 1us or 20ms")
    return round(float(match[1]) * _UNITS_NS[match[2]])


def printable(text: str) -> str:
    """In one line, without what a terminal acts on: everything unprintable, a line's end too, as its escape."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def percentile(values: Sequence[int], percent: int) -> int:
    """
    The nearest-rank percentile: the smallest value that at least `percent` percent of the values do not exceed. For one
    value or more.
    """
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def median(values: Sequence[int]) -> int | None:
    """The lower median, so it is one of the values; None without values."""
    return percentile(values, 50) if values else None
