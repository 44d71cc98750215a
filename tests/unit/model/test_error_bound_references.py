"""From the parent's bound to those against the grandmaster and UTC: what each adds, and when nothing is known."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from grandmaster_states import polled_grandmaster
from hypothesis import given
from hypothesis import strategies as st
from samples import HEALTHY, nth

from timesyncd.bound import GRANDMASTER_EXPIRES_AFTER_NS, Bound, Reason, unbounded
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.daemon.remote_state import grandmaster_verdict
from timesyncd.messages.node import BoundMessage
from timesyncd.model.assumptions import SourceSettings
from timesyncd.model.error_bound import grandmaster_bound, utc_bound, utc_seconds_removed, wider
from timesyncd.model.grandmaster import GrandmasterVerdict, Invalidation, MessageReceipt

SETTINGS = SourceSettings()


def test_a_boundary_clock_of_unknown_error_leaves_the_grandmaster_bound_unknown() -> None:
    """
    Two steps removed without a configured error: None with its reason, never the parent's bound under another name.
    """
    parent = Bound(1_000, 50_000)
    behind = nth(0, steps_removed=3)

    assert grandmaster_bound(parent, HEALTHY, SETTINGS) == parent
    assert grandmaster_bound(parent, behind, SETTINGS).reason is Reason.BOUNDARY_CLOCK_ERROR_UNKNOWN
    assert grandmaster_bound(parent, behind, SourceSettings(boundary_clock_error_ns=50)) == Bound(1_100, 50_000)


UTC = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": 37}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Bound(1_100, 5)),
        ({"clock_class": 7}, Bound(2_600, 5)),
        ({"clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        ({"clock_accuracy": 0xFE}, Reason.GRANDMASTER_ACCURACY_UNKNOWN),
        ({"ptp_timescale": False}, Reason.ARBITRARY_TIMESCALE),
        ({"time_traceable": False}, Reason.UTC_OFFSET_UNKNOWN),
        ({"current_utc_offset_s": None}, Reason.UTC_OFFSET_UNKNOWN),
        ({"current_utc_offset_s": 36}, Reason.UTC_OFFSET_DIFFERS),
    ],
)
def test_utc(changes: dict[str, object], expected: Bound | Reason) -> None:
    """
    UTC needs a locked grandmaster, its accuracy and a timescale that is known; else unbounded, with the reason.
    """
    bound = utc_bound(Bound(1_000, 5), nth(0, **{**UTC, **changes}), SETTINGS)

    assert (bound if isinstance(expected, Bound) else bound.reason) == expected


def test_the_seconds_that_ptp4l_removes() -> None:
    """
    Its own utc_offset on a PTP timescale, whatever Announce contains; none on an arbitrary one.
    """
    assert utc_seconds_removed(nth(0, **{**UTC, "current_utc_offset_s": 36}), SETTINGS) == 37
    assert utc_seconds_removed(HEALTHY, SETTINGS) == 0


def judged(utc: Bound, age_s: int = 0, **more: Any) -> GrandmasterVerdict:
    """Of a poll so long before the sample HEALTHY."""
    return GrandmasterVerdict("hub", utc, HEALTHY.as_of_ns - age_s * NS_PER_S, **more)


def with_verdict(verdict: GrandmasterVerdict | None, **changes: object) -> Bound:
    return utc_bound(Bound(1_000, 5), nth(0, **{**UTC, **changes}), SETTINGS, verdict)


def by_poll(**changes: Any) -> Bound:
    """The bound against UTC of a node that receives class 6 and UTC offset 37 s, while the grandmaster reports this."""
    polled = polled_grandmaster().model_copy(update={"age_ns": 0, **changes})
    verdict = grandmaster_verdict(
        polled, Moment(realtime_ns=polled.published_realtime_ns, boottime_ns=HEALTHY.as_of_ns)
    )
    return with_verdict(verdict)


SILENT_STATE = BoundMessage.of(unbounded(Reason.GRANDMASTER_ERROR_NOT_REPORTED))


@pytest.mark.parametrize(
    "reported",
    [
        {"utc_offset_s": 36},
        {"time_traceable": False},
        {"steps_removed": 1},
        {"clock_class": 248, "utc": SILENT_STATE},
        {"clock_class": 52, "utc": SILENT_STATE},
    ],
)
def test_what_the_grandmaster_reports_against_its_announce_leaves_no_utc(reported: dict[str, Any]) -> None:
    """
    One of the two is wrong, and the node's bound rests on what is announced.
    """
    assert by_poll(**reported) == unbounded(Reason.of_code("announce_contradicted", Reason.OK))


@pytest.mark.parametrize(
    ("reported", "bound_ns"),
    [
        ({}, 1_100),
        ({"utc_offset_s": None, "time_traceable": None, "steps_removed": None, "clock_class": None}, 1_100),
        ({"utc_offset_s": 37, "time_traceable": True, "steps_removed": 0}, 1_100),
        ({"clock_class": 84, "utc": SILENT_STATE}, 1_100),
        ({"clock_accuracy": 0x23, "utc": SILENT_STATE}, 2_000),
        ({"utc_offset_s": 36, "age_ns": GRANDMASTER_EXPIRES_AFTER_NS}, 1_100),
    ],
)
def test_what_agrees_or_is_not_reported_contradicts_nothing(reported: dict[str, Any], bound_ns: int) -> None:
    """
    A class of G.8265.1 is a quality level of the network. A worse accuracy counts, and an old report does not.
    """
    assert by_poll(**reported).bound_ns == bound_ns


HOUR_NS = 3_600 * NS_PER_S
HELD_1000 = judged(Bound(1_000, 2), age_s=100, holdover_left_ns=HOUR_NS)
LOCKED_100 = judged(Bound(100, 2))


@pytest.mark.parametrize(
    ("verdict", "changes", "expected"),
    [
        (LOCKED_100, {}, Bound(1_100, 7)),
        (judged(Bound(250, 0)), {}, Bound(1_250, 5)),
        (judged(Bound(25, 0)), {}, Bound(1_100, 5)),
        (judged(Bound(100, 2), age_s=100), {}, Bound(1_300, 7)),
        (judged(Bound(100, 2), age_s=-10), {}, Bound(1_100, 7)),
        (LOCKED_100, {"clock_class": 7}, Bound(2_600, 7)),
        (LOCKED_100, {"clock_accuracy": 0x23}, Bound(2_000, 7)),
        (HELD_1000, {"clock_class": 7}, Bound(2_200, 7)),
        (HELD_1000, {"clock_class": 7, "clock_accuracy": 0xFE}, Bound(2_200, 7)),
        (HELD_1000, {"clock_class": 7, "clock_accuracy": 0x24}, Bound(3_500, 7)),
        (HELD_1000, {}, Bound(2_200, 7)),
        (HELD_1000, {"clock_accuracy": 0x24}, Bound(3_500, 7)),
    ],
)
def test_of_what_is_announced_and_what_is_polled_the_worse_counts(
    verdict: GrandmasterVerdict, changes: dict[str, object], expected: Bound
) -> None:
    """
    Aged to the sample, with both growths. Only in a holdover that both report, the grandmaster's own budget replaces
    the flat one, and the accuracy that it does not announce then.
    """
    assert with_verdict(verdict, **changes) == expected


@pytest.mark.parametrize(
    ("verdict", "changes", "reason"),
    [
        (judged(unbounded(Reason.NO_HOLDOVER_BUDGET)), {"clock_class": 7}, Reason.NO_HOLDOVER_BUDGET),
        (judged(unbounded(Reason.GRANDMASTER_CONTRADICTS_ITSELF)), {}, Reason.GRANDMASTER_CONTRADICTS_ITSELF),
        (judged(unbounded(Reason.GRANDMASTER_NOT_LOCKED), age_s=9_999), {}, Reason.GRANDMASTER_NOT_LOCKED),
        (LOCKED_100, {"clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        (LOCKED_100, {"clock_accuracy": 0xFE}, Reason.GRANDMASTER_ACCURACY_UNKNOWN),
        (HELD_1000, {"clock_class": 248}, Reason.GRANDMASTER_NOT_LOCKED),
        (HELD_1000, {"clock_accuracy": 0xFE}, Reason.GRANDMASTER_ACCURACY_UNKNOWN),
        (LOCKED_100, {"current_utc_offset_s": 36}, Reason.UTC_OFFSET_DIFFERS),
        (LOCKED_100, {"ptp_timescale": False}, Reason.ARBITRARY_TIMESCALE),
        (replace(HELD_1000, holdover_left_ns=99 * NS_PER_S), {"clock_class": 7}, Reason.HOLDOVER_BUDGET_EXCEEDED),
        (
            judged(Bound(9, 0), age_s=1_000, holdover_left_ns=HOUR_NS),
            {"clock_class": 6},
            Reason.GRANDMASTER_STATE_EXPIRED,
        ),
    ],
)
def test_utc_is_unknown_where_either_is(
    verdict: GrandmasterVerdict, changes: dict[str, object], reason: Reason
) -> None:
    """
    A bad word is not forgotten when its poller falls silent, and a good one mends nothing that is announced.
    """
    assert with_verdict(verdict, **changes) == unbounded(reason)


@pytest.mark.parametrize(
    "verdict",
    [
        judged(unbounded(Reason.GRANDMASTER_ERROR_NOT_REPORTED)),
        judged(unbounded(Reason.GRANDMASTER_ERROR_NOT_REPORTED), age_s=9_999),
        judged(Bound(250, 2), age_s=GRANDMASTER_EXPIRES_AFTER_NS // NS_PER_S),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"clock_class": 7}, {"clock_class": 248}, {"clock_accuracy": 0xFE}])
def test_without_a_verdict_the_announcement_counts_alone(
    verdict: GrandmasterVerdict, changes: dict[str, object]
) -> None:
    """
    A grandmaster that reports nothing, or was locked in its expired state, counts as one without a poller.
    """
    assert with_verdict(verdict, **changes) == with_verdict(None, **changes)


@given(
    gm_ns=st.integers(0, 10**6),
    gm_ppb=st.integers(0, 10**6),
    own_ns=st.integers(0, 10**6),
    own_ppb=st.integers(0, 10**3),
    left_ns=st.none() | st.integers(0, 2 * GRANDMASTER_EXPIRES_AFTER_NS),
    since_poll_ns=st.integers(-60 * NS_PER_S, 2 * GRANDMASTER_EXPIRES_AFTER_NS),
    age_ns=st.integers(0, GRANDMASTER_EXPIRES_AFTER_NS),
    clock_class=st.sampled_from([6, 7]),
)
def test_both_errors_at_their_largest_are_within_the_utc_bound(
    gm_ns: int,
    gm_ppb: int,
    own_ns: int,
    own_ppb: int,
    left_ns: int | None,
    since_poll_ns: int,
    age_ns: int,
    clock_class: int,
) -> None:
    """
    At the sample and at any later age, as long as the verdict is valid: the node's error plus the grandmaster's own.
    """
    verdict = GrandmasterVerdict("hub", Bound(own_ns, own_ppb), HEALTHY.as_of_ns - since_poll_ns, left_ns)
    bound = utc_bound(Bound(gm_ns, gm_ppb), nth(0, **{**UTC, "clock_class": clock_class}), SETTINGS, verdict)
    holds = since_poll_ns < GRANDMASTER_EXPIRES_AFTER_NS and (left_ns is None or since_poll_ns <= left_ns)
    node_ns = gm_ns + Fraction(gm_ppb * age_ns, NS_PER_S)
    grandmaster_ns = own_ns + Fraction(own_ppb * max(0, since_poll_ns + age_ns), NS_PER_S)

    assert (bound.bound_ns is not None) == (holds or left_ns is None)
    assert not holds or (bound.at(age_ns) or 0) >= node_ns + grandmaster_ns


def test_the_grandmaster_s_own_error_is_aged_to_the_reading() -> None:
    """
    The bound is as of the reading, later than the last one that did not contain the Sync: the grandmaster's drift in
    between counts.
    """
    read_late = nth(0, **{**UTC, "read_ns": HEALTHY.as_of_ns + 2 * NS_PER_S})
    verdict = judged(Bound(100, 500), holdover_left_ns=NS_PER_S)

    assert utc_bound(Bound(1_000, 5), read_late, SETTINGS, judged(Bound(100, 500))) == Bound(2_100, 505)
    assert utc_bound(Bound(1_000, 5), read_late, SETTINGS, verdict) == unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED)


@pytest.mark.parametrize("first", [Bound(10, 7), unbounded(Reason.ARBITRARY_TIMESCALE)])
@pytest.mark.parametrize("second", [Bound(20, 3), unbounded(Reason.NO_GRANDMASTER)])
def test_the_worse_of_two_holds_where_either_does(first: Bound, second: Bound) -> None:
    """
    At every age it is no narrower than one of them; it is unknown where one is, for that one's reason.
    """
    both = wider(first, second)
    limits = [(first.at(age_ns), second.at(age_ns), both.at(age_ns)) for age_ns in (0, NS_PER_S, 10**12)]

    assert both.reason in {each.reason for each in (first, second) if each.bound_ns == both.bound_ns} | {Reason.OK}
    assert all((least is None) == (one is None or other is None) for one, other, least in limits)
    assert all(least is None or least >= max(one or 0, other or 0) for one, other, least in limits)


def test_a_received_age_is_never_understated_on_the_local_clock() -> None:
    """
    A bound is as old as it may be, an event as new: the way from there to here widens the one and does not age the
    other.
    """
    second = NS_PER_S
    prompt = MessageReceipt(
        boottime_ns=1_000 * second, realtime_ns=5_000 * second, published_realtime_ns=5_000 * second
    )
    late = replace(prompt, realtime_ns=5_030 * second)
    ahead = replace(prompt, realtime_ns=4_963 * second)

    assert [each.poll_ns(7 * second) for each in (prompt, late, ahead)] == [993 * second, 963 * second, 993 * second]
    assert {each.invalidation(4_990 * second, Reason.GRANDMASTER_JUMPED) for each in (prompt, late, ahead)} == {
        Invalidation(4_990 * second, 990 * second, Reason.GRANDMASTER_JUMPED)
    }
    assert prompt.invalidation(5_001 * second, Reason.GRANDMASTER_JUMPED).before_ns == 1_000 * second


def test_every_reason_survives_its_code() -> None:
    """Messages carry the code; a code that this version does not know is no good news."""
    unknown = Reason.GRANDMASTER_STATE_UNKNOWN

    assert [Reason.of_code(reason.code, unknown) for reason in Reason] == list(Reason)
    assert Reason.of_code("a_reason_of_a_later_version", unknown) is unknown
