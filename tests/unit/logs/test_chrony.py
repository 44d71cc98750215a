"""Bounds by the lines of chronyd's tracking.log."""

from __future__ import annotations

import pytest

from timesyncd.bound import ClockStatus
from timesyncd.logs.bounds import BoundRow
from timesyncd.logs.reading import LogFormat, read_log

LINE = (
    "2024-03-10 10:00:00 {source:<15} {stratum:2d}     12.345      0.010  1.000e-05 {leap}  1  1.000e-06  0.000e+00"
    "  1.000e-03  {dispersion}  1.000e-03\n"
)


@pytest.mark.parametrize(
    ("changes", "hard_ns"),
    [
        ({}, 610_305),
        ({"leap": "+"}, 610_305),
        ({"leap": "?"}, None),
        ({"stratum": 0}, None),
        ({"stratum": 16}, None),
        ({"source": "PPS0"}, None),
        ({"source": "127.127.1.1"}, None),
        ({"source": "ID#0000000001"}, None),
        ({"dispersion": "1.000e+99"}, None),
    ],
)
def test_a_line_bounds_the_clock_where_chronyd_is_synchronised(changes: dict[str, object], hard_ns: int | None) -> None:
    """To a server of a stratum below 16, whose error is plausible."""
    fields = {"source": "192.0.2.1", "stratum": 2, "leap": "N", "dispersion": "1.000e-04"} | changes
    _, rows = read_log([LINE.format(**fields)], "tracking.log", LogFormat.CHRONY_TRACKING)

    status = ClockStatus.UNKNOWN if hard_ns is None else ClockStatus.SYNCHRONIZED
    assert list(rows) == [BoundRow("1710064800", status, hard_ns)]
