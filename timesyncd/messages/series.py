"""Answers about the past, for charts: quantities on a grid of equal steps, states as spans, and a job's lateness by rank and step."""

from __future__ import annotations

from timesyncd.ipc.wire_types import Count64, Int64, RealtimeNs
from timesyncd.messages.node import Message


class QuantitySeries(Message):
    """One value for each step; null: nothing is known of that step. `median` is weighted by the number of samples."""

    minimum: list[Int64 | None]
    median: list[Int64 | None]
    maximum: list[Int64 | None]


class SeriesAnswer(Message):
    """
    Quantities over time, as of `as_of_realtime_ns`. Step k begins at `begin_ms` + k x `step_ms`, in milliseconds of Unix
    time, and all quantities share the `steps` steps. `lag_ns` is the time since the newest value ended; null: there is
    none. A quantity of which nothing is stored is left out.
    """

    as_of_realtime_ns: RealtimeNs
    lag_ns: Count64 | None
    begin_ms: Int64
    step_ms: Count64
    steps: Count64
    quantities: dict[str, QuantitySeries]


class StateSpan(Message):
    """What a grandmaster reported from `begin_ms` to `end_ms`. All null: it was not polled, or did not answer."""

    begin_ms: Int64
    end_ms: Int64
    clock_state: str | None = None
    gnss_state: str | None = None
    antenna: str | None = None


class StatesAnswer(Message):
    """The states of a grandmaster over time, without holes between the spans."""

    as_of_realtime_ns: RealtimeNs
    lag_ns: Count64 | None
    spans: list[StateSpan]


class SkyAnswer(Message):
    """
    The C/N0 of each satellite over time, in dBHz: `cn0_db_hz[s][k]` is that of `satellites[s]` in step k; null: it was
    not tracked, or the grandmaster does not provide it.
    """

    as_of_realtime_ns: RealtimeNs
    lag_ns: Count64 | None
    begin_ms: Int64
    step_ms: Count64
    steps: Count64
    satellites: list[Int64]
    cn0_db_hz: list[list[Int64 | None]]


class RacksAnswer(Message):
    """
    The racks over time, as a hub saw them: `widest_bound_ns[r][k]` is the widest bound of a node of `racks[r]` in step k
    (null: no node had one, or nothing is known), and `without_bound[r][k]` the most nodes that had none (null: nothing is
    known).
    """

    as_of_realtime_ns: RealtimeNs
    lag_ns: Count64 | None
    begin_ms: Int64
    step_ms: Count64
    steps: Count64
    racks: list[str]
    widest_bound_ns: list[list[Int64 | None]]
    without_bound: list[list[Int64 | None]]


class LatenessMatrix(Message):
    """
    Each rank's lateness in each of a job's newest closed steps: its arrival minus the median rank's, in the step's
    synchronization with the largest skew.

    `lateness` is base64 of little-endian int32: row by row, one row for each of `steps` (keys, the oldest first), one
    number for each of `ranks`; times `unit_ns` it is the lateness in ns, and -2^31 means that nothing is known.
    `error_ns` has for each step the error of its differences, by the ranks' clocks: a lateness within it is no
    lateness. null: the clocks of that step do not compare. `begins_ms` is when the step's first rank arrived.
    """

    as_of_realtime_ns: RealtimeNs
    lag_ns: Count64 | None
    job_id: str
    job: str
    ranks: list[Int64]
    nodes: list[str]
    steps: list[Int64]
    begins_ms: list[Int64 | None]
    error_ns: list[Count64 | None]
    unit_ns: Count64
    lateness: str
