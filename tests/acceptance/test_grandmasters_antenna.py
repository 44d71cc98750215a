"""
From a cut antenna to a node's clock and to people's eyes, and back: the course (antenna_course.py) is played once, and each test
looks at what was seen of it.
"""

from __future__ import annotations

import re

import pytest
from antenna_course import BUDGET_S, FIRST_NS, GROWTH_PPB, UNIT_OF, Course, Phase, play

from timesyncd.bound import ClockStatus, Reason

pytestmark = pytest.mark.integration

ACCURACY_NS = 100
S = 1_000_000_000
DISRUPTED, SYNCHRONIZED, UNKNOWN = ClockStatus.DISRUPTED, ClockStatus.SYNCHRONIZED, ClockStatus.UNKNOWN

each_node = pytest.mark.parametrize(("node", "unit"), UNIT_OF.items())
ANTENNA = {"oven": "GNSS antenna faulty", "rack": "GNSS: antenna open, no current"}


@pytest.fixture(scope="module")
def course() -> Course:
    return play()


@each_node
def test_a_node_follows_its_unit_by_identity(course: Course, node: str, unit: str) -> None:
    """While the unit is locked, the node's state names it, and its own error stands between the two bounds."""
    state = course.locked.nodes[node]

    assert (state["grandmaster"], state["grandmaster_note"]) == (unit, f"{unit}: LOCKED")
    assert state["utc"]["bound_ns"] >= state["gm"]["bound_ns"] + ACCURACY_NS
    assert course.locked.on(unit) == []


@each_node
def test_a_cut_antenna_is_one_finding_with_its_chain(course: Course, node: str, unit: str) -> None:
    """Three alarms, a lost reference, holdover, another class and a growing bound are told as one, from the cause to the node."""
    (finding,) = course.cut.on(unit)
    chain = " -> ".join(step["text"] for step in finding["chain"])

    assert (finding["id"], finding["subject"], finding["severity"]) == ("grandmaster-antenna", unit, "warning")
    assert re.search(
        "^[^>]*antenna.* -> no satellite is tracked -> .*HOLDOVER since .* -> it announces clock class 7"
        f" -> its holdover budget lasts until .* -> {node}: UTC bound grows by 18.0 ms an hour$",
        chain,
    )
    assert len(course.cut.units[unit]["alarms"]) == 3


@each_node
def test_the_unit_reported_it_to_the_broker(course: Course, node: str, unit: str) -> None:
    """Who subscribes later finds the unit's state, and the state of the node that follows it."""
    kept = course.kept[f"grandmaster/{unit}/state"]

    assert (kept["name"], kept["clock_state"], kept["clock_class"], kept["node"]) == (unit, "holdover", 7, "hub")
    assert kept["utc"]["bound_ns"] >= FIRST_NS
    assert course.kept[f"node/{node}/state"]["grandmaster"] == unit


@each_node
def test_people_are_told_how_the_grandmaster_fares(course: Course, node: str, unit: str) -> None:
    """`timesyncd status` on the node that follows: the unit's state, since when, why, and how long it will do."""
    note = re.search(r"^grandmaster +(.*?) *$", course.screens[node], re.MULTILINE)

    assert note is not None
    assert re.fullmatch(rf"{unit}: HOLDOVER since \d\d:\d\dZ, {ANTENNA[unit]}, budget left \d+ s", note[1])


def test_the_page_shows_the_chain(course: Course) -> None:
    """A browser on the hub shows both units in holdover, each finding with its chain, and that the budget is exhausted."""
    assert course.page.count("grandmaster-antenna · ") == 2
    assert course.page.count("it announces clock class 7") == 2
    assert course.page.count("the holdover budget is exhausted") == 2
    assert "UTC UNKNOWN, no bound: the grandmaster has been in holdover for longer than its budget" in course.page


@each_node
def test_the_bound_against_utc_grows_by_the_curve(course: Course, node: str, unit: str) -> None:
    """From the moment that holdover began: never less than the oscillator's curve at that age, and hardly more."""
    since_ns = course.cut.units[unit]["clock_state_since_realtime_ns"]
    bounded = [
        state
        for state in course.heard.of(f"node/{node}/state")
        if "HOLDOVER" in (state["grandmaster_note"] or "") and state["utc"] and state["utc"]["bound_ns"] is not None
    ]
    own_ns = [state["utc"]["bound_ns"] - state["gm"]["bound_ns"] for state in bounded]
    ages_ns = [state["published_realtime_ns"] - state["age_ns"] - since_ns for state in bounded]
    beyond_ns = [own - FIRST_NS - GROWTH_PPB * age // S for own, age in zip(own_ns, ages_ns, strict=True)]

    assert len(bounded) > 2
    assert {state["utc"]["growth_ppb"] - state["gm"]["growth_ppb"] for state in bounded} == {GROWTH_PPB}
    assert 0 <= min(beyond_ns) <= max(beyond_ns) < 3 * GROWTH_PPB
    assert max(own_ns) > FIRST_NS + GROWTH_PPB * BUDGET_S // 2


@each_node
def test_beyond_the_budget_utc_is_unknown_and_the_grandmaster_is_not(course: Course, node: str, unit: str) -> None:
    """Its followers still agree with each other: nothing is known against UTC, and why, and the rest stays as it was."""
    state, utc = course.spent.nodes[node], course.spent.utc[node]

    assert (state["status"], state["utc_status"]) == ("SYNCHRONIZED", "UNKNOWN")
    assert state["gm"]["bound_ns"] is not None
    assert (utc.interval.earliest, utc.interval.latest, utc.interval.status) == (None, None, UNKNOWN)
    assert utc.reason == Reason.HOLDOVER_BUDGET_EXCEEDED.text
    assert course.spent.units[unit]["holdover_left_ns"] == 0
    assert [finding["id"] for finding in course.spent.on(unit)] == ["grandmaster-antenna"]


@each_node
def test_when_it_comes_back_what_was_measured_before_is_void(course: Course, node: str, unit: str) -> None:
    """The unit's phase may move at once when it follows GNSS again, and when it locks: clients are told, until it is measured anew."""
    watch = course.watches[node]
    statuses = watch.statuses()
    reasons = {seen.reason for seen in watch.seen if seen.interval.status is DISRUPTED}

    assert reasons == {Reason.GRANDMASTER_LEFT_HOLDOVER.text}
    assert SYNCHRONIZED in statuses[: statuses.index(DISRUPTED)]
    assert statuses[-1] is SYNCHRONIZED
    assert course.back.units[unit]["invalidation_reason"] == Reason.GRANDMASTER_LEFT_HOLDOVER.text
    assert course.back.units[unit]["invalid_before_realtime_ns"] > course.spent.units[unit]["published_realtime_ns"]


@each_node
def test_then_all_is_as_before(course: Course, node: str, unit: str) -> None:
    """Both bounds are there again, the finding is over."""
    state = course.back.nodes[node]

    assert (state["status"], state["utc_status"], state["grandmaster_note"]) == (
        "SYNCHRONIZED",
        "SYNCHRONIZED",
        f"{unit}: LOCKED",
    )
    assert course.back.on(unit) == []


@each_node
def test_no_client_was_told_a_wrong_time(course: Course, node: str, unit: str) -> None:
    """In every phase the interval against UTC, where there is one, holds the truth."""
    phases: list[Phase] = [course.locked, course.cut, course.spent, course.back]
    told = [phase.utc[node] for phase in phases]
    held = [
        earliest <= utc.realtime_ns[1] and utc.realtime_ns[0] <= latest
        for utc in told
        for earliest, latest in [utc.interval[:2]]
        if earliest is not None and latest is not None
    ]

    assert held == [True, True, True]


def test_what_a_unit_reports_by_itself_is_heard_shown_and_stored(course: Course) -> None:
    """Each alarm of rack, raised and cleared, by trap and by syslog, is on MQTT, on the page's stream and in the store."""
    heard = course.heard.alarms("rack")
    actions = [(event["id"], event["action"], event["alarm_sequence"] is None) for event in heard]

    assert {(id, action) for id, action, _ in actions} >= {(i, a) for i in (92, 97, 6) for a in ("raise", "clear")}
    assert len(actions) == len(set(actions))
    assert [event["sequence"] for event in course.viewer.of("alarm")] == [event["sequence"] for event in heard]
    assert [(each["alarm_id"], each["action"]) for each in course.alarms] == [(id, act) for id, act, _ in actions]
    assert {event["lost"] for event in heard} == {0}


def test_a_unit_without_traps_reports_nothing_by_itself(course: Course) -> None:
    """What rack sent from its address is not taken for oven's."""
    assert course.heard.alarms("oven") == []


def test_the_time_errors_of_the_web_interface_go_on(course: Course) -> None:
    """The channel against GNSS falls silent with it, the one against another clock does not."""
    channels = {
        clock_state: [
            {error["channel"] for error in state["time_errors"]}
            for state in course.heard.of("grandmaster/rack/state")
            if state["clock_state"] == clock_state and state["time_errors"]
        ]
        for clock_state in ("locked", "holdover")
    }

    assert channels["locked"][0] == {"GNSS-1", "PTP-1"}
    assert channels["holdover"][-1] == {"PTP-1"}
