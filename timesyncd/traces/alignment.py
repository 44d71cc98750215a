"""Where each trace lies on the common clock, how well that is known, and why it is not known better."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from timesyncd.bound import growth_ns
from timesyncd.client.anchors import Anchor, ReferenceOffset
from timesyncd.clocks import NS_PER_S
from timesyncd.traces.anchors import AnchorFile, is_continuous, suspended_ns
from timesyncd.traces.reader import TraceOutline
from timesyncd.units import duration_text

#: How far a profiler's CLOCK_REALTIME is taken to be off where no annotated anchor measures it; docs/traces.md has the figures.
PROFILER_NS = 2_000

#: An annotation that lies further than this from its anchor is not that anchor's.
MAX_PROFILER_NS = 1_000_000

#: Between two anchors no more than this may pass, and a trace may reach this far beyond the first and the last.
MAX_ANCHOR_GAP_NS = 60 * NS_PER_S
MAX_BEYOND_ANCHORS_NS = 5 * NS_PER_S

ONE_CLOCK = "one-clock"
GRANDMASTER = "grandmaster"
UTC = "utc"

#: A reference, for people.
REFERENCE_TEXTS = {ONE_CLOCK: "the one clock that all read", GRANDMASTER: "the grandmaster", UTC: "UTC"}

NO_ANCHORS = "it has no anchors; record them with timesyncd.client.Anchors"
NO_EVENTS = "it has no events with a time"

_Scale = tuple[str, str | int | None, int | None]


@dataclass(frozen=True, slots=True)
class OffsetPoint:
    """From `realtime_ns` on, CLOCK_REALTIME less the common clock is `offset_ns`, +- bound_ns until the next point."""

    realtime_ns: int
    offset_ns: int
    bound_ns: int


@dataclass(frozen=True, slots=True)
class TraceAlignment:
    """
    A trace on the common clock. `reason`: why it is not aligned; its times are then CLOCK_REALTIME as it is. Events lie where
    they are shown within `bound_ns`, which holds the clock's error and the profiler's, `profiler_ns`. `profiler_offset_ns` is
    what the profiler was found to be ahead of CLOCK_REALTIME.
    """

    reason: str = ""
    points: tuple[OffsetPoint, ...] = ()
    bound_ns: int | None = None
    profiler_ns: int = 0
    profiler_offset_ns: int = 0
    profiler_measured: bool = False
    anchors: int = 0
    _starts: list[int] = field(default_factory=list, repr=False)

    def at(self, profiler_ns: int) -> int:
        """The common clock when the profiler's showed this; between two points the offset goes from the one to the other evenly."""
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
    """What the merged trace's time is, and each file's place on it, in the order of the files."""

    reference: str
    alignments: tuple[TraceAlignment, ...]

    def pair_bound_ns(self) -> int | None:
        """Two events of different files lie where they are shown, one against the other, within this; None: fewer than two are aligned."""
        bounds = sorted(known.bound_ns for known in self.alignments if known.bound_ns is not None)
        return sum(bounds[-2:]) if len(bounds) > 1 else None


def align(files: Sequence[tuple[TraceOutline, AnchorFile | None]]) -> CommonAxis:
    """
    Files of one clock are aligned by that; else by the grandmaster that most of them follow; else by UTC. A file that
    is not aligned so is not at all.
    """
    around = [_around(outline, anchored) for outline, anchored in files]
    owners = {(found.owner.boot_id, found.owner.time_namespace) for _, found in files if found is not None}
    usable = [each for each in around if not isinstance(each, str)]
    if len(owners) == 1:
        return CommonAxis(ONE_CLOCK, tuple(_by_itself(file, each) for file, each in zip(files, around, strict=True)))
    scales = [_scale(each) for each in usable]
    counted = Counter(scale for scale in scales if scale is not None)
    chosen = max(counted, key=lambda scale: (counted[scale], scale[0] == GRANDMASTER)) if counted else None
    by_utc = sum(all(anchor.utc.bound_ns is not None for anchor in each) for each in usable)
    if chosen is None or by_utc > counted[chosen]:
        return CommonAxis(UTC, tuple(_by(file, each, None) for file, each in zip(files, around, strict=True)))
    return CommonAxis(GRANDMASTER, tuple(_by(file, each, chosen) for file, each in zip(files, around, strict=True)))


def _by_itself(file: tuple[TraceOutline, AnchorFile | None], around: Sequence[Anchor] | str) -> TraceAlignment:
    return TraceAlignment(reason=around) if isinstance(around, str) else _aligned(file, around, _no_part)


def _by(
    file: tuple[TraceOutline, AnchorFile | None], around: Sequence[Anchor] | str, scale: _Scale | None
) -> TraceAlignment:
    """`scale` None: UTC."""
    if isinstance(around, str):
        return TraceAlignment(reason=around)
    if scale is not None and _scale(around) is None:
        return TraceAlignment(reason=_why_no_scale(around), anchors=len(around))
    if scale is not None and _scale(around) != scale:
        return TraceAlignment(
            reason="its clock follows another grandmaster, or takes out other seconds", anchors=len(around)
        )
    if scale is None and any(anchor.utc.bound_ns is None for anchor in around):
        return TraceAlignment(reason=f"its clock's error is not known: {_unknown(around, _utc)}", anchors=len(around))
    return _aligned(file, around, _utc if scale is None else _gm)


def _scale(around: Sequence[Anchor]) -> _Scale | None:
    """What a clock's gm bound is against; gm bounds against one scale compare. None: unknown, or not one all the time."""
    scales = {(anchor.grandmaster_identity, anchor.utc_seconds_removed) for anchor in around}
    identity, seconds = next(iter(scales))
    if len(scales) != 1 or identity is None or seconds is None or any(each.gm.bound_ns is None for each in around):
        return None
    return GRANDMASTER, identity, seconds


def _why_no_scale(around: Sequence[Anchor]) -> str:
    if any(anchor.gm.bound_ns is None for anchor in around):
        return f"its clock's error is not known: {_unknown(around, _gm)}"
    if len({(anchor.grandmaster_identity, anchor.utc_seconds_removed) for anchor in around}) > 1:
        return "its clock changed its grandmaster meanwhile"
    return "it is not known which grandmaster its clock follows, or which seconds are taken out"


def _unknown(around: Sequence[Anchor], part: Callable[[Anchor], ReferenceOffset]) -> str:
    return next(
        (anchor.reason or anchor.status for anchor in around if part(anchor).bound_ns is None), "for no reason given"
    )


def _gm(anchor: Anchor) -> ReferenceOffset:
    return anchor.gm


def _utc(anchor: Anchor) -> ReferenceOffset:
    return anchor.utc


def _no_part(_anchor: Anchor) -> ReferenceOffset:
    """A clock against itself."""
    return ReferenceOffset(0, 0, 0, 0)


def _around(outline: TraceOutline, anchored: AnchorFile | None) -> Sequence[Anchor] | str:
    """The anchors from the last before the trace to the first after it; or why they cannot carry it."""
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
    early_ns, late_ns = around[0].realtime_ns - begin_ns, end_ns - around[-1].realtime_ns
    if early_ns > MAX_BEYOND_ANCHORS_NS:
        return f"it begins {duration_text(early_ns)} before its anchors"
    if late_ns > MAX_BEYOND_ANCHORS_NS:
        return f"it ends {duration_text(late_ns)} after its anchors"
    widest_ns = max((other.monotonic_ns - one.monotonic_ns for one, other in pairwise(around)), default=0)
    if widest_ns > MAX_ANCHOR_GAP_NS:
        return f"there was no anchor for {duration_text(widest_ns)} in it; at most {duration_text(MAX_ANCHOR_GAP_NS)} may pass"
    return around


def _disruption(one: Anchor, other: Anchor) -> str:
    stepped_ns = other.real_minus_boot_ns - one.real_minus_boot_ns
    slept_ns = suspended_ns(one, other)
    if slept_ns > abs(stepped_ns):
        return f"the machine was suspended for {duration_text(slept_ns)} in it"
    return f"the system clock was stepped by {duration_text(stepped_ns)} in it"


def _aligned(
    file: tuple[TraceOutline, AnchorFile | None], around: Sequence[Anchor], part: Callable[[Anchor], ReferenceOffset]
) -> TraceAlignment:
    """The anchors' bounds are all known."""
    outline = file[0]
    assert outline.begin_ns is not None and outline.end_ns is not None
    early_ns = max(0, around[0].realtime_ns - outline.begin_ns)
    late_ns = max(0, outline.end_ns - around[-1].realtime_ns)
    offset_ns, half_ns, measured = profiler_error(outline, around)
    if abs(offset_ns) - half_ns > MAX_PROFILER_NS:
        return TraceAlignment(
            reason=f"its annotations lie {duration_text(abs(offset_ns))} from the anchors: they are of others",
            anchors=len(around),
        )
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
    The largest bound between two anchors: the smaller of what grew since the first and what shrinks towards the second, where the
    two are equal; and what the offset may be off by when it is drawn as a line.
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
    How far the profiler is ahead of CLOCK_REALTIME, +- the second number; the third: whether that was measured.

    An annotation began after CLOCK_REALTIME showed `before_ns` and ended before it showed `after_ns`: that bounds the
    profiler's error from both sides. Its clock is a line through CLOCK_REALTIME at its start and its end; where that is steered
    meanwhile, the line misses it by what the anchors show against CLOCK_MONOTONIC_RAW.
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
    if low_ns > high_ns:  # it changed from one to another
        low_ns, high_ns = min(low for low, _ in limits), max(high for _, high in limits)
    return (low_ns + high_ns) // 2, (high_ns - low_ns + 1) // 2 + 2 * bend_ns, True


def clock_bend_ns(around: Sequence[Anchor]) -> int:
    """How far CLOCK_REALTIME was from a line through its first and last anchor at most, ns, by CLOCK_MONOTONIC_RAW."""
    first, last = around[0], around[-1]
    raw_ns, real_ns = last.raw_ns - first.raw_ns, last.realtime_ns - first.realtime_ns
    if raw_ns <= 0:
        return 0
    return max(
        abs(each.realtime_ns - first.realtime_ns - (each.raw_ns - first.raw_ns) * real_ns // raw_ns) for each in around
    )
