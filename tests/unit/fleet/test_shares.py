"""The numbers of a fleet, merged from the shares of its hubs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.registry import Fleet
from timesyncd.fleet.shares import EXPIRES_AFTER_NS, FleetTotals, ReceivedShare, share_fields, totals
from timesyncd.messages.fleet import FleetShare
from timesyncd.messages.node import BoundMessage, NodeState

NOW = Moment(realtime_ns=0, boottime_ns=1_000 * NS_PER_S)

#: A node: its hub, rack, grandmaster, bound against the parent clock, and whether it knows UTC.
NODES = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 3), st.integers(0, 1), st.none() | st.integers(0, 10**6), st.booleans()
    ),
    max_size=12,
)
Node = tuple[int, int, int, int | None, bool]


def state(number: int, node: Node) -> NodeState:
    _, rack, gm, bound_ns, knows_utc = node
    parent = BoundMessage.of(Bound(bound_ns, 1_000 + rack))
    outer = BoundMessage.of(Bound(None if bound_ns is None else bound_ns + 7 * rack, 1_500 + number))
    fields: dict[str, Any] = {
        "node": f"n{number:02d}", "incarnation": 1, "sequence": 1, "published_realtime_ns": 0, "age_ns": 0,
        "boot_id": f"boot {number}", "time_namespace": 1, "status": "SYNCHRONIZED", "utc_status": "SYNCHRONIZED",
        "since_realtime_ns": None, "parent": parent, "gm": outer, "utc": outer if knows_utc else None,
        "grandmaster_identity": f"gm-{gm}", "parent_identity": f"switch-{rack}", "utc_seconds_removed": 37,
        "topology": f"rack-{rack}",
    }  # fmt: skip
    return NodeState.model_validate(fields)


def fleet_of(nodes: list[Node], hub: int | None = None) -> Fleet:
    fleet = Fleet()
    for number, node in enumerate(nodes):
        if hub is None or node[0] == hub:
            fleet.accept(state(number, node), NOW.boottime_ns, live=True)
    return fleet


def share(nodes: list[Node], hub: int, now: Moment = NOW) -> FleetShare:
    head = {"node": f"hub-{hub}", "incarnation": 1, "sequence": 1, "published_realtime_ns": now.realtime_ns}
    fields = head | {"members": ["hub-0", "hub-1", "hub-2"]} | share_fields(fleet_of(nodes, hub), now)
    return FleetShare.model_validate_json(FleetShare.model_validate(fields).model_dump_json())


def numbers(total: FleetTotals) -> tuple[object, ...]:
    groups = {name: group for name, group in (total.groups or {}).items()}
    return (
        total.nodes, total.nodes_live, Counter(total.statuses or {}), Counter(total.grandmasters or {}), total.worst,
        total.missing, total.unknown, total.holds_for_ns, groups, total.groups_left_out,
    )  # fmt: skip


@given(NODES)
def test_shares_merge_in_any_order_and_grouping(nodes: list[Node]) -> None:
    """Associative and commutative, with the share of no hub as the neutral one."""
    a, b, c = (FleetTotals.of(share(nodes, hub)) for hub in range(3))

    assert numbers((a + b) + c) == numbers(a + (b + c)) == numbers(c + (b + a))
    assert numbers(a + FleetTotals()) == numbers(FleetTotals() + a) == numbers(a)


@given(NODES, st.integers(0, 10 * NS_PER_S))
def test_the_shares_give_what_one_hub_with_all_nodes_gives(nodes: list[Node], after_ns: int) -> None:
    """Counts exactly; the alignment at most 2 ns wider, never narrower, and known exactly where the one hub knows it."""
    now = NOW.at_boottime(NOW.boottime_ns + after_ns)
    of_one = fleet_of(nodes)
    whole, overview = of_one.alignment(None, now), of_one.overview(now)
    merged = totals(share(nodes, hub, now) for hub in range(3))
    found = merged.alignment()

    assert (merged.nodes, merged.nodes_live, dict(merged.statuses or {})) == (
        overview.known, overview.live, overview.statuses
    )  # fmt: skip
    assert Counter(merged.grandmasters or {}) == Counter(overview.grandmasters)
    assert (found.alignment_ns is None) == (whole.alignment_ns is None)
    if whole.alignment_ns is not None and found.alignment_ns is not None:
        assert whole.alignment_ns <= found.alignment_ns <= whole.alignment_ns + 2
        assert found.growth_ppb == whole.growth_ppb
        assert found.holds_for_ns == (whole.holds_for_ns if len(nodes) > 1 else None)


@given(NODES, st.integers(0, 4 * NS_PER_S))
def test_an_aged_share_is_never_narrower_than_the_clocks(nodes: list[Node], age_ns: int) -> None:
    """Bounds grow while a share is on its way."""
    later = NOW.at_boottime(NOW.boottime_ns + age_ns)
    whole = fleet_of(nodes).alignment(None, later)
    found = totals(ReceivedShare(share(nodes, hub), NOW.boottime_ns).aged(later) for hub in range(3)).alignment()

    assert (found.alignment_ns is None) == (whole.alignment_ns is None)
    assert (found.alignment_ns or 0) >= (whole.alignment_ns or 0)


@given(NODES)
def test_the_worst_of_all_are_among_the_worst_of_each_share(nodes: list[Node]) -> None:
    """Top k by error: those without a bound first."""
    merged = totals(share(nodes, hub) for hub in range(3))
    of_one = fleet_of(nodes).overview(NOW)

    assert [each.bound_ns for each in merged.worst] == [each.bound_ns for each in of_one.worst]


@pytest.mark.parametrize(
    ("members", "after_ns", "current"),
    [
        (("hub-0", "hub-1", "hub-2"), 0, True),
        (("hub-0", "hub-1"), 0, False),
        (("hub-0", "hub-1", "hub-2"), EXPIRES_AFTER_NS, False),
    ],
)
def test_only_shares_of_the_same_members_add_up(members: tuple[str, ...], after_ns: int, current: bool) -> None:
    """Else a node would count twice, or not at all, and the alignment would be too narrow."""
    received = ReceivedShare(share([], 0), NOW.boottime_ns)

    assert received.is_current(members, NOW.boottime_ns + after_ns) == current
