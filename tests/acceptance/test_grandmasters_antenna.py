"""
From a cut antenna to a node's clock and to people's eyes, and back: the scenario (antenna_run.py) is played once, and each test
looks at what was seen of it.
"""

from __future__ import annotations

import re

import pytest
from antenna_run import BUDGET_S, FIRST_NS, GRANDMASTER_OF, GROWTH_PPB, AntennaRun, Phase, play

from timesyncd.bound import ClockStatus, Reason

pytestmark = pytest.mark.integration

ACCURACY_NS = 100
S = 1_000_000_000
DISRUPTED, SYNCHRONIZED, UNKNOWN = ClockStatus.DISRUPTED, ClockStatus.SYNCHRONIZED, ClockStatus.UNKNOWN

each_node = pytest.mark.parametrize(("node", "grandmaster"), GRANDMASTER_OF.items())
ANTENNA = {"oven": "GNSS antenna faulty", "rack": "GNSS: antenna open, no current"}


@pytest.fixture(scope="module")
def antenna_run() -> AntennaRun:
    return play()


@each_node
def test_a_node_follows_its_grandmaster_by_identity(antenna_run: AntennaRun, node: str, grandmaster: str) -> None:
    """While the grandmaster is locked, the node's state names it, and the UTC bound exceeds the gm bound by its own error at least."""
    state = antenna_run.locked.nodes[node]

    assert (state["grandmaster"], state["grandmaster_summary"]) == (grandmaster, f"{grandmaster}: LOCKED")
    assert state["utc"]["bound_ns"] >= state["gm"]["bound_ns"] + ACCURACY_NS
    assert antenna_run.locked.on(grandmaster) == []


@each_node
def test_a_cut_antenna_is_one_finding_with_its_chain(antenna_run: AntennaRun, node: str, grandmaster: str) -> None:
    """Three alarms, a lost reference, holdover, another class and a growing bound are reported as one, from the cause to the node."""
    (finding,) = antenna_run.cut.on(grandmaster)
    chain = " -> ".join(step["text"] for step in finding["chain"])

    assert (finding["id"], finding["subject"], finding["severity"]) == ("grandmaster-antenna", grandmaster, "warning")
    assert re.search(
        "^[^>]*antenna.* -> no satellite is tracked -> .*HOLDOVER since .* -> it announces clock class 7"
        f" -> its holdover budget lasts until .* -> {node}: UTC bound grows by 18.0 ms an hour$",
        chain,
    )
    assert len(antenna_run.cut.grandmasters[grandmaster]["alarms"]) == 3


@each_node
def test_the_broker_keeps_the_grandmasters_state(antenna_run: AntennaRun, node: str, grandmaster: str) -> None:
    """A later subscriber receives the grandmaster's state, and the state of the node that follows it."""
    kept = antenna_run.kept[f"grandmaster/{grandmaster}/state"]

    assert (kept["name"], kept["clock_state"], kept["clock_class"], kept["node"]) == (grandmaster, "holdover", 7, "hub")
    assert kept["utc"]["bound_ns"] >= FIRST_NS
    assert antenna_run.kept[f"node/{node}/state"]["grandmaster"] == grandmaster


@each_node
def test_status_describes_the_grandmaster(antenna_run: AntennaRun, node: str, grandmaster: str) -> None:
    """`timesyncd status` on the node that follows: the grandmaster's state, since when, why, and the budget that is left."""
    summary = re.search(r"^grandmaster +(.*?) *$", antenna_run.screens[node], re.MULTILINE)

    assert summary is not None
    assert re.fullmatch(
        rf"{grandmaster}: HOLDOVER since \d\d:\d\dZ, {ANTENNA[grandmaster]}, budget left \d+ s", summary[1]
    )


def test_the_page_shows_the_chain(antenna_run: AntennaRun) -> None:
    """A browser on the hub shows both grandmasters in holdover, each finding with its chain, and that the budget is exhausted."""
    assert antenna_run.page.count("grandmaster-antenna · ") == 2
    assert antenna_run.page.count("it announces clock class 7") == 2
    assert antenna_run.page.count("the holdover budget is exhausted") == 2
    assert "UTC UNKNOWN, no bound: the grandmaster has been in holdover for longer than its budget" in antenna_run.page


@each_node
def test_the_bound_against_utc_grows_by_the_curve(antenna_run: AntennaRun, node: str, grandmaster: str) -> None:
    """From the moment that holdover began: never less than the oscillator's curve at that age, and hardly more."""
    since_ns = antenna_run.cut.grandmasters[grandmaster]["clock_state_since_realtime_ns"]
    bounded = [
        state
        for state in antenna_run.listener.of(f"node/{node}/state")
        if "HOLDOVER" in (state["grandmaster_summary"] or "") and state["utc"] and state["utc"]["bound_ns"] is not None
    ]
    own_ns = [state["utc"]["bound_ns"] - state["gm"]["bound_ns"] for state in bounded]
    ages_ns = [state["published_realtime_ns"] - state["age_ns"] - since_ns for state in bounded]
    beyond_ns = [own - FIRST_NS - GROWTH_PPB * age // S for own, age in zip(own_ns, ages_ns, strict=True)]

    assert len(bounded) > 2
    assert {state["utc"]["growth_ppb"] - state["gm"]["growth_ppb"] for state in bounded} == {GROWTH_PPB}
    assert 0 <= min(beyond_ns) <= max(beyond_ns) < 3 * GROWTH_PPB
    assert max(own_ns) > FIRST_NS + GROWTH_PPB * BUDGET_S // 2


@each_node
def test_beyond_the_budget_utc_is_unknown_and_the_grandmaster_is_not(
    antenna_run: AntennaRun, node: str, grandmaster: str
) -> None:
    """Its followers still agree with each other: nothing is known against UTC, and why, and the rest stays as it was."""
    state, utc = antenna_run.spent.nodes[node], antenna_run.spent.utc[node]

    assert (state["status"], state["utc_status"]) == ("SYNCHRONIZED", "UNKNOWN")
    assert state["gm"]["bound_ns"] is not None
    assert (utc.interval.earliest, utc.interval.latest, utc.interval.status) == (None, None, UNKNOWN)
    assert utc.reason == Reason.HOLDOVER_BUDGET_EXCEEDED.text
    assert antenna_run.spent.grandmasters[grandmaster]["holdover_left_ns"] == 0
    assert [finding["id"] for finding in antenna_run.spent.on(grandmaster)] == ["grandmaster-antenna"]


@each_node
def test_when_it_comes_back_what_was_measured_before_is_invalid(
    antenna_run: AntennaRun, node: str, grandmaster: str
) -> None:
    """Its phase may jump when it follows GNSS again and when it locks: clients read DISRUPTED until it is measured again."""
    watch = antenna_run.watches[node]
    statuses = watch.statuses()
    reasons = {seen.reason for seen in watch.seen if seen.interval.status is DISRUPTED}

    assert reasons == {Reason.GRANDMASTER_LEFT_HOLDOVER.text}
    assert SYNCHRONIZED in statuses[: statuses.index(DISRUPTED)]
    assert statuses[-1] is SYNCHRONIZED
    assert antenna_run.back.grandmasters[grandmaster]["invalidation_reason"] == Reason.GRANDMASTER_LEFT_HOLDOVER.text
    assert (
        antenna_run.back.grandmasters[grandmaster]["invalid_before_realtime_ns"]
        > antenna_run.spent.grandmasters[grandmaster]["published_realtime_ns"]
    )


@each_node
def test_then_all_is_as_before(antenna_run: AntennaRun, node: str, grandmaster: str) -> None:
    """Both bounds are there again, the finding is over."""
    state = antenna_run.back.nodes[node]

    assert (state["status"], state["utc_status"], state["grandmaster_summary"]) == (
        "SYNCHRONIZED",
        "SYNCHRONIZED",
        f"{grandmaster}: LOCKED",
    )
    assert antenna_run.back.on(grandmaster) == []


@each_node
def test_no_client_read_a_wrong_time(antenna_run: AntennaRun, node: str, grandmaster: str) -> None:
    """In every phase the interval against UTC, where there is one, holds the truth."""
    phases: list[Phase] = [antenna_run.locked, antenna_run.cut, antenna_run.spent, antenna_run.back]
    intervals = [phase.utc[node] for phase in phases]
    held = [
        earliest <= utc.realtime_ns[1] and utc.realtime_ns[0] <= latest
        for utc in intervals
        for earliest, latest in [utc.interval[:2]]
        if earliest is not None and latest is not None
    ]

    assert held == [True, True, True]


def test_what_a_grandmaster_reports_by_itself_is_published_shown_and_stored(antenna_run: AntennaRun) -> None:
    """Each alarm of rack, raised and cleared, by trap and by syslog, is on MQTT, on the page's stream and in the store."""
    alarms = antenna_run.listener.alarms("rack")
    actions = [(event["id"], event["action"], event["alarm_sequence"] is None) for event in alarms]

    assert {(id, action) for id, action, _ in actions} >= {(i, a) for i in (92, 97, 6) for a in ("raise", "clear")}
    assert len(actions) == len(set(actions))
    assert [event["sequence"] for event in antenna_run.viewer.of("alarm")] == [event["sequence"] for event in alarms]
    assert [(each["alarm_id"], each["action"]) for each in antenna_run.alarms] == [(id, act) for id, act, _ in actions]
    assert {event["lost"] for event in alarms} == {0}


def test_a_grandmaster_without_traps_reports_nothing_by_itself(antenna_run: AntennaRun) -> None:
    """What rack sent from its address is not taken for oven's."""
    assert antenna_run.listener.alarms("oven") == []


def test_the_time_errors_of_the_web_interface_go_on(antenna_run: AntennaRun) -> None:
    """The channel against GNSS falls silent with it, the one against another clock does not."""
    channels = {
        clock_state: [
            {error["channel"] for error in state["time_errors"]}
            for state in antenna_run.listener.of("grandmaster/rack/state")
            if state["clock_state"] == clock_state and state["time_errors"]
        ]
        for clock_state in ("locked", "holdover")
    }

    assert channels["locked"][0] == {"GNSS-1", "PTP-1"}
    assert channels["holdover"][-1] == {"PTP-1"}
