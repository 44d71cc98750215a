"""
The bound that one line of a log gives by itself, without the model: what phc2sys and chronyd measure. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from timesyncd.bound import ClockStatus

#: Columns after those of a replayed trace: bounds against another reference than the grandmaster or UTC.
PHC_COLUMN, CORRECTED_COLUMN = "phc_hard_ns", "corrected_hard_ns"


class BoundRow(NamedTuple):
    """
    The bound at one line; None = unbounded. `hard_ns` is against the reference of the log: UTC (tracking.log), the
    clock that phc2sys follows, or the server, for chronyd's corrected time (measurements.log).
    """

    t_s: str
    status: ClockStatus
    hard_ns: int | None
