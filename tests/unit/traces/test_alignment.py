"""Where a trace lies on the common clock: by its anchors, within a bound that holds, and not at all where that cannot be told."""

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
from timesyncd.traces.alignment import align, between_ns, profiler_error
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
    """What happened at one true moment is shown at one, though one clock is three seconds ahead."""
    ahead_ns = (0, 3 * NS_PER_S + 17)
    axis = align([traced(rank, ahead, every_two(ahead)) for rank, ahead in enumerate(ahead_ns)])

    for second in range(10):
        true_ns = TRUE_NS + second * NS_PER_S
        shown = [known.at(true_ns + ahead) for known, ahead in zip(axis.alignments, ahead_ns, strict=True)]
        assert shown == [true_ns, true_ns]
    assert axis.reference == alignment.GRANDMASTER
    # 5 us at each anchor; it grows by 50 us/s from the one and by 500 us/s back from the other, 2 s later: they meet after 20/11 s
    assert [known.bound_ns for known in axis.alignments] == [5_000 + 90_910 + 1 + alignment.PROFILER_NS] * 2
    assert axis.pair_bound_ns() == 2 * 97_911


def test_a_moving_offset_is_followed() -> None:
    """Between two anchors the offset goes evenly from the one's to the other's, and the bound holds what that may miss."""
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
    """The smaller of the two bounds, grown to that moment from either side, is never above what is written."""
    one = anchor(0, 0, gm=ReferenceOffset(0, first, growth, 0))
    other = replace(anchor(1, 0, gm=ReferenceOffset(0, second, 0, past)), realtime_ns=one.realtime_ns + gap)
    after = round(gap * share)
    from_first, from_second = Bound(first, growth).at(after), Bound(second, past).at(gap - after)

    assert from_first is not None and from_second is not None
    assert between_ns(one, other, lambda each: each.gm) >= min(from_first, from_second)


def test_one_clock_needs_no_daemon() -> None:
    """Ranks of one boot and one time namespace read one clock: nothing but the profiler is between them."""
    lost = every_two(0, gm=LOST, utc=LOST, grandmaster_identity=None, utc_seconds_removed=None, status="UNKNOWN")
    axis = align([traced(rank, 0, lost, owner(rank, boot_id="0" * 32)) for rank in (0, 1)])

    assert axis.reference == alignment.ONE_CLOCK
    assert axis.pair_bound_ns() == 2 * alignment.PROFILER_NS


def test_two_grandmasters_are_compared_by_utc() -> None:
    """Bounds against different grandmasters say nothing of each other; those against UTC do."""
    other = every_two(0, grandmaster_identity="aabbcc.fffe.ddeeff")
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, other)])

    assert axis.reference == alignment.UTC
    assert axis.pair_bound_ns() == 2 * (9_000 + 90_910 + 1 + alignment.PROFILER_NS)


def reason(*changed: Anchor, **whole: Any) -> str:
    """Why rank 1 is not aligned with a healthy rank 0, with these anchors in place of its own."""
    anchors = [replace(each, **whole) for each in every_two(0)]
    for each in changed:
        anchors[each.number] = each
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, anchors)])

    assert axis.alignments[0].bound_ns is not None and axis.alignments[1].bound_ns is None
    return axis.alignments[1].reason


def test_what_cannot_be_aligned_says_why() -> None:
    """A step, a suspend, a clock that nobody knows, another grandmaster without UTC: each in words."""
    step = [anchor(n, 2 * n - 1, 40_000_000) for n in range(4, 7)]
    slept = [replace(each, real_minus_boot_ns=each.real_minus_boot_ns - 40_000_000) for each in step]
    asleep = [replace(each, real_minus_boot_ns=anchor(0, 0).real_minus_boot_ns) for each in slept]
    unknown = anchor(3, 5, gm=LOST, utc=LOST, status="DISRUPTED", reason="the PTP parent changed")

    assert reason(*step) == "the system clock was stepped by 40.0 ms in it"
    assert reason(*asleep) == "the machine was suspended for 40.0 ms in it"
    assert reason(unknown) == "its clock's error is not known: the PTP parent changed"
    assert reason(utc_seconds_removed=None, utc=LOST) == (
        "it is not known which grandmaster its clock follows, or which seconds are taken out"
    )
    assert reason(grandmaster_identity="aabbcc.fffe.ddeeff", utc=LOST) == (
        "its clock follows another grandmaster, or takes out other seconds"
    )


@pytest.mark.parametrize(
    ("anchors", "why"),
    [
        ([], alignment.NO_ANCHORS),
        ([anchor(0, 6), anchor(1, 11)], "it begins 6.00 s before its anchors"),
        ([anchor(0, -1), anchor(1, 3)], "it ends 7.00 s after its anchors"),
        ([anchor(0, -60), anchor(1, 11)], "there was no anchor for 71.0 s in it; at most 60.0 s may pass"),
    ],
)
def test_anchors_must_lie_around_the_trace(anchors: list[Anchor], why: str) -> None:
    """Where there are none, a step would go unseen."""
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, anchors)])

    assert axis.alignments[1].reason == why
    assert axis.alignments[1].at(TRUE_NS) == TRUE_NS


def test_an_earlier_step_is_none_of_this_trace() -> None:
    """Only the anchors around it count."""
    before = replace(anchor(0, -5), realtime_ns=TRUE_NS - 50 * NS_PER_S, real_minus_boot_ns=5)
    axis = align([traced(0, 0, every_two(0)), traced(1, 0, [before, *every_two(0)[0:]])])

    assert axis.alignments[1].reason == ""


def test_the_profilers_own_error_is_measured() -> None:
    """An annotation lies between two readings of the clock: by how much it does not is what the profiler is off."""
    anchors = [
        anchor(n, n, before_ns=TRUE_NS + n * NS_PER_S - 700, after_ns=TRUE_NS + n * NS_PER_S + 900) for n in (0, 1)
    ]
    found = TraceOutline(
        "t", annotations={n: (TRUE_NS + n * NS_PER_S + 4_000, TRUE_NS + n * NS_PER_S + 4_500) for n in (0, 1)}
    )

    # begun at most 4.7 us after it could, ended at least 3.6 us after it did
    assert profiler_error(found, anchors) == (4_150, 550, True)
    assert profiler_error(TraceOutline("t"), anchors) == (0, alignment.PROFILER_NS, False)


def test_what_the_profiler_is_ahead_is_taken_off() -> None:
    """An event that the profiler dates 4.15 us too late is shown where it was."""
    anchors = [anchor(n, 2 * n - 1) for n in range(7)]
    marked = [replace(each, before_ns=each.realtime_ns - 700, after_ns=each.realtime_ns + 900) for each in anchors]
    outline, anchored = traced(0, 0, marked)
    outline.annotations = {each.number: (each.realtime_ns + 4_000, each.realtime_ns + 4_500) for each in marked}
    (known,) = align([(outline, anchored)]).alignments

    assert known.at(TRUE_NS + 4_150) == TRUE_NS
    assert (known.profiler_ns, known.profiler_measured, known.bound_ns) == (550, True, 550)


@pytest.mark.parametrize("shown", [1, 7])
def test_annotations_of_other_anchors_are_no_measure(shown: int) -> None:
    """Annotations that lie a second from their anchors are others': they move nothing, and the trace is not aligned."""
    anchors = [anchor(n, 2 * n - 1) for n in range(7)]
    marked = [replace(each, before_ns=each.realtime_ns - 700, after_ns=each.realtime_ns + 900) for each in anchors]
    outline, anchored = traced(0, 0, marked)
    late_ns = [each.realtime_ns + NS_PER_S for each in marked[:shown]]
    outline.annotations = {n: (at_ns, at_ns + 500) for n, at_ns in enumerate(late_ns)}
    (known,) = align([(outline, anchored)]).alignments

    assert (known.bound_ns, known.at(TRUE_NS)) == (None, TRUE_NS)
    assert known.reason.startswith("its annotations lie 1.00 s from the anchors")


def test_a_bent_clock_widens_the_profilers_error() -> None:
    """The profiler draws a line where the clock was steered: what the anchors show of that counts twice."""
    straight, bent = anchor(1, 5), replace(anchor(1, 5), raw_ns=anchor(1, 5).raw_ns - 3_000)

    assert profiler_error(TraceOutline("t"), [anchor(0, 0), straight, anchor(2, 10)])[1] == alignment.PROFILER_NS
    assert profiler_error(TraceOutline("t"), [anchor(0, 0), bent, anchor(2, 10)])[1] == alignment.PROFILER_NS + 6_000


def test_the_majoritys_grandmaster_counts() -> None:
    """One rank of three that follows another is left out, and the others are aligned."""
    other = every_two(0, grandmaster_identity="aabbcc.fffe.ddeeff", utc=LOST)
    axis = align([traced(0, 0, other), traced(1, 0, every_two(0)), traced(2, 0, every_two(0), owner(2, world_size=3))])

    assert [known.bound_ns is None for known in axis.alignments] == [True, False, False]
    assert GRANDMASTER not in axis.alignments[0].reason
