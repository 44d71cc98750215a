"""How far the clocks of a set of nodes can be apart."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound, Reason
from timesyncd.clocks import NS_PER_S
from timesyncd.hub.alignment import ONE_CLOCK, Alignment, NodeClock, Now, alignment
from timesyncd.messages import BoundMessage, NodeState, Status

NOW = Now(1_000 * NS_PER_S, None)
US = 1_000


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
        utc_status=status if utc is not None and utc.bound_ns is not None else "UNKNOWN",
        since_realtime_ns=None,
        parent=parent,
        gm=gm,
        utc=utc,
        grandmaster_identity=grandmaster,
        parent_identity=parent_identity,
        utc_seconds_removed=removed,
    )
    return NodeClock(state, received_boottime_ns, live)


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


def test_same_parent_under_two_grandmasters_is_not_trusted() -> None:
    """While a switch changes its grandmaster, its nodes' parent bounds are of two different clocks."""
    found = alignment([full("a", 10, 100, 1_000), full("b", 20, 200, 2_000, grandmaster="gm-2")], NOW)

    assert found.alignment_ns == 3_000


def test_an_unknown_node_makes_it_unknown_and_is_named() -> None:
    """One clock of which nothing is known can be anywhere."""
    found = alignment([full("a", 10, 100, 1_000), node("b", status="DISRUPTED")], NOW)

    assert found == Alignment(None, None, None, "b: its clock is DISRUPTED")


def test_a_missing_common_reference_is_said() -> None:
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

    assert alignment(states, NOW).reason == "b: last known only: nothing live since the hub started"
    assert [state.usable(NOW) for state in states] == [True, False]


@pytest.mark.parametrize(
    ("realtime_ns", "published_ns", "age_ns"),
    [(None, 0, 3), (100, 95, 5), (100, 99, 3), (100, 999, 3)],
    ids=["own clock unusable", "long on the way", "held longer here", "published in our future"],
)
def test_the_age_is_the_larger_of_two_measures(realtime_ns: int | None, published_ns: int, age_ns: int) -> None:
    """Time since receipt, or our REALTIME since publication if it is usable and not negative."""
    seen = node("a", age_ns=1_000, received_boottime_ns=NOW.boottime_ns - 3, published_realtime_ns=published_ns)

    assert seen.age_ns(Now(NOW.boottime_ns, realtime_ns)) == 1_000 + age_ns


def test_the_bound_grows_with_age_and_the_alignment_with_time() -> None:
    """A state that is 2 s old counts with its growth since, and the two fastest growths add."""
    states = [
        node(name, bound(1_000, growth), bound(9_999, 0), received_boottime_ns=NOW.boottime_ns - 2 * NS_PER_S)
        for name, growth in (("a", 50), ("b", 70))
    ]
    found = alignment(states, NOW)

    assert (found.alignment_ns, found.growth_ppb) == (2_240, 120)
    assert found.at(NS_PER_S) == 2_360


def test_a_state_too_old_is_unknown() -> None:
    """The hub ages a node's status by the one table: void after void_after_ns."""
    old = node("b", bound(1), bound(1), age_ns=1_000 * NS_PER_S)

    assert alignment([full("a", 10, 100, 1_000), old], NOW).reason == "b: its last sample is too old"


def test_one_node_is_aligned_with_itself() -> None:
    """A job on one node has one clock."""
    assert alignment([node("a", status="UNKNOWN")], NOW) == ONE_CLOCK


@dataclass(frozen=True)
class Truth:
    """A node's state, and its clock's true error against UTC at NOW."""

    clock: NodeClock
    error_ns: int


@st.composite
def fleets(draw: st.DrawFn) -> list[Truth]:
    """
    Nodes whose clocks are anywhere within their bounds: grandmasters apart from UTC, parents from grandmasters, clocks from
    parents; some states unknown, old, retained or without a common scale.
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
        assert found.alignment_ns == max((v for v in values if v is not None), default=0)
        assert (found.growth_ppb or 0) >= max((pair.growth_ppb or 0 for pair in pairs), default=0)
