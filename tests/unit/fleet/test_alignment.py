"""The largest possible difference between the clocks of a set of nodes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound, Reason
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.alignment import ONE_CLOCK, alignment, unknown_alignment
from timesyncd.fleet.node_clock import GRANDMASTER, UTC, NodeClock, rounded_up_ns
from timesyncd.messages.node import BoundMessage, NodeState, Status

NOW = Moment(realtime_ns=0, boottime_ns=1_000 * NS_PER_S)
US = 1_000
GROWTH_TABLE = [
    row
    for row in json.loads((Path(__file__).parents[2] / "recordings" / "bound_growth.json").read_text())
    if row["bound_ns"] is not None
]


def later(later_ns: int) -> Moment:
    return NOW.at_boottime(NOW.boottime_ns + later_ns)


def bound(bound_ns: int | None, growth_ppb: int = 0) -> BoundMessage:
    return BoundMessage.of(
        Bound(bound_ns, growth_ppb, Reason.OK if bound_ns is not None else Reason.ARBITRARY_TIMESCALE)
    )


def node(
    name: str,
    parent: BoundMessage | None = None,
    gm: BoundMessage | None = None,
    utc: BoundMessage | None = None,
    grandmaster: str | None = "gm-1",
    parent_identity: str | None = "switch-1",
    removed: int | None = 37,
    boot_id: str | None = None,
    status: Status = "SYNCHRONIZED",
    utc_status: Status | None = None,
    age_ns: int | None = 0,
    received_boottime_ns: int = NOW.boottime_ns,
    live: bool = True,
    published_realtime_ns: int = 0,
) -> NodeClock:
    state = NodeState(
        node=name,
        incarnation=1,
        sequence=1,
        published_realtime_ns=published_realtime_ns,
        age_ns=age_ns,
        boot_id=boot_id or f"boot of {name}",
        time_namespace=1,
        status=status,
        utc_status=utc_status or (status if utc is not None and utc.bound_ns is not None else "UNKNOWN"),
        since_realtime_ns=None,
        parent=parent,
        gm=gm,
        utc=utc,
        grandmaster_identity=grandmaster,
        parent_identity=parent_identity,
        utc_seconds_removed=removed,
    )
    return NodeClock.of(state, received_boottime_ns, live)


def full(name: str, parent_ns: int, gm_ns: int, utc_ns: int, **more: str | int | None) -> NodeClock:
    return node(name, bound(parent_ns), bound(gm_ns), bound(utc_ns), **more)  # type: ignore[arg-type]


def test_parent_bounds_add_behind_one_parent() -> None:
    """Two nodes behind one parent clock are apart by at most the sum of their parent bounds."""
    found = alignment([full("a", 10, 100, 1_000), full("b", 20, 200, 2_000)], NOW)

    assert (found.alignment_ns, found.pair) == (30, ("a", "b"))


def test_gm_bounds_add_under_one_grandmaster() -> None:
    """Behind different parents the grandmaster is what they share."""
    found = alignment([full("a", 10, 100, 1_000), full("b", 20, 200, 2_000, parent_identity="switch-2")], NOW)

    assert found.alignment_ns == 300


@pytest.mark.parametrize("odd", [{"grandmaster": "gm-2"}, {"removed": 0}, {"removed": None}])
def test_else_utc_bounds_add(odd: dict[str, str | int | None]) -> None:
    """Another grandmaster, or another or an unknown number of seconds removed, leaves UTC as what they share."""
    found = alignment([full("a", 10, 100, 1_000), full("b", 20, 200, 2_000, **odd)], NOW)

    assert found.alignment_ns == 3_000


def test_two_unknown_scales_are_not_one_scale() -> None:
    """Of two nodes that both do not know how many seconds were removed, neither need have removed the other's."""
    found = alignment([full(name, 10, 100, 1_000, removed=None) for name in ("a", "b")], NOW)

    assert found.alignment_ns == 2_000


def test_two_unknown_identities_are_not_one_clock() -> None:
    """Two nodes that receive no Announce may follow two clocks, so only UTC could compare them."""
    nameless = {"grandmaster": None, "parent_identity": None}
    found = alignment([full(name, 10, 100, 1_000, **nameless) for name in ("a", "b")], NOW)

    assert found.alignment_ns == 2_000


def test_same_parent_under_two_grandmasters_is_not_trusted() -> None:
    """While a switch changes its grandmaster, its nodes' parent bounds are of two different clocks."""
    found = alignment([full("a", 10, 100, 1_000), full("b", 20, 200, 2_000, grandmaster="gm-2")], NOW)

    assert found.alignment_ns == 3_000


def test_an_unknown_node_makes_it_unknown_and_is_named() -> None:
    """One clock of which nothing is known can be anywhere."""
    found = alignment([full("a", 10, 100, 1_000), node("b", status="DISRUPTED")], NOW)

    assert found == unknown_alignment("b: the clock is DISRUPTED", "no_bound")


def test_a_missing_common_reference_is_named() -> None:
    """Nodes that are each well known, but under two grandmasters on arbitrary timescales, have no common reference."""
    states = [
        node("a", bound(10), bound(100), bound(None)),
        node("b", bound(10), bound(100), bound(None), grandmaster="gm-2"),
    ]
    found = alignment(states, NOW)

    assert found.alignment_ns is None
    assert found.reason == "not all under one grandmaster; a: the grandmaster announces an arbitrary timescale"


def test_a_retained_copy_leaves_a_node_unknown() -> None:
    """What was last known is no news until a live message comes."""
    states = [full("a", 10, 100, 1_000), node("b", bound(1), bound(1), bound(1), live=False)]

    assert alignment(states, NOW).reason == "b: last known state only: the node has not reported since the hub started"
    assert [state.status(NOW).name for state in states] == ["SYNCHRONIZED", "UNKNOWN"]


@pytest.mark.parametrize(
    ("realtime_ns", "published_ns", "age_ns"),
    [(100, 95, 5), (100, 99, 3), (100, 999, 3)],
    ids=["long on the way", "held longer here", "published in our future"],
)
def test_the_age_is_the_larger_of_two_measures(realtime_ns: int, published_ns: int, age_ns: int) -> None:
    """Time since receipt, or our REALTIME since publication."""
    seen = node("a", age_ns=1_000, received_boottime_ns=NOW.boottime_ns - 3, published_realtime_ns=published_ns)

    assert seen.age_ns(Moment(realtime_ns=realtime_ns, boottime_ns=NOW.boottime_ns)) == 1_000 + age_ns


def test_the_bound_grows_with_age_and_the_alignment_with_time() -> None:
    """A state that is 2 s old counts with its growth since, and the two fastest growths add."""
    states = [
        node(name, bound(1_000, growth), bound(9_999, 0), received_boottime_ns=NOW.boottime_ns - 2 * NS_PER_S)
        for name, growth in (("a", 50), ("b", 70))
    ]
    found = alignment(states, NOW)

    assert (found.alignment_ns, found.growth_ppb) == (2_240, 120)
    assert found.at(NS_PER_S) == 2_360


@pytest.mark.parametrize("odd", [{}, {"parent_identity": "switch-2"}, {"grandmaster": "gm-2"}])
def test_growths_add_by_every_reference(odd: dict[str, str]) -> None:
    """As the bounds do that grow."""
    grows = [bound(1_000, 50) for _ in range(3)]
    found = alignment([node("a", *grows), node("b", *grows, **odd)], NOW)  # type: ignore[arg-type]

    assert (found.alignment_ns, found.growth_ppb) == (2_000, 100)


def test_a_state_too_old_is_unknown() -> None:
    """The hub ages a node's status by the one table: expired after void_after_ns."""
    old = node("b", bound(1), bound(1), age_ns=1_000 * NS_PER_S)

    assert alignment([full("a", 10, 100, 1_000), old], NOW).reason == "b: the node's last sample is too old"


def test_one_node_is_aligned_with_itself() -> None:
    """It is one clock, while it is known: a preflight of one node must not pass whatever that node's state."""
    assert alignment([full("a", 10, 100, 1_000)], NOW) == ONE_CLOCK
    assert alignment([node("a", status="UNKNOWN")], NOW).alignment_ns is None


def test_a_clock_that_knows_utc_alone_is_compared_against_utc() -> None:
    """A node that NTP synchronizes needs no PTP bound to be known."""
    by_ntp = node("b", None, None, bound(2_000), None, None, None, status="UNKNOWN", utc_status="SYNCHRONIZED")

    assert alignment([full("a", 10, 100, 1_000), by_ntp], NOW).alignment_ns == 3_000
    assert [by_ntp.status(NOW, reference).name for reference in (GRANDMASTER, UTC)] == ["UNKNOWN", "SYNCHRONIZED"]


@pytest.mark.parametrize(("age_s", "holds_s"), [(980, 20), (0, 25)], ids=["its sample is too old", "it is silent"])
def test_it_holds_until_the_first_node_is_unknown(age_s: int, holds_s: int) -> None:
    """From then on the alignment is unknown, as when it is computed at that moment."""
    states = [full("a", 10, 100, 1_000, age_ns=age_s * NS_PER_S), full("b", 20, 200, 2_000)]
    found, end_ns = alignment(states, NOW), holds_s * NS_PER_S

    assert found.holds_for_ns == end_ns
    assert [found.at(later_ns) for later_ns in (end_ns - 1, end_ns)] == [30, None]
    assert [alignment(states, later(later_ns)).alignment_ns for later_ns in (end_ns - 1, end_ns)] == [30, None]


def test_the_fastest_pair_grows_the_alignment_be_it_not_the_widest() -> None:
    """Two clocks that are near to each other now and drift apart are the furthest apart before long."""
    near = [node(name, bound(10, 5_000), bound(100, 10)) for name in ("a", "b")]
    far = node("c", bound(10), bound(9_000, 10), parent_identity="switch-2")
    found = alignment([*near, far], NOW)

    assert (found.alignment_ns, found.pair, found.growth_ppb) == (9_100, ("a", "c"), 10_000)


@dataclass(frozen=True)
class Truth:
    """A node's state, and its clock's true error against UTC at NOW."""

    clock: NodeClock
    error_ns: int


@st.composite
def fleets(draw: st.DrawFn) -> list[Truth]:
    """
    Nodes whose clocks are anywhere within their bounds: grandmasters apart from UTC, parents from grandmasters, clocks
    from parents; some states unknown, old, retained or without a common scale.
    """
    within = st.integers(0, 1_000)
    gm_errors = {gm: draw(st.integers(-1_000, 1_000)) for gm in ("gm-1", "gm-2")}
    parent_errors = {(gm, p): draw(st.integers(-500, 500)) for gm in gm_errors for p in ("p-1", "p-2")}
    fleet = []
    for index in range(draw(st.integers(1, 7))):
        gm, parent = draw(st.sampled_from(sorted(parent_errors)))
        own_error, slack, age_ns = draw(st.integers(-900, 900)), draw(within), draw(within)
        growth_ppb = draw(st.integers(0, 2 * NS_PER_S))
        known = max(0, abs(own_error) + slack - growth_ppb * age_ns // NS_PER_S)
        clock = node(
            f"n{index}",
            bound(known, growth_ppb),
            bound(known + 500, growth_ppb),
            bound(known + 1_500, growth_ppb) if draw(st.booleans()) else bound(None),
            gm,
            parent,
            draw(st.sampled_from([37, 37, 37, None])),
            status=draw(st.sampled_from(["SYNCHRONIZED"] * 5 + ["HOLDOVER", "UNKNOWN"])),
            age_ns=age_ns,
            live=draw(st.sampled_from([True] * 6 + [False])),
        )
        fleet.append(Truth(clock, gm_errors[gm] + parent_errors[gm, parent] + own_error))
    return fleet


@given(fleets())
def test_no_true_difference_exceeds_the_alignment(fleet: list[Truth]) -> None:
    """Wherever the clocks are within their bounds, no two of them differ by more than the alignment."""
    found = alignment([one.clock for one in fleet], NOW)
    largest = max((abs(a.error_ns - b.error_ns) for a, b in combinations(fleet, 2)), default=0)

    assert found.alignment_ns is None or largest <= found.alignment_ns


@given(fleets())
def test_the_groups_give_what_all_pairs_give(fleet: list[Truth]) -> None:
    """The alignment of a fleet is that of its worst pair, and unknown if one pair's is; growth is never understated."""
    clocks = [one.clock for one in fleet]
    pairs = [alignment(pair, NOW) for pair in combinations(clocks, 2)]
    values = [pair.alignment_ns for pair in pairs]
    found = alignment(clocks, NOW)

    if None in values:
        assert found.alignment_ns is None
    else:
        is_alone_and_unknown = len(clocks) < 2 and found.alignment_ns is None
        assert is_alone_and_unknown or found.alignment_ns == max((v for v in values if v is not None), default=0)
        assert (found.growth_ppb or 0) >= max((pair.growth_ppb or 0 for pair in pairs), default=0)


@given(fleets(), st.integers(0, 2_000))
def test_the_forecast_covers_every_pair(fleet: list[Truth], later_ns: int) -> None:
    """A pair that is narrow now and grows fast is within the fleet's growth; computed again, only rounding differs."""
    clocks = [one.clock for one in fleet]
    found = alignment(clocks, NOW)
    forecast_ns = found.at(later_ns)
    again = alignment(clocks, later(later_ns))

    if forecast_ns is not None:
        assert again.alignment_ns is not None
        assert again.alignment_ns <= forecast_ns
    if found.alignment_ns is not None and found.holds_for_ns is not None and later_ns >= found.holds_for_ns:
        assert again.alignment_ns is None


@pytest.mark.parametrize("row", GROWTH_TABLE, ids=[row["case"] for row in GROWTH_TABLE])
def test_a_sum_is_rounded_as_a_bound_grows(row: dict[str, Any]) -> None:
    """The fleet adds bounds in 1e-9 ns and rounds once, which gives what Bound.at gives for each row of its table."""
    sum_ns = row["bound_ns"] * NS_PER_S + row["growth_ppb"] * row["age_ns"]

    assert rounded_up_ns(sum_ns) == row["at_ns"]
