"""The fleet's findings, one rule at a time; tests/simulation holds them against whole fleets."""

from __future__ import annotations

from typing import Any

import pytest
from grandmaster_states import GM_A, GM_B, NIGHT_NS, follower, polled_grandmaster

from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import Judgement
from timesyncd.findings.fleet import CUT_OFF_FOR_NS, ENDS_AFTER_NS, EXPIRES_AFTER_NS, FleetFindings, without_duplicates
from timesyncd.findings.fleet_nodes import (
    ALONE_READINGS,
    MIN_DELAY_READINGS,
    MIN_OFFSET_READINGS,
    NORMAL_AFTER_NS,
    DelayHistory,
    NodeRecord,
    OffsetHistory,
)
from timesyncd.fleet.node_clock import SILENT_AFTER_NS
from timesyncd.messages.node import BoundMessage, NodeState, SourceState

ROGUE = "badbad.fffe.000001"
GRANDMASTERS = [polled_grandmaster(), polled_grandmaster("gm-b")]
EVERY_NS = 5 * NS_PER_S

Key = tuple[str, str]


def bound(bound_ns: int | None) -> BoundMessage:
    return BoundMessage(bound_ns=bound_ns, growth_ppb=0, reason="")


def ptp(identity: str = GM_A, domain: int = 24, **changes: Any) -> SourceState:
    fields = {"kind": "ptp", "offset_ns": 0, "path_delay_ns": 5_000, "utc": bound(6_000), "age_ns": 1_000}
    found = {"name": "ptp", "driver": "ptp4l", "reachable": True, "grandmaster_identity": identity, "domain": domain}
    return SourceState.model_validate(found | fields | changes)


def ntp(offset_ns: int, error_ns: int = 100_000, **changes: Any) -> SourceState:
    found = {
        "name": "ntp",
        "driver": "chrony",
        "reachable": True,
        "kind": "utc",
        "offset_ns": offset_ns,
        "age_ns": 1_000,
    }
    return SourceState.model_validate(found | {"utc": bound(abs(offset_ns) + error_ns)} | changes)


def node(name: str, *sources: SourceState, at_ns: int = 0, **changes: Any) -> NodeState:
    """Follows the grandmaster of its first source, as its parent."""
    grandmaster = (sources or (ptp(),))[0].grandmaster_identity or GM_A
    found = {"sources": list(sources or (ptp(),)), "parent_identity": grandmaster, "parent": bound(6_000)}
    return follower(name, grandmaster, **(found | {"published_realtime_ns": NIGHT_NS + at_ns} | changes))


def judged_for(
    findings: FleetFindings, states: list[NodeState], seconds: int, first_s: int = 0
) -> dict[Key, Judgement]:
    """The last judgement, when these states came every two seconds."""
    found: dict[Key, Judgement] = {}
    for second in range(first_s, first_s + seconds, 2):
        at_ns = second * NS_PER_S
        for state in states:
            findings.add(state.model_copy(update={"published_realtime_ns": NIGHT_NS + at_ns}), at_ns)
        found = findings.judge(GRANDMASTERS, at_ns, NIGHT_NS + at_ns)
    return found


def fleet(nodes: int = 9) -> list[NodeState]:
    return [node(f"n{number}") for number in range(nodes)]


# The record of a node


def record(*sources: SourceState, **changes: Any) -> NodeRecord:
    made = NodeRecord("n")
    made.update(node("n", *sources, **changes), 0)
    return made


def test_a_node_without_announce_is_no_sibling_of_another() -> None:
    """Two unknown identities are not one clock, so their offsets are not compared."""
    nameless = {"grandmaster_identity": None, "parent_identity": None}
    made = record(ptp().model_copy(update={"grandmaster_identity": None}), **nameless)

    assert (made.parent, made.grandmaster, made.offset_ns) == ("", "", None)


def test_the_record_is_of_the_source_that_the_clock_follows() -> None:
    """Its offset, and of the bound what is beyond it; domains and grandmasters of all that measure."""
    made = record(
        ptp(GM_A, offset_ns=-1_500),
        ptp(GM_B, domain=25, offset_ns=70),
        ptp("x", 26, reason="no Sync", reason_code="no_valid_sample"),
    )

    assert (made.offset_ns, made.error_ns, made.parent, made.grandmaster) == (-1_500, 4_500, GM_A, GM_A)
    assert (made.domains, sorted(made.grandmasters)) == ((24, 25), [GM_A, GM_B])


@pytest.mark.parametrize(
    "changes",
    [
        {"age_ns": None},
        {"age_ns": 5 * NS_PER_S},
        {"reason": "no Sync", "reason_code": "no_valid_sample"},
        {"offset_ns": None},
        {"kind": "utc"},
    ],
)
def test_without_a_fresh_reading_there_is_no_offset(changes: dict[str, Any]) -> None:
    """An old sample does not count."""
    assert record(ptp(**changes)).offset_ns is None


def test_without_a_bound_there_is_no_offset() -> None:
    """What may be wrong by anything proves nothing."""
    assert record(parent=bound(None)).offset_ns is None


def test_the_same_reading_in_the_next_state_is_not_a_new_one() -> None:
    """A state is repeated; the reading in it has grown older by as much."""
    made = record()
    made.is_new = False
    made.update(node("n", ptp(age_ns=1_000 + NS_PER_S + 300), at_ns=NS_PER_S), NS_PER_S)
    again = made.is_new
    made.update(node("n", at_ns=2 * NS_PER_S), 2 * NS_PER_S)

    assert (again, made.is_new) == (False, True)


def test_another_parent_begins_another_history() -> None:
    """Its path is another one."""
    made = record()
    delays = made.delays
    made.update(node("n", parent_identity="5c5c5c.fffe.000001", at_ns=NS_PER_S), NS_PER_S)

    assert made.delays is not delays


def test_a_witness_is_the_grandmaster_s_time_minus_the_other_s() -> None:
    """A clock that is 1 us ahead of GM-A and 9 us ahead of UTC: GM-A is 8 us ahead; what each may err by is added."""
    made = record(ptp(GM_A, offset_ns=1_000, utc=bound(3_000)), ntp(9_000, 500))

    assert made.witnesses == ((GM_A, "UTC", 8_000, 2_500),)
    assert made.contradicts


@pytest.mark.parametrize(
    "other",
    [
        ntp(9_000_000, reason="gone", reason_code="no_valid_sample"),
        ntp(9_000_000, age_ns=None),
        ntp(9_000_000, utc=None),
    ],
)
def test_a_source_without_a_recent_bound_is_no_witness(other: SourceState) -> None:
    """Silent, without an age, without a bound."""
    assert record(ptp(), other).witnesses == ()


# One node's past


def test_what_has_stood_for_an_hour_is_the_path_s_delay() -> None:
    """A path that was rerouted for good becomes the normal one."""
    history = DelayHistory()
    for number in range(MIN_DELAY_READINGS):
        history.update(5_000, number * EVERY_NS)
    moved_ns = MIN_DELAY_READINGS * EVERY_NS
    history.update(9_000, moved_ns)
    first = (history.direction, history.moved_ns, history.since_ns)
    history.update(9_000, moved_ns + NORMAL_AFTER_NS)

    assert first == (1, 4_000, moved_ns)
    assert (history.direction, history.is_known) == (0, False)


@pytest.mark.parametrize(("delay_ns", "way"), [(5_240, 0), (5_260, 1), (4_740, -1)])
def test_a_twentieth_of_the_delay_is_no_move(delay_ns: int, way: int) -> None:
    """However steady it was."""
    history = DelayHistory()
    for number in range(MIN_DELAY_READINGS):
        history.update(5_000, number * EVERY_NS)
    history.update(delay_ns, MIN_DELAY_READINGS * EVERY_NS)

    assert history.direction == way


def test_what_the_delay_does_all_the_time_is_no_move() -> None:
    """Five standard deviations of its own noise are."""
    history = DelayHistory()
    for number in range(MIN_DELAY_READINGS):
        history.update(4_000 + number % 2 * 2_000, number * EVERY_NS)
    history.update(12_000, MIN_DELAY_READINGS * EVERY_NS)
    noise = history.direction
    history.update(13_000, MIN_DELAY_READINGS * EVERY_NS)

    assert (noise, history.direction) == (0, 1)


def history_of(distances: list[int], allowed_ns: int = 100) -> OffsetHistory:
    """After a quiet while."""
    history = OffsetHistory()
    for number, distance_ns in enumerate([10] * MIN_OFFSET_READINGS + distances):
        history.update(distance_ns, allowed_ns, number * EVERY_NS)
    return history


@pytest.mark.parametrize(
    ("distances", "is_alone"),
    [
        ([900, 800, 700, 600], True),
        ([-900, -800, -700, -600], True),
        ([900, 800, 700], False),
        ([900, 800, 10, 900, 800], False),
        ([900, -900, 900, -900, 900], False),
        ([90, 90, 90, 90], False),
    ],
)
def test_one_way_and_in_a_row_beyond_what_is_allowed(distances: list[int], is_alone: bool) -> None:
    """Four readings; fewer may be late packets, and both ways is noise."""
    history = history_of(distances)

    assert history.is_alone((MIN_OFFSET_READINGS + len(distances) - 1) * EVERY_NS) == is_alone


def test_few_readings_are_too_few_however_long_they_last() -> None:
    """A node that publishes seldom needs as many."""
    assert not history_of([900] * 3).is_alone(NORMAL_AFTER_NS)


def test_the_smallest_of_all_readings_is_published() -> None:
    """So far it was at least, all the time."""
    assert history_of([-900, -600, -800, -700]).least_ns == -600


def test_what_a_node_does_now_and_then_is_usual_for_it() -> None:
    """A single late packet of 400 ns makes 700 ns no jump."""
    assert history_of([10, 400, 10] + [700] * ALONE_READINGS).suspect == 0


def test_an_hour_later_a_jump_is_how_it_is_now() -> None:
    """A clock that no daemon steers keeps its offset."""
    history = history_of([900] * ALONE_READINGS)
    history.update(900, 100, 2 * NORMAL_AFTER_NS)

    assert (history.suspect, history.usual_ns) == (0, 900)


# The fleet


def test_a_jump_s_evidence_has_its_numbers() -> None:
    """Who, how far, against whom, what noise and bounds explain, and since when."""
    findings, states = FleetFindings(), fleet()
    judged_for(findings, states, 60)
    states[4] = node("n4", ptp(offset_ns=-50_000), parent=bound(56_000))
    found = judged_for(findings, states, 30, 60)

    assert found.keys() == {("node-offset-alone", "n4")}
    assert found["node-offset-alone", "n4"].evidence == (
        f"at least 50.0 us behind the median of 9 nodes behind {GM_A} in each of 15 readings; half of these nodes "
        f"are within 0 ns of it, "
        "the node was within 0 ns, and the bounds explain 12.0 us; since 02:11Z"
    )


def test_nodes_that_jump_together_have_one_cause() -> None:
    """Of nine nodes two at once are not alone, nor is one that settles later than the other."""
    findings, states = FleetFindings(), fleet()
    judged_for(findings, states, 60)
    states[3:5] = [node(f"n{number}", ptp(offset_ns=-50_000), parent=bound(56_000)) for number in (3, 4)]
    together = judged_for(findings, states, 30, 60)
    states[3] = node("n3")

    assert (together, judged_for(findings, states, 60, 90)) == ({}, {})


def test_what_the_bounds_explain_is_no_jump() -> None:
    """Its own error and that of the others together."""
    findings, states = FleetFindings(), fleet()
    judged_for(findings, states, 60)
    states[4] = node("n4", ptp(offset_ns=11_900), parent=bound(17_900))

    assert judged_for(findings, states, 60, 60) == {}


@pytest.mark.parametrize(("racks", "subject"), [(("hall/r1", "hall/r2"), "hall/r1"), (("", ""), None)])
def test_a_rack_that_moves_is_one_finding(racks: tuple[str, str], subject: str | None) -> None:
    """Its chain gives the effect on the clocks; half of the nodes behind one parent are no group."""
    findings = FleetFindings()
    states = [node(f"n{number}", topology=racks[number // 6]) for number in range(12)]
    judged_for(findings, states, 180)
    moved = [node(f"n{number}", ptp(path_delay_ns=8_000), topology=racks[0]) for number in range(6)]
    found = judged_for(findings, moved + states[6:], 30, 180)

    assert [key[1] for key in found] == ([subject] if subject else [])
    for judged in found.values():
        assert judged.evidence.startswith(
            "the path delay of 6 of 6 nodes became 3.00 us longer within 30 s: from 5.00 us to 8.00 us"
        )
        assert judged.chain[1].text == "if only one direction changed, its clocks err by 3.00 us"


def in_rack(delays_ns: list[int]) -> list[NodeState]:
    return [node(f"n{number}", ptp(path_delay_ns=delay_ns), topology="r") for number, delay_ns in enumerate(delays_ns)]


def test_most_of_a_rack_is_not_nearly_all() -> None:
    """Of six nodes five moved: not the path that all have in common."""
    findings = FleetFindings()
    judged_for(findings, in_rack([5_000] * 6), 180)

    assert judged_for(findings, in_rack([8_000] * 5 + [5_000]), 60, 180) == {}


def test_paths_that_change_one_by_one_did_not_change_together() -> None:
    """A minute apart each has a reason of its own."""
    findings = FleetFindings()
    judged_for(findings, in_rack([5_000] * 6), 180)
    found = [judged_for(findings, in_rack([8_000] * n + [5_000] * (6 - n)), 60, 120 + 60 * n) for n in range(1, 7)]

    assert found == [{}] * 6


def test_a_changed_path_is_a_finding_until_it_is_the_normal_one() -> None:
    """What it is meanwhile does not count as what it was."""
    findings = FleetFindings()
    judged_for(findings, in_rack([5_000] * 6), 180)
    found = judged_for(findings, in_rack([8_000] * 6), 3_500, 180)

    assert found.keys() == {("rack-path-delay-moved", "r")}


def test_followers_that_know_utc_outvote_their_grandmaster() -> None:
    """Named as configured; the chain names the followers."""
    findings = FleetFindings()
    found = judged_for(findings, [node(f"n{number}", ptp(), ntp(700_000)) for number in range(3)], 20)

    assert found.keys() == {("grandmaster-outvoted", "gm-a")}
    assert found["grandmaster-outvoted", "gm-a"].evidence == (
        "700 us ahead of UTC by 3 of 3 nodes, whose bounds explain 106 us; since 02:10Z"
    )
    assert found["grandmaster-outvoted", "gm-a"].chain[1].text.startswith("n0, n1, n2: their clocks follow it")


def test_one_that_agrees_and_would_have_seen_the_error_saves_it() -> None:
    """Two grandmasters against it, and UTC for it: nothing is proven."""
    other: dict[str, Any] = {"offset_ns": 700_000, "utc": bound(706_000)}
    against = [ptp(), ptp(GM_B, name="b", **other), ptp("00a069.fffe.70476c", name="c", **other)]
    alone = judged_for(FleetFindings(), [node(f"n{number}", *against) for number in range(5)], 20)
    saved = judged_for(FleetFindings(), [node(f"n{number}", *against, ntp(0)) for number in range(5)], 20)

    assert alone.keys() == {("grandmaster-outvoted", "gm-a")}
    assert saved == {}


def test_two_witnesses_are_too_few() -> None:
    """They may share a fault."""
    assert judged_for(FleetFindings(), [node(f"n{number}", ptp(), ntp(700_000)) for number in range(2)], 30) == {}


def test_a_node_in_another_domain_is_named() -> None:
    """With what most are in."""
    found = judged_for(FleetFindings(), [*fleet(), node("odd", ptp(domain=44))], 30)

    assert found.keys() == {("node-other-domain", "odd")}
    assert found["node-other-domain", "odd"].evidence == (
        f"in PTP domain 44, where it receives {GM_A}; 9 of 10 nodes of the fleet are in 24; since 02:10Z"
    )


def test_what_a_node_does_in_another_domain_is_the_domain_s_doing() -> None:
    """Its offset against the others is no finding of its own."""
    findings, states = FleetFindings(), fleet()
    judged_for(findings, states, 60)
    states[4] = node("n4", ptp(domain=44, offset_ns=-50_000), parent=bound(56_000))

    assert judged_for(findings, states, 30, 60).keys() == {("node-other-domain", "n4")}


def test_two_domains_by_design_are_no_finding() -> None:
    """Each node in both, or half of the fleet in each, or a node that has lost one of them."""
    both = [node(f"n{number}", ptp(), ptp(GM_B, 25)) for number in range(9)]
    halves = [node(f"n{number}", ptp(domain=24 + number % 2)) for number in range(10)]

    assert judged_for(FleetFindings(), [*both, node("half", ptp(GM_B, 25))], 30) == {}
    assert judged_for(FleetFindings(), halves, 30) == {}
    assert judged_for(FleetFindings(), [*halves, node("third", ptp(domain=44))], 30) == {}


def test_a_rack_has_outliers_that_the_fleet_has_not() -> None:
    """Where each hall has a domain of its own, a node in the other hall's is odd in its rack."""
    states = [
        node(f"n{number}", ptp(domain=24 + number // 6), topology=f"hall-{number // 6}/r") for number in range(12)
    ]
    states[0] = node("n0", ptp(domain=25), topology="hall-0/r")

    assert judged_for(FleetFindings(), states, 30).keys() == {("node-other-domain", "n0")}


def test_an_unknown_grandmaster_is_named_with_its_followers() -> None:
    """One finding for the unknown grandmaster; that its time is wrong too is in the chain."""
    followers = [node(f"r{number}", ptp(ROGUE), ntp(700_000)) for number in range(3)]
    found = judged_for(FleetFindings(), [*fleet(40), *followers], 30)

    assert found.keys() == {("node-other-grandmaster", ROGUE)}
    judged = found["node-other-grandmaster", ROGUE]
    assert judged.evidence.startswith("followed by r0, r1, r2: 3 of 43 nodes; no [[grandmaster]] has this identity")
    assert judged.chain[1].text.startswith("it is 700 us ahead of UTC by 3 of 3 nodes")


def test_a_configured_or_formerly_common_grandmaster_is_no_outlier() -> None:
    """The last node on a configured grandmaster, and the last one on a grandmaster that the fleet followed before."""
    findings = FleetFindings()
    judged_for(findings, [node(f"n{number}", ptp(ROGUE)) for number in range(9)], 30)
    last = [node("n0", ptp(ROGUE)), node("n1", ptp(GM_B)), *fleet()[2:]]

    assert judged_for(findings, last, 60, 30) == {}


def test_a_grandmaster_that_nodes_change_to_one_by_one_is_no_outlier() -> None:
    """Fifteen seconds are enough for all."""
    findings = FleetFindings()
    judged_for(findings, fleet(), 30)
    first = judged_for(findings, [node("n0", ptp(ROGUE)), *fleet()[1:]], 12, 30)
    then = judged_for(findings, [node(f"n{number}", ptp(ROGUE)) for number in range(9)], 60, 42)

    assert (first, then) == ({}, {})


# Who is missing


def test_missing_nodes_are_one_list() -> None:
    """Nodes that never reported are listed apart from silent ones; none before they had time to report."""
    findings = FleetFindings(["n0", "n1", "n9"])
    early = judged_for(findings, fleet(2), 20)
    found = judged_for(findings, fleet(1), 40, 20)

    assert early == {}
    assert found.keys() == {("hub-nodes-missing", "fleet")}
    assert found["hub-nodes-missing", "fleet"].evidence == (
        "2 of 3 expected nodes: never reported: n9; silent: n1 for 40 s; since 02:10Z"
    )


def test_a_hub_without_any_state_waits() -> None:
    """Its broker is the cause, and has a finding; its own node does not count as reporting."""
    findings = FleetFindings(["n0", "n1"], own="hub")
    judged_for(findings, [node("n0"), node("n1"), node("hub")], 20)
    waiting = judged_for(findings, [node("hub")], CUT_OFF_FOR_NS // NS_PER_S - 2, 20)
    found = judged_for(findings, [node("hub")], 10, 78)

    assert waiting == {}
    assert found["hub-nodes-missing", "fleet"].evidence.startswith("2 of 2 expected nodes: silent: n0 for ")
    assert "; no node is reporting" in found["hub-nodes-missing", "fleet"].evidence


def test_a_hub_that_was_asleep_gives_everybody_time() -> None:
    """The nodes did not stop reporting."""
    findings = FleetFindings(["n0"])
    judged_for(findings, fleet(2), 60)

    assert findings.judge(GRANDMASTERS, 3_600 * NS_PER_S, NIGHT_NS) == {}


def test_a_node_that_publishes_seldom_is_not_silent() -> None:
    """Its state carries its interval; four missed states are no coincidence."""
    made = record(every_ns=60 * NS_PER_S)

    assert [made.is_silent(seconds * NS_PER_S) for seconds in (240, 241)] == [False, True]
    assert record().is_silent(SILENT_AFTER_NS + 1)


@pytest.mark.parametrize("pause_s", [0, 3_600], ids=["from the start", "after a pause of the hub"])
def test_a_node_that_publishes_seldom_is_not_missed_in_between(pause_s: int) -> None:
    """Neither before its first state, whose interval the retained copy gives, nor after."""
    findings, seldom = FleetFindings(["n0", "n1"]), node("n0", every_ns=60 * NS_PER_S)
    findings.add_last_known(seldom)
    if pause_s:
        findings.add(seldom, 0)
        findings.judge(GRANDMASTERS, 0, NIGHT_NS)
    found: set[Key] = set()
    for second in range(pause_s, pause_s + 200, 2):
        findings.add(node("n1"), second * NS_PER_S)
        if second % 60 == 58:
            findings.add(seldom, second * NS_PER_S)
        found |= findings.judge(GRANDMASTERS, second * NS_PER_S, NIGHT_NS).keys()

    assert found == set()


def test_a_finding_outlives_a_round_without_it() -> None:
    """It ends when it has not held for ten seconds."""
    findings = FleetFindings()
    judged_for(findings, [*fleet(), node("odd", ptp(domain=44))], 30)
    mended = [*fleet(), node("odd")]
    last_s = 28 + ENDS_AFTER_NS // NS_PER_S

    assert judged_for(findings, mended, last_s - 30, 30).keys() == {("node-other-domain", "odd")}
    assert judged_for(findings, mended, 2, last_s) == {}


def test_an_expired_node_costs_nothing() -> None:
    """An hour after its end; an expected one is kept, so that the finding has since when it is silent."""
    findings = FleetFindings(["n0"])
    judged_for(findings, fleet(2), 10)
    findings.judge(GRANDMASTERS, 2 * EXPIRES_AFTER_NS, NIGHT_NS)

    assert list(findings._nodes) == ["n0"]


def test_a_disagreement_is_not_published_beside_the_outvoted_one() -> None:
    """That of two others remains."""
    pairs = {
        ("grandmasters-disagree", "gm-a, gm-b"): Judgement("x"),
        ("grandmasters-disagree", "gm-b, gm-c"): Judgement("y"),
    }
    verdict = {("grandmaster-outvoted", "gm-a"): Judgement("z")}

    assert without_duplicates(pairs, verdict).keys() == {
        ("grandmasters-disagree", "gm-b, gm-c"),
        ("grandmaster-outvoted", "gm-a"),
    }
    assert without_duplicates(pairs, {}) == pairs
