"""Where each trace is on the common clock, within which bound, and why a trace is not aligned."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Self

from timesyncd.bound import growth_ns
from timesyncd.client.anchors import Anchor, ReferenceOffset
from timesyncd.clocks import NS_PER_S
from timesyncd.traces.anchors import AnchorFile, is_continuous, suspended_ns
from timesyncd.traces.reader import TraceOutline
from timesyncd.units import duration_text

#: The assumed error of a profiler's CLOCK_REALTIME where no annotated anchor measures it; docs/traces.md has the
#: figures.
PROFILER_NS = 2_000

#: An annotation further than this from its anchor belongs to an anchor of another run.
MAX_PROFILER_NS = 1_000_000

#: The longest time between two anchors, and from a trace's begin or end to the nearest anchor.
MAX_ANCHOR_GAP_NS = 60 * NS_PER_S
MAX_BEYOND_ANCHORS_NS = 5 * NS_PER_S


class AxisReference(StrEnum):
    """What the traces' common clock is. `text` is for people."""

    text: str

    def __new__(cls, name: str, text: str) -> Self:
        reference = str.__new__(cls, name)
        reference._value_ = name
        reference.text = text
        return reference

    ONE_CLOCK = "one_clock", "the clock that all ranks read"
    GRANDMASTER = "grandmaster", "the grandmaster"
    UTC = "utc", "UTC"


class UnalignedReason(StrEnum):
    """Why a trace is not aligned, for programs."""

    NO_ANCHORS = "no_anchors"
    NO_EVENTS = "no_events"
    BEGINS_BEFORE_ANCHORS = "begins_before_anchors"
    ENDS_AFTER_ANCHORS = "ends_after_anchors"
    ANCHORS_TOO_FAR_APART = "anchors_too_far_apart"
    CLOCK_STEPPED = "clock_stepped"
    MACHINE_SUSPENDED = "machine_suspended"
    ANNOTATIONS_OF_ANOTHER_RUN = "annotations_of_another_run"
    CLOCK_ERROR_UNKNOWN = "clock_error_unknown"
    GRANDMASTER_CHANGED = "grandmaster_changed"
    GRANDMASTER_UNKNOWN = "grandmaster_unknown"
    OTHER_GRANDMASTER = "other_grandmaster"


@dataclass(frozen=True, slots=True)
class Unaligned:
    """Why a trace is not aligned: as a code, and in one line for people."""

    code: UnalignedReason
    reason: str


NO_ANCHORS = Unaligned(
    UnalignedReason.NO_ANCHORS, "the trace has no anchors; record them with timesyncd.client.Anchors"
)
NO_EVENTS = Unaligned(UnalignedReason.NO_EVENTS, "the trace has no events with a time")

_Scale = tuple[AxisReference, str | int | None, int | None]


@dataclass(frozen=True, slots=True)
class OffsetPoint:
    """
    At `realtime_ns` CLOCK_REALTIME minus the common clock is `offset_ns`, within +- `bound_ns` until the next point.
    """

    realtime_ns: int
    offset_ns: int
    bound_ns: int


@dataclass(frozen=True, slots=True)
class TraceAlignment:
    """
    A trace on the common clock.

    `reason_code`, `reason`: why it is not aligned; its times are CLOCK_REALTIME then. `bound_ns`: limit of the error of
    the events' times, which includes the clock's error and the profiler's, `profiler_ns`. `profiler_offset_ns`: the
    profiler's clock minus CLOCK_REALTIME.
    """

    reason_code: UnalignedReason | None = None
    reason: str = ""
    points: tuple[OffsetPoint, ...] = ()
    bound_ns: int | None = None
    profiler_ns: int = 0
    profiler_offset_ns: int = 0
    profiler_measured: bool = False
    anchors: int = 0
    _starts: list[int] = field(default_factory=list, repr=False)

    def at(self, profiler_ns: int) -> int:
        """
        The common clock when the profiler's clock showed `profiler_ns`. Between two points the offset is interpolated
        linearly.
        """
        real_ns = profiler_ns - self.profiler_offset_ns
        if not self.points:
            return profiler_ns
        after = bisect_right(self._starts, real_ns)
        one = self.points[max(0, after - 1)]
        other = self.points[min(after, len(self.points) - 1)]
        if one.offset_ns == other.offset_ns:
            return real_ns - one.offset_ns
        elapsed_ns, between_ns = real_ns - one.realtime_ns, other.realtime_ns - one.realtime_ns
        return real_ns - one.offset_ns - (other.offset_ns - one.offset_ns) * elapsed_ns // between_ns


@dataclass(frozen=True, slots=True)
class CommonAxis:
    """The common clock of the merged trace, and the alignment of each file, in the order of the files."""

    reference: AxisReference
    alignments: tuple[TraceAlignment, ...]

    def pair_bound_ns(self) -> int | None:
        """
        Limit of the error between the times of two events of different files; None: fewer than two files are aligned.
        """
        bounds = sorted(known.bound_ns for known in self.alignments if known.bound_ns is not None)
        return sum(bounds[-2:]) if len(bounds) > 1 else None


def align(files: Sequence[tuple[TraceOutline, AnchorFile | None]]) -> CommonAxis:
    """
    Align files on the clock that all of them read, if they read one; else on the grandmaster that most of them follow;
    else on UTC. A file without that reference is not aligned.
    """
    around = [_anchors_around(outline, anchored) for outline, anchored in files]
    owners = {(found.owner.boot_id, found.owner.time_namespace) for _, found in files if found is not None}
    usable = [each for each in around if not isinstance(each, Unaligned)]
    if len(owners) == 1:
        own = (_aligned_by_own_clock(file, each) for file, each in zip(files, around, strict=True))
        return CommonAxis(AxisReference.ONE_CLOCK, tuple(own))
    chosen = _most_frequent_scale(usable)
    scale = None if chosen is None else chosen[0]
    by_utc = sum(all(anchor.utc.bound_ns is not None for anchor in each) for each in usable)
    if chosen is not None and by_utc > chosen[1]:
        scale = None
    reference = AxisReference.UTC if scale is None else AxisReference.GRANDMASTER
    return CommonAxis(
        reference, tuple(_aligned_by(file, each, scale) for file, each in zip(files, around, strict=True))
    )


def _most_frequent_scale(usable: Sequence[Sequence[Anchor]]) -> tuple[_Scale, int] | None:
    """The scale that most files share, and how many do; None: no file has one."""
    scales = [_scale(each) for each in usable]
    counted = Counter(scale for scale in scales if scale is not None)
    return max(counted.items(), key=lambda item: item[1]) if counted else None


def _unaligned(why: Unaligned, anchors: int = 0) -> TraceAlignment:
    return TraceAlignment(reason_code=why.code, reason=why.reason, anchors=anchors)


def _aligned_by_own_clock(
    file: tuple[TraceOutline, AnchorFile | None], around: Sequence[Anchor] | Unaligned
) -> TraceAlignment:
    return _unaligned(around) if isinstance(around, Unaligned) else _aligned(file, around, _no_offset)


def _aligned_by(
    file: tuple[TraceOutline, AnchorFile | None], around: Sequence[Anchor] | Unaligned, scale: _Scale | None
) -> TraceAlignment:
    """`scale` None: UTC."""
    if isinstance(around, Unaligned):
        return _unaligned(around)
    if scale is not None and _scale(around) is None:
        return _unaligned(_why_no_scale(around), len(around))
    if scale is not None and _scale(around) != scale:
        other = Unaligned(
            UnalignedReason.OTHER_GRANDMASTER,
            "the clock follows another grandmaster, or another number of seconds is removed from it",
        )
        return _unaligned(other, len(around))
    if scale is None and any(anchor.utc.bound_ns is None for anchor in around):
        return _unaligned(_clock_error_unknown(around, _utc), len(around))
    return _aligned(file, around, _utc if scale is None else _gm)


def _scale(around: Sequence[Anchor]) -> _Scale | None:
    """What a clock's gm bound is against; gm bounds against the same scale compare. None: unknown, or it changed."""
    scales = {(anchor.grandmaster_identity, anchor.utc_seconds_removed) for anchor in around}
    identity, seconds = next(iter(scales))
    if len(scales) != 1 or identity is None or seconds is None or any(each.gm.bound_ns is None for each in around):
        return None
    return AxisReference.GRANDMASTER, identity, seconds


def _why_no_scale(around: Sequence[Anchor]) -> Unaligned:
    if any(anchor.gm.bound_ns is None for anchor in around):
        return _clock_error_unknown(around, _gm)
    if len({(anchor.grandmaster_identity, anchor.utc_seconds_removed) for anchor in around}) > 1:
        return Unaligned(UnalignedReason.GRANDMASTER_CHANGED, "the clock's grandmaster changed during the trace")
    return Unaligned(
        UnalignedReason.GRANDMASTER_UNKNOWN,
        "the clock's grandmaster, or the number of seconds removed from it, is unknown",
    )


def _clock_error_unknown(around: Sequence[Anchor], part: Callable[[Anchor], ReferenceOffset]) -> Unaligned:
    unknown = (anchor for anchor in around if part(anchor).bound_ns is None)
    why = next((anchor.reason or anchor.status for anchor in unknown), "no reason given")
    return Unaligned(UnalignedReason.CLOCK_ERROR_UNKNOWN, f"the clock's error is unknown: {why}")


def _gm(anchor: Anchor) -> ReferenceOffset:
    return anchor.gm


def _utc(anchor: Anchor) -> ReferenceOffset:
    return anchor.utc


def _no_offset(_anchor: Anchor) -> ReferenceOffset:
    """The offset of a clock from itself."""
    return ReferenceOffset(0, 0, 0, 0)


def _anchors_around(outline: TraceOutline, anchored: AnchorFile | None) -> Sequence[Anchor] | Unaligned:
    """The anchors from the last one before the trace to the first one after it, or why they cannot align the trace."""
    if anchored is None or not anchored.anchors:
        return NO_ANCHORS
    if outline.begin_ns is None or outline.end_ns is None:
        return NO_EVENTS
    begin_ns, end_ns, anchors = outline.begin_ns, outline.end_ns, anchored.anchors
    first = max((n for n, each in enumerate(anchors) if each.realtime_ns <= begin_ns), default=0)
    last = min(
        (n for n, each in enumerate(anchors) if each.realtime_ns >= end_ns and n >= first), default=len(anchors) - 1
    )
    around = anchors[first : last + 1]
    for one, other in pairwise(around):
        if not is_continuous(one, other):
            return _disruption(one, other)
    return _too_far(around, begin_ns, end_ns) or around


def _too_far(around: Sequence[Anchor], begin_ns: int, end_ns: int) -> Unaligned | None:
    """Whether the anchors are too far from the trace's ends, or from each other."""
    early_ns, late_ns = around[0].realtime_ns - begin_ns, end_ns - around[-1].realtime_ns
    allowed = f"at most {duration_text(MAX_BEYOND_ANCHORS_NS)} is allowed"
    if early_ns > MAX_BEYOND_ANCHORS_NS:
        reason = f"the trace begins {duration_text(early_ns)} before its first anchor; {allowed}"
        return Unaligned(UnalignedReason.BEGINS_BEFORE_ANCHORS, reason)
    if late_ns > MAX_BEYOND_ANCHORS_NS:
        reason = f"the trace ends {duration_text(late_ns)} after its last anchor; {allowed}"
        return Unaligned(UnalignedReason.ENDS_AFTER_ANCHORS, reason)
    widest_ns = max((other.monotonic_ns - one.monotonic_ns for one, other in pairwise(around)), default=0)
    if widest_ns > MAX_ANCHOR_GAP_NS:
        allowed = f"at most {duration_text(MAX_ANCHOR_GAP_NS)} is allowed"
        reason = f"two successive anchors of the trace are {duration_text(widest_ns)} apart; {allowed}"
        return Unaligned(UnalignedReason.ANCHORS_TOO_FAR_APART, reason)
    return None


def _disruption(one: Anchor, other: Anchor) -> Unaligned:
    stepped_ns = other.real_minus_boot_ns - one.real_minus_boot_ns
    slept_ns = suspended_ns(one, other)
    if slept_ns > abs(stepped_ns):
        reason = f"the machine was suspended for {duration_text(slept_ns)} during the trace"
        return Unaligned(UnalignedReason.MACHINE_SUSPENDED, reason)
    reason = f"the system clock was stepped by {duration_text(stepped_ns)} during the trace"
    return Unaligned(UnalignedReason.CLOCK_STEPPED, reason)


def _aligned(
    file: tuple[TraceOutline, AnchorFile | None], around: Sequence[Anchor], part: Callable[[Anchor], ReferenceOffset]
) -> TraceAlignment:
    """For anchors whose bounds are all known."""
    outline = file[0]
    assert outline.begin_ns is not None and outline.end_ns is not None
    early_ns = max(0, around[0].realtime_ns - outline.begin_ns)
    late_ns = max(0, outline.end_ns - around[-1].realtime_ns)
    offset_ns, half_ns, measured = profiler_error(outline, around)
    if abs(offset_ns) - half_ns > MAX_PROFILER_NS:
        reason = f"the annotations are {duration_text(abs(offset_ns))} from the anchors, which are of another run"
        return _unaligned(Unaligned(UnalignedReason.ANNOTATIONS_OF_ANOTHER_RUN, reason), len(around))
    points = [
        OffsetPoint(one.realtime_ns, part(one).offset_ns, between_ns(one, other, part))
        for one, other in pairwise(around)
    ]
    last = part(around[-1])
    points.append(OffsetPoint(around[-1].realtime_ns, last.offset_ns, _grown(last, last.growth_ppb, late_ns)))
    first = part(around[0])
    bounds = [point.bound_ns for point in points] + [_grown(first, first.past_growth_ppb, early_ns)]
    return TraceAlignment(
        points=tuple(points),
        bound_ns=max(bounds) + half_ns,
        profiler_ns=half_ns,
        profiler_offset_ns=offset_ns,
        profiler_measured=measured,
        anchors=len(around),
        _starts=[point.realtime_ns for point in points],
    )


def between_ns(one: Anchor, other: Anchor, part: Callable[[Anchor], ReferenceOffset]) -> int:
    """
    The largest bound between two anchors, in ns. At each time the smaller of two bounds counts: the first anchor's,
    which grows, and the second's, which shrinks towards it. Their minimum is largest where the two are equal. The
    change of the offset is added, because the offset need not change linearly.
    """
    first, second = part(one), part(other)
    gap_ns = other.realtime_ns - one.realtime_ns
    rates_ppb = first.growth_ppb + second.past_growth_ppb
    rise_ns = _grown(second, second.past_growth_ppb, gap_ns) - _grown(first, 0, 0)
    crossing_ns = min(gap_ns, max(0, rise_ns * NS_PER_S // rates_ppb)) if rates_ppb else 0
    smaller = [
        min(_grown(first, first.growth_ppb, after_ns), _grown(second, second.past_growth_ppb, gap_ns - after_ns))
        for after_ns in (0, crossing_ns, min(crossing_ns + 1, gap_ns), gap_ns)
    ]
    rounding_ns = 1 if rates_ppb else 0
    return max(smaller) + rounding_ns + abs(second.offset_ns - first.offset_ns)


def _grown(part: ReferenceOffset, growth_ppb: int, by_ns: int) -> int:
    """Rounded up."""
    assert part.bound_ns is not None
    return part.bound_ns + growth_ns(growth_ppb, by_ns)


def profiler_error(outline: TraceOutline, around: Sequence[Anchor]) -> tuple[int, int, bool]:
    """
    Returns the profiler's clock minus CLOCK_REALTIME in ns, the half-width of its error in ns, and whether it was
    measured.

    An annotation began after CLOCK_REALTIME showed `before_ns` and ended before it showed `after_ns`, which bounds the
    profiler's error from both sides. The profiler's clock is a line through CLOCK_REALTIME at its start and its end.
    Where CLOCK_REALTIME is steered meanwhile, the line misses it by what the anchors show against CLOCK_MONOTONIC_RAW.
    """
    limits = [
        (span[1] - anchor.after_ns, span[0] - anchor.before_ns)
        for anchor in around
        if anchor.before_ns is not None
        and anchor.after_ns is not None
        and (span := outline.annotations.get(anchor.number)) is not None
    ]
    bend_ns = clock_bend_ns(around)
    if not limits:
        return 0, PROFILER_NS + 2 * bend_ns, False
    low_ns, high_ns = max(low for low, _ in limits), min(high for _, high in limits)
    if low_ns > high_ns:  # the error changed from one annotation to another
        low_ns, high_ns = min(low for low, _ in limits), max(high for _, high in limits)
    return (low_ns + high_ns) // 2, (high_ns - low_ns + 1) // 2 + 2 * bend_ns, True


def clock_bend_ns(around: Sequence[Anchor]) -> int:
    """
    The largest distance of CLOCK_REALTIME from a line through its first and last anchor, in ns, by CLOCK_MONOTONIC_RAW.
    """
    first, last = around[0], around[-1]
    raw_ns, real_ns = last.raw_ns - first.raw_ns, last.realtime_ns - first.realtime_ns
    if raw_ns <= 0:
        return 0
    return max(
        abs(each.realtime_ns - first.realtime_ns - (each.raw_ns - first.raw_ns) * real_ns // raw_ns) for each in around
    )
