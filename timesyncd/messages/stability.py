"""The answer about a clock's stability; docs/stability.md defines each number. Absent numbers are null, with the reason in `reasons`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from timesyncd.ipc.wire_types import Count64, Int64, RealtimeNs
from timesyncd.messages.node import Message

#: ADEV, TDEV and their like are finite.
Number = Annotated[float, Field(allow_inf_nan=False)]


class DeviationsMessage(Message):
    """Of one observation interval: ADEV has no unit, the others are in ns. `_low`: after the low-pass of 0.1 Hz."""

    tau_ns: Int64
    adev: Number | None
    tdev_ns: Number | None
    mtie_ns: Int64 | None
    tdev_low_ns: Number | None
    mtie_low_ns: Number | None
    terms: Count64


class LimitVerdictMessage(Message):
    """How the worst point compares with one limit of a mask; `source` is the limit's place in the standard."""

    quantity: str
    source: str
    outcome: str
    value_ns: Number | None
    limit_ns: Number | None
    tau_s: Number | None
    reason: str | None


class MaskVerdictMessage(Message):
    """A mask of ITU-T: pass, fail, not enough data, or unknown. `not_compared`: limits without a figure, and why."""

    mask: str
    outcome: str
    limits: list[LimitVerdictMessage]
    not_compared: list[str]


class StabilityReportMessage(Message):
    """What a series of time errors states about its clock, in ns. Gaps and changes of the reference restart all windows."""

    interval_ns: Count64
    begin_ns: Int64 | None
    end_ns: Int64 | None
    samples: Count64
    early: Count64
    gaps: Count64
    reference_changes: Count64
    longest_run_ns: Count64
    max_abs_te_ns: Int64 | None
    constant_te_ns: Number | None
    worst_constant_te_ns: Number | None
    constant_te_blocks: Count64
    max_abs_te_low_ns: Number | None
    range_high_ns: Number | None
    deviations: list[DeviationsMessage]
    verdicts: list[MaskVerdictMessage]
    reasons: dict[str, str]


class StabilitySeries(Message):
    """One series: of a clock source its offset, of a grandmaster one channel. `report` null: unknown, for `problem`."""

    channel: str | None
    report: StabilityReportMessage | None
    problem: str | None


class TimeErrorReadings(Message):
    """
    A source's measured offsets, the oldest first: at `at_ns`, a Unix time, the clock was `te_ns` ahead of `reference`,
    null where that is not known. The three lists have one value a reading. `problem`: why there are none; null: there are
    all of the span.
    """

    as_of_realtime_ns: RealtimeNs
    node: str
    source: str
    begin_realtime_ns: Int64
    end_realtime_ns: Int64
    at_ns: list[Int64]
    te_ns: list[Int64]
    reference: list[str | None]
    problem: str | None


class StabilityAnswer(Message):
    """The stability of a source from `begin_realtime_ns` to `end_realtime_ns`, as measured: it is not the truth."""

    as_of_realtime_ns: RealtimeNs
    source: str
    begin_realtime_ns: Int64
    end_realtime_ns: Int64
    series: list[StabilitySeries]
