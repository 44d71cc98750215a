"""The alignment of a trace on the common clock by its anchors: within a bound that holds, or with the reason why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import GRANDMASTER, TRUE_NS, anchor, owner

from timesyncd.bound import Bound
from timesyncd.client.anchors import Anchor, AnchorsHeader, ReferenceOffset
from timesyncd.clocks import NS_PER_S
from timesyncd.traces import alignment
from timesyncd.traces.alignment import AxisReference, UnalignedReason, align, between_ns, profiler_error
from timesyncd.traces.anchors import AnchorFile
from timesyncd.traces.reader import TraceOutline

LOST = ReferenceOffset(0, None, 0, 0)


def traced(
    rank: int, ahead_ns: int, anchors: list[Anchor], whose: AnchorsHeader | None = None
) -> tuple[TraceOutline, AnchorFile]:
    """A trace of ten seconds by this rank's clock, and its anchors."""
    begin_ns = TRUE_NS + ahead_ns
    outline = TraceOutline(f"rank{rank}.json", begin_ns=begin_ns, end_ns=begin_ns + 10 * NS_PER_S, events=1)
    return outline, AnchorFile("a", whose or owner(rank), tuple(anchors))


def every_two(ahead_ns: int, **changes: Any) -> list[Anchor]:
    return [anchor(n, 2 * n - 1, ahead_ns, **changes) for n in range(7)]


def test_two_clocks_that_are_apart_are_put_on_one_axis() -> None:
    """What happened at one true time is shown at one time, although one clock is three seconds ahead."""
    ahead_ns = (0, 3 * NS_PER_S + 17)
    axis = align([traced(rank, ahead, every_two(ahead)) for rank, ahead in enumerate(ahead_ns)])

    for second in range(10):
        true_ns = TRUE_NS + second * NS_PER_S
        shown = [known.at(true_ns + ahead) for known, ahead in zip(axis.alignments, ahead_ns, strict=True)]
        assert shown == [true_ns, true_ns]
    assert axis.reference == AxisReference.GRANDMASTER
    # 5 us at each anchor; it grows by 50 us/s from the one and by 500 us/s back from the other, 2 s later: they meet after 20/11 s
    assert [known.bound_ns for known in axis.alignments] == [5_000 + 90_910 + 1 + alignment.PROFILER_NS] * 2
    assert axis.pair_bound_ns() == 2 * 97_911


def test_a_changing_offset_is_interpolated() -> None:
    """Between two anchors the offset is interpolated, and the bound includes what that may miss."""
    part = ReferenceOffset(0, 5_000, 0, 0)
    anchors = [anchor(0, -1, gm=part), anchor(1, 11, gm=replace(part, offset_ns=1_200))]
    axis = align([traced(0, 0, anchors), traced(1, 0, every_two(0))])

    assert axis.alignments[0].at(TRUE_NS + 5 * NS_PER_S) == TRUE_NS + 5 * NS_PER_S - 600
    assert axis.alignments[0].bound_ns == 5_000 + 1_200 + alignment.PROFILER_NS


@given(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**10), st.floats(0, 1)
)  # fmt: skip
def test_no_moment_between_two_anchors_has_a_larger_bound(
    first: int, second: int, growth: int, past: int, gap: int, share: float
) -> None:
    """The smaller of the two bounds, grown to any time from either side, is never above the computed one."""
    one = anchor(0, 0, gm=ReferenceOffset(0, first, growth, 0))
    other = replace(anchor(1, 0, gm=ReferenceOffset(0, second, 0, past)), realtime_ns=one.realtime_ns + gap)
    after = round(gap * share)
    from_first, from_second = Bound(first, growth).at(after), Bound(second, past).at(gap - after)

    assert from_first is not None and from_second is not None
    assert between_ns(one, other, lambda each: each.gm) >= min(from_first, from_second)


def test_one_clock_needs_no_daemon() -> None:
    """Ranks of one boot and one time namespace read one clock: only the profiler's error counts."""
    lost = every_two(0, gm=LOST, utc=LOST, grandmaster_identity=None, utc_seconds_removed=None, status="UNKNOWN")
    axis = align([traced(rank, 0, lost, owner(rank, boot_id="0" * 32)) for rank in (0, 1)])

    assert axis.reference == AxisReference.ONE_CLOCK
    assert axis.pair_bound_ns() == 2 * alignment.PROFILER_NS


def test_two_grandmasters_are_compared_by_utc() -> None:
    """Bounds against different grandmasters do not compare; bounds against UTC do."""
    other = every_two(0, grandmaster_identity="aabbcc.fffe.ddeeff")
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, other)])

    assert axis.reference == AxisReference.UTC
    assert axis.pair_bound_ns() == 2 * (9_000 + 90_910 + 1 + alignment.PROFILER_NS)


def reason(*changed: Anchor, **whole: Any) -> tuple[UnalignedReason | None, str]:
    """Why rank 1 with these anchors is not aligned with a healthy rank 0: the code and the sentence."""
    anchors = [replace(each, **whole) for each in every_two(0)]
    for each in changed:
        anchors[each.number] = each
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, anchors)])

    assert axis.alignments[0].bound_ns is not None and axis.alignments[1].bound_ns is None
    return axis.alignments[1].reason_code, axis.alignments[1].reason


def test_an_unaligned_trace_has_a_reason() -> None:
    """A step, a suspend, an unknown error, another grandmaster without UTC: each has a code and a sentence."""
    step = [anchor(n, 2 * n - 1, 40_000_000) for n in range(4, 7)]
    slept = [replace(each, real_minus_boot_ns=each.real_minus_boot_ns - 40_000_000) for each in step]
    asleep = [replace(each, real_minus_boot_ns=anchor(0, 0).real_minus_boot_ns) for each in slept]
    unknown = anchor(3, 5, gm=LOST, utc=LOST, status="DISRUPTED", reason="the PTP parent changed")

    assert reason(*step) == (UnalignedReason.CLOCK_STEPPED, "the system clock was stepped by 40.0 ms during the trace")
    assert reason(*asleep) == (
        UnalignedReason.MACHINE_SUSPENDED,
        "the machine was suspended for 40.0 ms during the trace",
    )
    assert reason(unknown) == (
        UnalignedReason.CLOCK_ERROR_UNKNOWN,
        "the clock's error is unknown: the PTP parent changed",
    )
    assert reason(utc_seconds_removed=None, utc=LOST) == (
        UnalignedReason.GRANDMASTER_UNKNOWN,
        "the clock's grandmaster, or the number of seconds removed from it, is unknown",
    )
    assert reason(grandmaster_identity="aabbcc.fffe.ddeeff", utc=LOST) == (
        UnalignedReason.OTHER_GRANDMASTER,
        "the clock follows another grandmaster, or another number of seconds is removed from it",
    )


@pytest.mark.parametrize(
    ("anchors", "code", "reason"),
    [
        ([], UnalignedReason.NO_ANCHORS, "the trace has no anchors; record them with timesyncd.client.Anchors"),
        (
            [anchor(0, 6), anchor(1, 11)],
            UnalignedReason.BEGINS_BEFORE_ANCHORS,
            "the trace begins 6.00 s before its first anchor; at most 5.00 s is allowed",
        ),
        (
            [anchor(0, -1), anchor(1, 3)],
            UnalignedReason.ENDS_AFTER_ANCHORS,
            "the trace ends 7.00 s after its last anchor; at most 5.00 s is allowed",
        ),
        (
            [anchor(0, -60), anchor(1, 11)],
            UnalignedReason.ANCHORS_TOO_FAR_APART,
            "two successive anchors of the trace are 71.0 s apart; at most 60.0 s is allowed",
        ),
    ],
)
def test_anchors_must_be_around_the_trace(anchors: list[Anchor], code: UnalignedReason, reason: str) -> None:
    """Without anchors, a step would not be detected."""
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, anchors)])

    assert (axis.alignments[1].reason_code, axis.alignments[1].reason) == (code, reason)
    assert axis.alignments[1].at(TRUE_NS) == TRUE_NS


def test_a_step_before_the_trace_does_not_count() -> None:
    """Only the anchors around the trace count."""
    before = replace(anchor(0, -5), realtime_ns=TRUE_NS - 50 * NS_PER_S, real_minus_boot_ns=5)
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, [before, *every_two(0)[0:]])])

    assert (axis.alignments[1].reason_code, axis.alignments[1].reason) == (None, "")


def test_the_profilers_own_error_is_measured() -> None:
    """An annotation lies between two readings of the clock; what is outside of them is the profiler's error."""
    anchors = [
        anchor(n, n, before_ns=TRUE_NS + n * NS_PER_S - 700, after_ns=TRUE_NS + n * NS_PER_S + 900) for n in (0, 1)
    ]
    found = TraceOutline(
        "t", annotations={n: (TRUE_NS + n * NS_PER_S + 4_000, TRUE_NS + n * NS_PER_S + 4_500) for n in (0, 1)}
    )

    # begun at most 4.7 us after it could, ended at least 3.6 us after it did
    assert profiler_error(found, anchors) == (4_150, 550, True)
    assert profiler_error(TraceOutline("t"), anchors) == (0, alignment.PROFILER_NS, False)


def test_the_profilers_offset_is_subtracted() -> None:
    """An event that the profiler dates 4.15 us too late is shown at its true time."""
    anchors = [anchor(n, 2 * n - 1) for n in range(7)]
    marked = [replace(each, before_ns=each.realtime_ns - 700, after_ns=each.realtime_ns + 900) for each in anchors]
    outline, anchored = traced(0, 0, marked)
    outline.annotations = {each.number: (each.realtime_ns + 4_000, each.realtime_ns + 4_500) for each in marked}
    (known,) = align([(outline, anchored)]).alignments

    assert known.at(TRUE_NS + 4_150) == TRUE_NS
    assert (known.profiler_ns, known.profiler_measured, known.bound_ns) == (550, True, 550)


@pytest.mark.parametrize("shown", [1, 7])
def test_annotations_of_another_run_are_rejected(shown: int) -> None:
    """Annotations a second from their anchors are of another run: they move nothing, and the trace is not aligned."""
    anchors = [anchor(n, 2 * n - 1) for n in range(7)]
    marked = [replace(each, before_ns=each.realtime_ns - 700, after_ns=each.realtime_ns + 900) for each in anchors]
    outline, anchored = traced(0, 0, marked)
    late_ns = [each.realtime_ns + NS_PER_S for each in marked[:shown]]
    outline.annotations = {n: (at_ns, at_ns + 500) for n, at_ns in enumerate(late_ns)}
    (known,) = align([(outline, anchored)]).alignments

    assert (known.bound_ns, known.at(TRUE_NS)) == (None, TRUE_NS)
    assert known.reason_code is UnalignedReason.ANNOTATIONS_OF_ANOTHER_RUN
    assert known.reason.startswith("the annotations are 1.00 s from the anchors")


def test_a_bent_clock_widens_the_profilers_error() -> None:
    """The profiler draws a line where the clock was steered: the distance that the anchors show counts twice."""
    straight, bent = anchor(1, 5), replace(anchor(1, 5), raw_ns=anchor(1, 5).raw_ns - 3_000)

    assert profiler_error(TraceOutline("t"), [anchor(0, 0), straight, anchor(2, 10)])[1] == alignment.PROFILER_NS
    assert profiler_error(TraceOutline("t"), [anchor(0, 0), bent, anchor(2, 10)])[1] == alignment.PROFILER_NS + 6_000


def test_the_majoritys_grandmaster_counts() -> None:
    """One rank of three that follows another grandmaster is not aligned, and the others are."""
    other = every_two(0, grandmaster_identity="aabbcc.fffe.ddeeff", utc=LOST)
    axis = align([traced(0, 0, other), traced(1, 0, every_two(0)), traced(2, 0, every_two(0), owner(2, world_size=3))])

    assert [known.bound_ns is None for known in axis.alignments] == [True, False, False]
    assert GRANDMASTER not in axis.alignments[0].reason
