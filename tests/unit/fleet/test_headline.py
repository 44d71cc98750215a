"""The fleet in one sentence: what it claims, of which clocks, and what it states of the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fake_view import RECORDED
from grandmaster_states import polled_grandmaster
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.fleet.headline import FleetReading, comparable, headline, verdict
from timesyncd.fleet.node_clock import SILENT_AFTER_NS, NodeClock, aged_statuses
from timesyncd.fleet.overview import chain_groups, overview
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import BoundMessage, FindingMessage, NodeState
from timesyncd.messages.overview import ConfiguredLimits, Headline

#: 2026-11-26 12:00:00 UTC.
NOON_NS = 1_795_694_400 * NS_PER_S
NOW = Moment(realtime_ns=NOON_NS, boottime_ns=10_000 * NS_PER_S)
LIMITS = ConfiguredLimits(fleet_alignment_ns=10_000, job_alignment_ns=1_000, node_bound_ns=2_000)
JOB = JobState.model_validate(RECORDED["jobs"][0])


def node(name: str, bound_ns: int | None = 1_950, **changes: object) -> NodeState:
    """Synchronized, as wide against UTC as against its grandmaster; without a bound it is UNKNOWN for an hour."""
    bound = BoundMessage.of(Bound(bound_ns, 0))
    status = "UNKNOWN" if bound_ns is None else "SYNCHRONIZED"
    fields: dict[str, object] = {
        "node": name, "incarnation": 1, "sequence": 1, "published_realtime_ns": NOON_NS, "age_ns": 0,
        "boot_id": f"boot of {name}", "time_namespace": 1, "status": status, "utc_status": status,
        "since_realtime_ns": NOON_NS - 3_600 * NS_PER_S, "parent": bound, "gm": bound, "utc": bound,
        "grandmaster_identity": "gm-1", "grandmaster": "gm-a", "parent_identity": f"port of {name}",
        "utc_seconds_removed": 37, "reason": "" if bound_ns else "no delay response",
        "reason_code": "ok" if bound_ns else "no_delay_response",
    }  # fmt: skip
    return NodeState.model_validate(fields | changes)


def clocks(*states: NodeState, received_before_ns: int = 0) -> list[NodeClock]:
    return [NodeClock.of(state, NOW.boottime_ns - received_before_ns, live=True) for state in states]


def of(*states: NodeState, absent: Sequence[str] = (), limits: ConfiguredLimits = LIMITS) -> Headline:
    return headline_of(FleetReading(clocks(*states), absent, limits))


def headline_of(reading: FleetReading) -> Headline:
    return headline(reading, aged_statuses(reading.clocks, NOW), NOW)


def test_clocks_without_a_bound_are_counted_beside_the_alignment() -> None:
    """One unknown clock of many takes nothing from what is known of the others, and is not covered by it."""
    found = of(*(node(f"n{at}") for at in range(1_968)), *(node(f"u{at}", None) for at in range(34)))

    assert found.text == (
        "1,968 of 2,002 clocks agree within 3.90 us; 34 report no bound, all: no delay response since 11:00:00 UTC"
    )
    assert (found.nodes, found.compared, found.without_bound, found.not_compared) == (2_002, 1_968, 34, 0)
    assert (found.alignment_ns, found.verdict) == (3_900, "within")


def test_the_headline_names_what_the_clocks_without_a_bound_share() -> None:
    """Most of them are behind one parent clock, whose nodes lack a bound: the sentence names it and since when."""
    behind = [node(f"b{at}", None, parent_identity="bc-hall1-07") for at in range(28)]
    others = [node(f"u{at}", None, parent_identity="bc-1") for at in range(6)]
    found = of(*(node(f"n{at}", parent_identity="bc-1") for at in range(100)), *behind, *others)

    assert found.text.endswith("; 34 report no bound, 28 of them behind bc-hall1-07 since 11:00:00 UTC")
    assert [(cause.kind, cause.name, cause.nodes, cause.of) for cause in found.causes] == [
        ("parent", "bc-hall1-07", 28, 28),
        ("reason", "no_delay_response", 6, 6),
    ]
    assert found.actions[0].nodes == sorted(state.node for state in behind + others)
    assert found.actions[1].subject == "bc-hall1-07"


def test_a_shared_grandmaster_of_mostly_healthy_nodes_is_no_cause() -> None:
    """A trait that most nodes with a bound have too explains nothing."""
    found = of(*(node(f"n{at}") for at in range(10)), node("u1", None), node("u2", None))

    assert [cause.kind for cause in found.causes] == ["reason"]


def test_a_place_is_named_as_specifically_as_it_holds() -> None:
    """Of rack and hall with the same nodes the one with fewer other nodes is the cause."""
    lost = [node(f"u{at}", None, topology="hall-1/rack-3") for at in range(4)]
    found = of(*(node(f"n{at}", topology="hall-1/rack-1") for at in range(4)), *lost)

    assert (found.causes[0].kind, found.causes[0].name) == ("place", "hall-1/rack-3")


def test_a_silent_node_is_without_a_bound_since_its_last_report() -> None:
    """Its last bound may still hold, but the node does not report: it is not covered."""
    silent = clocks(node("quiet", published_realtime_ns=0), received_before_ns=SILENT_AFTER_NS)
    found = headline_of(FleetReading([*clocks(node("a"), node("b")), *silent]))

    assert (found.compared, found.without_bound) == (2, 1)
    assert found.causes[0].since_realtime_ns == NOON_NS - SILENT_AFTER_NS
    assert "1 reports no bound, quiet: silent for 25 s since 11:59:35 UTC" in found.text


def test_an_expected_node_that_never_reported_is_counted() -> None:
    """It belongs to the fleet, so "all" would be false."""
    found = of(node("a"), node("b"), absent=["c"])

    assert found.text.startswith("2 of 3 clocks agree within 3.90 us; 1 reports no bound, c: ")
    assert found.causes[0].since_realtime_ns is None


def test_clocks_that_share_no_reference_are_not_compared() -> None:
    """Under two grandmasters without UTC only the larger group is compared; the others have a bound all the same."""
    lone = BoundMessage.of(Bound(None, 0))
    here = [node(f"a{at}", utc=lone, utc_status="UNKNOWN") for at in range(3)]
    there = [node(f"b{at}", utc=lone, utc_status="UNKNOWN", grandmaster_identity="gm-2") for at in range(2)]
    found = of(*here, *there)

    assert (found.compared, found.without_bound, found.not_compared) == (3, 0, 2)
    assert found.text == ("3 of 5 clocks agree within 3.90 us; 2 share no reference with them and are not compared")


def test_no_agreement_is_claimed_without_two_bounds() -> None:
    """With one clock there is nothing to agree with, and without a bound there is nothing to claim."""
    assert of(node("a")).text == "The only clock is within +-1.95 us of its reference"
    assert of(node("a")).verdict == "within"
    assert of(node("a", None)).text == "The clock reports no bound; a: no delay response since 11:00:00 UTC"
    assert of(node("a", None), node("b", None)).text.startswith("None of 2 clocks reports a bound")
    assert of(node("a"), node("b", None)).text.startswith("One of 2 clocks reports a bound")
    assert of().text == "No node with a clock source is known"
    assert {of(*states).alignment_ns for states in ((), (node("a"),), (node("a", None),))} == {None}


@pytest.mark.parametrize(
    ("value_ns", "limit_ns", "expected"),
    [(None, 1, "unknown"), (5, None, "unlimited"), (5, 5, "within"), (6, 5, "exceeded")],
)
def test_a_value_is_judged_by_the_operator_s_limit_alone(
    value_ns: int | None, limit_ns: int | None, expected: str
) -> None:
    """Without a limit there is no judgement."""
    assert verdict(value_ns, limit_ns) == expected


def test_an_alignment_above_the_limit_is_named() -> None:
    """The sentence names the limit, and counts the nodes above theirs."""
    found = of(node("a", 8_000), node("b", 7_001))

    assert found.text == "All 2 clocks agree within 15.1 us, above the limit of 10 us"
    assert (found.verdict, found.wide) == ("exceeded", 2)
    assert of(node("a"), node("b"), limits=ConfiguredLimits()).wide is None


def test_jobs_on_nodes_without_a_bound_are_affected() -> None:
    """A job is affected by a node without a bound, and by an alignment that is unknown or above its limit."""
    aligned = JOB.model_copy(
        update={"alignment_ns": 900, "alignment_growth_ppb": 0, "alignment_holds_for_ns": None,
                "published_realtime_ns": NOON_NS}
    )  # fmt: skip
    wide = aligned.model_copy(update={"job_id": "b" * 16, "alignment_ns": 1_001})
    ranks = {rank.node for rank in JOB.ranks}
    healthy = headline_of(FleetReading(clocks(node("a"), node("b")), (), LIMITS, [aligned, wide]))
    lost = headline_of(FleetReading(clocks(*(node(name, None) for name in ranks)), (), LIMITS, [aligned]))

    assert [(job.job_id, job.verdict) for job in healthy.jobs] == [("b" * 16, "exceeded")]
    assert lost.jobs[0].without_bound == sorted(ranks)
    assert "one job is affected" in lost.actions[0].text


def test_the_worst_finding_can_be_acknowledged_once() -> None:
    """The offered finding is the most severe one that no operator has acknowledged."""
    first = FindingMessage.model_validate(RECORDED["findings"][0]).model_copy(
        update={"severity": "critical", "until_realtime_ns": None}
    )
    other = first.model_copy(update={"subject": "other", "severity": "warning"})
    open_findings = FleetReading(clocks(node("a")), findings=[other, first])
    taken = FleetReading(clocks(node("a")), findings=[other, first], acknowledged={(first.id, first.subject)})

    assert headline_of(open_findings).actions[-1].subject == first.subject
    assert headline_of(taken).actions[-1].subject == "other"
    assert headline_of(open_findings).findings == {"critical": 1, "warning": 1, "info": 0}


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(1, 10**6)), st.sampled_from(["gm-1", "gm-2"]), st.booleans(), st.booleans()
        ),
        max_size=8,
    )
)
def test_no_pair_of_compared_clocks_is_further_apart_than_claimed(
    fleet: list[tuple[int | None, str, bool, bool]],
) -> None:
    """The alignment covers each pair of compared clocks by a reference that both have; no other pair is compared."""
    none = BoundMessage.of(Bound(None, 0))
    states = [
        node(f"n{at}", ns, grandmaster_identity=gm, parent_identity="bc")
        if has_utc
        else node(f"n{at}", ns, grandmaster_identity=gm, parent_identity="bc", utc=none, utc_status="UNKNOWN")
        for at, (ns, gm, has_utc, _) in enumerate(fleet)
    ]
    seen = [NodeClock.of(state, NOW.boottime_ns, live) for state, (*_, live) in zip(states, fleet, strict=True)]
    found, compared = headline_of(FleetReading(seen)), comparable(aged_statuses(seen, NOW), NOW)

    assert found.compared + found.without_bound + found.not_compared == found.nodes == len(fleet)
    by_name = {f"n{at}": each for at, each in enumerate(fleet)}
    assert all(by_name[clock.node][0] is not None and by_name[clock.node][3] for clock in compared)
    widest = sorted((by_name[clock.node][0] or 0 for clock in compared), reverse=True)[:2]
    assert found.alignment_ns is None if len(compared) < 2 else found.alignment_ns == sum(widest)


def test_a_share_of_the_fleet_is_not_called_the_fleet() -> None:
    """Where hubs share, each claims its own nodes alone."""
    found = headline_of(FleetReading(clocks(node("a"), node("b")), is_share=True))

    assert found.scope == "share"
    assert found.text == "In this hub's share: All 2 clocks agree within 3.90 us"


def test_the_chain_counts_every_node_once() -> None:
    """By grandmaster, parent clock and place; the widest bound is of those that have one."""
    seen = clocks(
        node("a", 100, topology="r1", parent_identity="bc"), node("b", 900, topology="r1", parent_identity="bc"),
        node("c", None, topology="r2", parent_identity="bc"),
    )  # fmt: skip
    groups = chain_groups(aged_statuses(seen, NOW))

    assert [(each.place, each.nodes, each.without_bound, each.bound_ns) for each in groups] == [
        ("r1", 2, 0, 900),
        ("r2", 1, 1, None),
    ]
    assert (groups[0].grandmaster, groups[0].parent_identity) == ("gm-a", "bc")


def test_a_grandmaster_s_nodes_are_counted_by_its_identities() -> None:
    """A node that received no state of its grandmaster knows the clock identity alone; the chain has the name for it, too."""
    seen = clocks(node("a"), node("b", grandmaster=None), node("c", grandmaster=None, grandmaster_identity="other"))
    found = overview(FleetReading(seen), [polled_grandmaster("gm-a", identities=["gm-1"])], [], "hub", NOW)

    assert [(each.name, each.followers) for each in found.grandmasters] == [("gm-a", 2)]
    assert {group.grandmaster for group in found.chain} == {"gm-a", "other"}


def test_an_overview_rests_on_one_moment() -> None:
    """Its lag is the age of the oldest state of a node that reports; silent nodes are counted, not read."""
    seen = [
        *clocks(node("a"), received_before_ns=3 * NS_PER_S),
        *clocks(node("b"), received_before_ns=SILENT_AFTER_NS),
    ]
    found = overview(FleetReading(seen), [], [], "hub", NOW)

    assert (found.as_of_realtime_ns, found.headline.as_of_realtime_ns) == (NOON_NS, NOON_NS)
    assert found.lag_ns == 3 * NS_PER_S
    assert found.statuses == {"SYNCHRONIZED": 1, "UNKNOWN": 1}
