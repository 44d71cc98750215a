"""The newest state of each node of a fleet, and what follows for all of them."""

from __future__ import annotations

import pytest

from timesyncd.bound import Bound, Reason
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.node_clock import SILENT_AFTER_NS, NodeClock
from timesyncd.fleet.registry import MAX_PUBLISHED, MAX_WORST, Fleet
from timesyncd.messages.fleet import AlignmentState, NodeAlignment
from timesyncd.messages.node import BoundMessage, NodeState, SourceState
from timesyncd.model.grandmaster import Invalidation

NOW = Moment(realtime_ns=0, boottime_ns=1_000 * NS_PER_S)
SILENT = SILENT_AFTER_NS


def later(later_ns: int) -> Moment:
    return NOW.at_boottime(NOW.boottime_ns + later_ns)


def state(name: str, bound_ns: int | None = 1_000, **changes: object) -> NodeState:
    """Synchronized, and as far from its parent as from anything else."""
    bound = BoundMessage.of(Bound(bound_ns, 50_000))
    fields: dict[str, object] = {
        "node": name,
        "incarnation": 1,
        "sequence": 1,
        "published_realtime_ns": 0,
        "age_ns": 0,
        "boot_id": f"boot of {name}",
        "time_namespace": 1,
        "status": "SYNCHRONIZED",
        "utc_status": "SYNCHRONIZED",
        "since_realtime_ns": None,
        "parent": bound,
        "gm": bound,
        "utc": bound,
        "grandmaster_identity": "gm-1",
        "parent_identity": "switch-1",
        "utc_seconds_removed": 37,
    }
    return NodeState.model_validate(fields | changes)


def fleet_of(*states: NodeState, expected: tuple[str, ...] = (), live: bool = True) -> Fleet:
    fleet = Fleet(expected)
    for each in states:
        fleet.accept(each, NOW.boottime_ns, live)
    return fleet


def invalidation(before_ns: int, event: int = 1) -> Invalidation:
    return Invalidation(event, before_ns, Reason.GRANDMASTER_JUMPED)


def source(kind: str) -> SourceState:
    return SourceState.model_validate({"name": "s", "driver": "d", "reachable": True, "kind": kind})


def clock(fleet: Fleet, name: str) -> NodeClock:
    found = fleet.clock(name)
    assert found is not None
    return found


def test_a_fleet_returns_a_node_s_state() -> None:
    """Though it keeps numbers for its own use."""
    reported = state("b", terms={"offset": 7}, sources=[source("ptp")])
    fleet = fleet_of(reported, state("a"))

    assert (fleet.state("b"), fleet.state("c"), fleet.clock("c")) == (reported, None, None)
    assert (fleet.names(), len(fleet)) == (["a", "b"], 2)


def test_a_node_that_left_is_forgotten() -> None:
    """A name that was never known is no error."""
    fleet = fleet_of(state("a"), state("b"))
    fleet.forget("a")
    fleet.forget("x")

    assert (fleet.names(), fleet.state("a")) == (["b"], None)


@pytest.mark.parametrize(
    ("order", "live", "later_ns", "news"),
    [
        ((2, 6), True, 0, True),
        ((2, 5), True, 0, False),
        ((2, 4), True, 0, False),
        ((3, 0), True, 0, True),
        ((3, 0), False, 0, True),
        ((1, 9), True, SILENT - 1, False),
        ((1, 9), True, SILENT, True),
        ((1, 9), False, SILENT, False),
    ],
)
def test_a_later_state_in_order_is_newer(order: tuple[int, int], live: bool, later_ns: int, news: bool) -> None:
    """By incarnation and sequence; a node that was silent may restart its numbers, unless that is an old copy."""
    fleet = fleet_of(state("a", incarnation=2, sequence=5))
    new = state("a", incarnation=order[0], sequence=order[1])

    assert fleet.accept(new, NOW.boottime_ns + later_ns, live) is news
    assert clock(fleet, "a").order == (order if news else (2, 5))


def test_the_live_message_replaces_its_own_retained_copy() -> None:
    """And the copy none after it."""
    fleet = fleet_of(state("a"), live=False)

    assert [fleet.accept(state("a"), NOW.boottime_ns, live) for live in (False, True, False)] == [False, True, False]


def test_an_invalidation_drops_earlier_samples() -> None:
    """Of the followers of that grandmaster alone, those that are known already and those that come later."""
    fleet = fleet_of(
        state("old", age_ns=11), state("new", age_ns=9), state("other", age_ns=11, grandmaster_identity="gm-2")
    )
    fleet.invalidate_before(["gm-1"], invalidation(NOW.boottime_ns - 10))
    fleet.accept(state("late", age_ns=11), NOW.boottime_ns, live=True)
    found = {each.node: each.status(NOW).name for each in fleet}

    assert found == {"old": "UNKNOWN", "new": "SYNCHRONIZED", "other": "SYNCHRONIZED", "late": "UNKNOWN"}
    assert fleet.alignment(["new", "late"], NOW).reason == "late: the grandmaster's phase jumped"


def test_an_invalidation_counts_by_the_sample_not_by_a_later_reading() -> None:
    """A bound that is dated later than its sample is invalidated by the sample's time."""
    fleet = fleet_of(state("a", since_sample_ns=10), state("b", since_sample_ns=0))
    fleet.invalidate_before(["gm-1"], invalidation(NOW.boottime_ns - 5))
    first = [clock(fleet, name).status(NOW).name for name in ("a", "b")]
    fleet.accept(state("a", since_sample_ns=10, sequence=2), NOW.boottime_ns + 4, live=True)

    assert first == ["UNKNOWN", "SYNCHRONIZED"]
    assert clock(fleet, "a").status(later(4)).name == "UNKNOWN"


def test_an_event_that_is_reported_again_keeps_its_first_date() -> None:
    """Each time it comes it was longer on its way; of two events the later one counts."""
    fleet = fleet_of(state("a", age_ns=5))
    fleet.invalidate_before(["gm-1"], invalidation(NOW.boottime_ns - 10))
    fleet.invalidate_before(["gm-1"], invalidation(NOW.boottime_ns))
    same = clock(fleet, "a").status(NOW).name
    fleet.invalidate_before(["gm-1"], invalidation(NOW.boottime_ns, event=2))
    fleet.invalidate_before(["gm-1"], invalidation(NOW.boottime_ns - 20, event=3))

    assert (same, clock(fleet, "a").status(NOW).name) == ("SYNCHRONIZED", "UNKNOWN")


def test_the_alignment_names_a_node_that_never_reported() -> None:
    """A node that never reported makes the alignment unknown; the reason states whether it was expected."""
    fleet = fleet_of(state("a"), expected=("b",))

    assert fleet.alignment(["a", "b"], NOW).reason == "b: expected (hub.nodes), but has never reported to this hub"
    assert fleet.alignment(["a", "c"], NOW).reason == "c: the node has never reported to this hub"


def test_the_alignment_is_of_all_or_of_those_named() -> None:
    """One that is named twice is one."""
    fleet = fleet_of(state("a", 1_000), state("b", 2_000), state("c", 3_000))

    assert fleet.alignment(None, NOW).alignment_ns == 5_000
    assert fleet.alignment(iter(["a", "b", "a"]), NOW).alignment_ns == 3_000
    assert fleet.alignment(["a", "a"], NOW).reason == "one clock"


def test_a_single_node_is_reported_against_its_main_reference() -> None:
    """One that NTP keeps has a bound, so a preflight of it alone finds no node without one."""
    alone = {"bound_ns": None, "growth_ppb": 0, "reason": Reason.NO_GRANDMASTER.text, "reason_code": "no_grandmaster"}
    known = state("a", status="UNKNOWN", gm=alone, parent=alone, grandmaster_identity=None, sources=[source("utc")])
    published = fleet_of(known).alignment_state(["a"], NOW)

    assert (published.alignment_ns, [part.bound_ns for part in published.nodes]) == (0, [1_000])


def test_the_message_lists_the_widest_first() -> None:
    """Each by the reference that decides, and why one is not bounded."""
    states = [
        state("a"),
        state("b", 3_000),
        state("c", status="DISRUPTED", utc_status="DISRUPTED", reason="it fell", reason_code="clock_stepped"),
    ]
    published = fleet_of(*states).alignment_state(None, NOW)
    absent = fleet_of(*states).alignment_state(["x", "b"], NOW)

    assert published == AlignmentState(
        published_realtime_ns=NOW.realtime_ns,
        alignment_ns=None,
        growth_ppb=None,
        holds_for_ns=None,
        pair=None,
        reason="c: it fell",
        reason_code="clock_stepped",
        nodes=[
            NodeAlignment(node="c", status="DISRUPTED", bound_ns=None, reason="it fell", reason_code="clock_stepped"),
            NodeAlignment(node="b", status="SYNCHRONIZED", bound_ns=3_000, reason=""),
            NodeAlignment(node="a", status="SYNCHRONIZED", bound_ns=1_000, reason=""),
        ],
    )
    assert (absent.alignment_ns, [each.node for each in absent.nodes]) == (None, ["x", "b"])


def test_the_message_has_the_deciding_bound() -> None:
    """Under two grandmasters that is the one against UTC."""
    wide = BoundMessage.of(Bound(9_000))
    published = fleet_of(state("a", utc=wide), state("b", grandmaster_identity="gm-2", utc=wide)).alignment_state(
        None, NOW
    )

    assert (published.alignment_ns, published.pair, published.growth_ppb) == (18_000, ["a", "b"], 0)
    assert published.reason == "a and b, by UTC"
    assert [each.bound_ns for each in published.nodes] == [9_000, 9_000]


def test_a_large_fleet_is_published_in_part() -> None:
    """A hundred nodes in a message, ten in a summary."""
    fleet = fleet_of(*(state(f"n{n}", n) for n in range(MAX_PUBLISHED + 1)))

    assert len(fleet.alignment_state(None, NOW).nodes) == MAX_PUBLISHED
    assert [each.bound_ns for each in fleet.overview(NOW).worst] == [MAX_PUBLISHED - n for n in range(MAX_WORST)]


def test_numbers_that_no_clock_has_bound_nothing() -> None:
    """Nor do sums that a message could not hold."""
    huge = state("a", 2**63 - 1)
    fast = state("b", parent=BoundMessage(bound_ns=1, growth_ppb=2**63 - 1, reason=""))
    published = fleet_of(huge, fast, state("c")).alignment_state(None, NOW)
    grown = [state(name, 10**15, age_ns=900 * NS_PER_S) for name in ("d", "e")]

    assert (published.alignment_ns, published.nodes[0].reason) == (
        None,
        "the source reports an error of more than eleven days",
    )
    assert fleet_of(*grown).alignment(None, NOW).reason == "d and e: more than eleven days apart"


def test_the_overview_counts() -> None:
    """By the main status as it has aged, and by grandmaster; a silent node is not live."""
    no_gm = BoundMessage.of(Bound(None, 0, Reason.NO_GRANDMASTER))
    ntp = state("ntp", status="UNKNOWN", gm=no_gm, grandmaster_identity=None, sources=[source("utc")])
    fleet = fleet_of(
        state("ptp", grandmaster="gm-a"),
        state("silent", age_ns=6 * NS_PER_S),
        ntp,
        state("lost", None, status="DISRUPTED", utc_status="DISRUPTED", reason="it fell", reason_code="clock_stepped"),
        expected=("ptp", "copy", "never"),
    )
    fleet.accept(state("copy"), NOW.boottime_ns, live=False)
    summary = fleet.overview(NOW)

    assert (summary.known, summary.live, summary.missing) == (5, 4, ("copy", "never"))
    assert summary.statuses == {"SYNCHRONIZED": 2, "HOLDOVER": 1, "DISRUPTED": 1, "UNKNOWN": 1}
    assert summary.grandmasters == {"gm-a": 1, "gm-1": 3, "": 1}
    assert [(each.node, each.reason) for each in summary.worst[:2]] == [
        ("lost", "it fell"),
        ("copy", "last known state only: the node has not reported since the hub started"),
    ]


def test_a_node_that_fell_silent_is_missing() -> None:
    """It was there once, and is known still."""
    overview = fleet_of(state("a"), expected=("a",)).overview(later(SILENT))

    assert (overview.known, overview.live, overview.missing) == (1, 0, ("a",))


def test_a_silent_node_is_unknown_not_fine() -> None:
    """Its grown bound may still hold, but a step of its clock or its loss would not be reported."""
    fleet = fleet_of(state("a"), state("b"))
    fleet.accept(state("b", sequence=2, published_realtime_ns=SILENT), NOW.boottime_ns + SILENT, live=True)
    found = fleet.alignment_state(["a", "b"], later(SILENT))

    assert fleet.alignment(["a", "b"], later(SILENT - 1)).alignment_ns is not None
    assert (found.alignment_ns, found.reason) == (None, "a: silent for 25 s")
    assert found.nodes[0] == NodeAlignment(
        node="a", status="UNKNOWN", bound_ns=None, reason="silent for 25 s", reason_code="node_silent"
    )
    assert fleet.overview(later(SILENT)).statuses == {"SYNCHRONIZED": 1, "UNKNOWN": 1}


def test_a_node_with_a_long_interval_is_not_silent_so_soon() -> None:
    """A state contains its interval, and a node counts as silent after four missed states."""
    fleet = fleet_of(state("a", every_ns=60 * NS_PER_S), expected=("a",))
    missing = [fleet.overview(later(seconds * NS_PER_S)).missing for seconds in (239, 240)]

    assert missing == [(), ("a",)]


def test_the_alignment_of_all_includes_nodes_that_never_reported() -> None:
    """Two nodes of three thousand are not the fleet."""
    fleet = fleet_of(state("a"), state("b"), expected=("b", "c"))

    assert fleet.alignment(None, NOW).reason == "c: expected (hub.nodes), but has never reported to this hub"
    assert fleet.alignment_state(None, NOW).nodes[0].node == "c"


def test_a_node_without_a_clock_source_is_not_in_the_fleet_s_clocks() -> None:
    """A mere hub would leave the alignment of all unknown for ever; asked for by name it is unknown."""
    hub = state(
        "hub",
        None,
        status="UNKNOWN",
        utc_status="UNKNOWN",
        age_ns=None,
        reason="no clock is watched",
        reason_code="clock_stepped",
    )
    fleet = fleet_of(state("a"), state("b"), hub, expected=("a", "hub"))
    summary = fleet.overview(NOW)

    assert fleet.alignment(None, NOW).alignment_ns == 2_000
    assert (summary.known, summary.live, summary.statuses, summary.missing) == (2, 2, {"SYNCHRONIZED": 2}, ())
    assert fleet.alignment(["a", "hub"], NOW).reason == "hub: no clock is watched"


def test_an_old_invalidation_without_followers_is_removed() -> None:
    """Anybody can name identities to a broker."""
    fleet = fleet_of(state("a"), state("b", grandmaster_identity="gm-2"), expected=("a",))
    for identity in ("gm-1", "gm-2", "gm-3"):
        fleet.invalidate_before([identity], invalidation(NOW.boottime_ns))
    hour_ns = 3_600 * NS_PER_S
    now_ns = NOW.boottime_ns + hour_ns
    left = [fleet.forget_silent(now_ns + more_ns, hour_ns) for more_ns in (0, 1)]

    assert left == [[], ["b"]]
    assert fleet._invalidations.keys() == {"gm-1"}


def test_a_node_that_reports_every_few_hours_has_not_left() -> None:
    """It is not even silent."""
    fleet = fleet_of(state("a", every_ns=3_600 * NS_PER_S))

    assert fleet.forget_silent(NOW.boottime_ns + 2 * 3_600 * NS_PER_S, 3_600 * NS_PER_S) == []


def test_without_nodes_the_alignment_is_unknown() -> None:
    """A hub that has just started has no states, so the alignment is unknown."""
    assert Fleet().alignment(None, NOW).alignment_ns is None
    assert Fleet().alignment_state([], NOW).nodes == []


def test_a_synchronized_node_whose_state_has_no_age_has_no_bound() -> None:
    """A bound of unknown age bounds nothing: the reason is the missing bound, and not the status, which is good."""
    undated, unknown = state("a", age_ns=None), state("b", status="UNKNOWN")
    fleet = fleet_of(undated, unknown)
    reasons = [clock(fleet, name).why_unbounded(NOW) for name in "ab"]

    assert [reason and reason.text for reason in reasons] == ["no bound", "the clock is UNKNOWN"]
