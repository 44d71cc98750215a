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
    """
    One series: of a clock source its offset, of a grandmaster one channel, of a pair the difference. `report` null: unknown, for
    `problem`. Of a pair `references` are what both nodes were compared against, and `left_out` states what was not compared.
    """

    channel: str | None
    report: StabilityReportMessage | None
    problem: str | None
    references: list[str] = []
    left_out: str = ""


class MaskSegmentMessage(Message):
    """The limit is `base_ns` + `slope_ns_per_s` x tau for tau in (`after_s`, `until_s`], in s; `until_s` null: without end."""

    after_s: Number
    until_s: Number | None
    base_ns: Number
    slope_ns_per_s: Number


class MaskLimitMessage(Message):
    """One quantity's limit: `flat_ns`, or by observation interval in `segments`."""

    quantity: str
    flat_ns: Number | None
    segments: list[MaskSegmentMessage]


class MaskMessage(Message):
    """The limits of a mask that are known here, for a chart."""

    name: str
    limits: list[MaskLimitMessage]


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
    """
    The stability of a source of `node` from `begin_realtime_ns` to `end_realtime_ns`, as measured: it is not the truth.
    `against` is the node whose source of the same name was subtracted; null: none. `problem`: why there is no series; null: there
    is one, or more. `peers` are the other nodes that can be asked for, and `masks` the limits behind the verdicts.
    """

    as_of_realtime_ns: RealtimeNs
    node: str
    source: str
    against: str | None = None
    begin_realtime_ns: Int64
    end_realtime_ns: Int64
    series: list[StabilitySeries]
    problem: str | None = None
    peers: list[str] = []
    masks: list[MaskMessage] = []
