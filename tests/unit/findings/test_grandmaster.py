"""What is wrong with grandmasters: one finding for each cause, with what follows from it in its chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from grandmaster_states import (
    GM_A,
    HOUR_NS,
    MINUTE_NS,
    NIGHT_NS,
    follower,
    polled_grandmaster,
    satellites,
    source,
)

from timesyncd.bound import Reason, unbounded
from timesyncd.clocks import NS_PER_S
from timesyncd.findings.catalogue import CATALOGUE, Judgement, chain_step
from timesyncd.findings.grandmaster import POLLER_ALIVE_NS, GrandmasterFindings
from timesyncd.findings.grandmaster_history import MIN_READINGS, NORMAL_AFTER_NS, RECENT_NS
from timesyncd.messages.node import BoundMessage, GrandmasterOffset, GrandmasterState, NodeState
from timesyncd.model.grandmaster import GrandmasterEvent
from timesyncd.model.grandmaster_events import GrandmasterEventKind
from timesyncd.sample import Alarm, InputReference, Position, PtpPort, Sensor

DISQUALIFIED = [InputReference("GNSS-1", "disqualified"), InputReference("PTP-1", "disabled")]
ANTENNA_OPEN = Alarm(11, 0, "major", "GNSS: antenna open, no current")
HOLDOVER: dict[str, Any] = {"clock_state": "holdover", "clock_state_since_realtime_ns": NIGHT_NS + 4 * MINUTE_NS}
GROWING = BoundMessage(bound_ns=400, growth_ppb=24, reason="")
ANTENNA_CUT: dict[str, Any] = HOLDOVER | {
    "antenna": "open",
    "satellites": [],
    "references": DISQUALIFIED,
    "selected_reference": None,
    "clock_class": 7,
    "alarms": [
        ANTENNA_OPEN,
        Alarm(34, 1, "minor", "GNSS-1: reference disqualified"),
        Alarm(29, 0, "minor", "Holdover"),
    ],
    "utc": GROWING,
    "holdover_left_ns": 220 * MINUTE_NS,
}


class Watch:
    """Judges states as they come, a minute after one another unless stated otherwise."""

    def __init__(self) -> None:
        self.findings = GrandmasterFindings()
        self.now_ns = NIGHT_NS

    def judge(
        self,
        *grandmasters: GrandmasterState,
        nodes: Sequence[NodeState] = (),
        received: Sequence[GrandmasterState] = (),
        after_ns: int = MINUTE_NS,
    ) -> dict[tuple[str, str], Judgement]:
        self.now_ns += after_ns
        polled = [each.model_copy(update={"published_realtime_ns": self.now_ns}) for each in grandmasters]
        return self.findings.judge(polled, received, nodes, self.now_ns)

    def ids(self, *grandmasters: GrandmasterState, **more: Any) -> set[str]:
        return {id for id, _ in self.judge(*grandmasters, **more)}

    def add_event(self, kind: GrandmasterEventKind, evidence: str = "") -> str | None:
        return self.findings.add_event("gm-a", GrandmasterEvent(kind, self.now_ns, evidence))


@pytest.fixture
def watch() -> Watch:
    """After one poll of a healthy grandmaster."""
    watch = Watch()
    watch.judge(polled_grandmaster())
    return watch


def test_a_healthy_grandmaster_has_no_finding(watch: Watch) -> None:
    """Whatever it follows, and however long."""
    assert watch.judge(polled_grandmaster(), polled_grandmaster("gm-b"), nodes=[follower()]) == {}


def test_a_grandmaster_that_reports_nothing_has_no_finding(watch: Watch) -> None:
    """What is absent is not provided, and never a fault."""
    silent = dict.fromkeys(
        ("clock_state", "clock_class", "references", "selected_reference", "satellites", "antenna", "alarms", "utc")
    )

    assert watch.judge(polled_grandmaster(**silent)) == {}
    assert watch.judge(polled_grandmaster(reachable=False, reason=None, **silent)) == {}


def test_a_cut_antenna_is_one_finding_with_all_that_follows(watch: Watch) -> None:
    """Not one for the reference, the satellites, the holdover, the class and each alarm."""
    nodes = [follower("node-b"), follower("node-a"), follower("node-c", "00a069.fffe.000000")]
    found = watch.judge(polled_grandmaster(**ANTENNA_CUT), nodes=nodes)

    assert set(found) == {("grandmaster-antenna", "gm-a")}
    assert found["grandmaster-antenna", "gm-a"] == Judgement(
        "GNSS antenna open; major alarm: GNSS: antenna open, no current",
        (
            chain_step("grandmaster-antenna", "GNSS antenna open"),
            chain_step("grandmaster-few-satellites", "no satellite is tracked"),
            chain_step("grandmaster-reference-lost", "reference GNSS-1 disqualified"),
            chain_step("grandmaster-not-locked", "HOLDOVER since 02:14Z"),
            chain_step("clock-class", "it announces clock class 7"),
            chain_step("holdover-budget", "its holdover budget lasts until 05:52Z"),
            chain_step("followers-bounded", "node-a, node-b: UTC bound grows by 86.4 us an hour"),
        ),
    )


def test_beyond_its_budget_the_bound_is_gone(watch: Watch) -> None:
    """The chain names the nodes and the reason."""
    gone = BoundMessage.of(unbounded(Reason.HOLDOVER_BUDGET_EXCEEDED))
    spent: dict[str, Any] = ANTENNA_CUT | {
        "utc": gone,
        "holdover_left_ns": MINUTE_NS,
        "age_ns": MINUTE_NS,
        "clock_state": "holdover_out_of_spec",
    }
    found = watch.judge(polled_grandmaster(**spent), nodes=[follower(utc=gone), follower("node-b")])

    assert found["grandmaster-antenna", "gm-a"].chain[-5:] == (
        chain_step("clock-class", "it announces clock class 7"),
        chain_step("holdover-budget", "its holdover budget is exhausted"),
        chain_step("own-error-unbounded", f"its error against UTC is unbounded: {gone.reason}"),
        chain_step("followers-unbounded", f"node-a: no bound against UTC: {gone.reason}"),
        chain_step("followers-bounded", "node-b: UTC bound is wider while this lasts"),
    )


def test_only_nodes_that_it_harms_are_named(watch: Watch) -> None:
    """A node without a bound of its own, or without UTC by its own settings, is not affected."""
    arbitrary = BoundMessage.of(unbounded(Reason.ARBITRARY_TIMESCALE))
    nodes = [follower("node-a", status="UNKNOWN"), follower("node-b", utc=arbitrary), follower("node-c", utc=None)]
    found = watch.judge(polled_grandmaster(**ANTENNA_CUT), nodes=nodes)

    assert "node" not in found["grandmaster-antenna", "gm-a"].chain[-1].text


def test_many_followers_are_counted(watch: Watch) -> None:
    """A chain stays readable with a thousand nodes."""
    nodes = [follower(f"node-{number:04}") for number in range(1_000)]
    found = watch.judge(polled_grandmaster(**ANTENNA_CUT), nodes=nodes)

    assert "node-0005 and 994 more: UTC bound grows" in found["grandmaster-antenna", "gm-a"].chain[-1].text


def test_an_antenna_fault_without_consequence_has_no_chain(watch: Watch) -> None:
    """The grandmaster stays locked to another reference: there is no effect."""
    found = watch.judge(polled_grandmaster(antenna="short"))

    assert found == {("grandmaster-antenna", "gm-a"): Judgement("GNSS antenna shorted")}


@pytest.mark.parametrize(
    ("changes", "root"),
    [
        ({"antenna": "open"}, "grandmaster-antenna"),
        ({"satellites": satellites(45, 44, 43)}, "grandmaster-few-satellites"),
        ({"satellites": []}, "grandmaster-few-satellites"),
        ({"references": DISQUALIFIED, "selected_reference": None}, "grandmaster-reference-lost"),
        ({}, "grandmaster-not-locked"),
    ],
)
def test_the_first_step_that_is_seen_is_the_cause(watch: Watch, changes: dict[str, Any], root: str) -> None:
    """Holdover alone is a finding only where nothing explains it."""
    assert watch.ids(polled_grandmaster(**(HOLDOVER | changes))) == {root}


@pytest.mark.parametrize("state", ["warmup", "freerun", "acquiring", "holdover_out_of_spec", "fault", "unknown"])
def test_every_state_but_locked_is_a_finding(watch: Watch, state: str) -> None:
    """Also a state that the grandmaster itself does not know."""
    assert watch.ids(polled_grandmaster(clock_state=state)) == {"grandmaster-not-locked"}


ALARM_MEANINGS = [
    ("GNSS: antenna short circuit", "grandmaster-antenna"),
    ("Jamming detected", "grandmaster-jamming"),
    ("GNSS spoofing detected", "grandmaster-spoofing"),
    ("GNSS: not tracking satellites", "grandmaster-few-satellites"),
    ("PTP: number of clients near the limit", "grandmaster-clients"),
    ("Leap second pending", "grandmaster-leap"),
    ("Fan 2 failed", "grandmaster-fan"),
    ("Power input lost", "grandmaster-power"),
    ("Temperature out of range", "grandmaster-temperature"),
    ("GNSS-1: reference disqualified", "grandmaster-reference-lost"),
    ("Clock in holdover", "grandmaster-not-locked"),
    ("Ethernet link down", "grandmaster-alarm"),
    ("", "grandmaster-alarm"),
]


@pytest.mark.parametrize(("text", "id"), ALARM_MEANINGS)
def test_an_alarm_joins_the_finding_that_it_means(text: str, id: str) -> None:
    """With the grandmaster's own severity and text; an alarm that nothing explains is a finding as such."""
    found = Watch().judge(polled_grandmaster(clock_state=None, alarms=[Alarm(7, 0, "minor", text)]))

    assert found == {(id, "gm-a"): Judgement(f"minor alarm: {text or 7}")}


@pytest.mark.parametrize("severity", ["event", "clear", "Cleared", "info"])
def test_what_is_no_fault_is_none(watch: Watch, severity: str) -> None:
    """ "Normal track" is in the alarm tables of some grandmasters."""
    assert watch.judge(polled_grandmaster(alarms=[Alarm(27, 0, severity, "Clock in holdover")])) == {}


def test_an_unknown_severity_counts(watch: Watch) -> None:
    """The grandmaster lists it, whatever it means."""
    assert watch.ids(polled_grandmaster(alarms=[Alarm(5, 0, "unknown(9)", "Link down")])) == {"grandmaster-alarm"}


def test_an_alarm_of_the_time_that_the_grandmaster_belies(watch: Watch) -> None:
    """Its list may be a minute older than its state; afterwards the alarm is a finding of its own."""
    odd = polled_grandmaster(alarms=[Alarm(29, 0, "minor", "Clock in holdover")])

    assert [watch.ids(odd) for _ in range(3)] == [set(), set(), {"grandmaster-alarm"}]


@pytest.mark.parametrize(
    ("changes", "delays"),
    [
        ({}, [False, False, False, True]),
        ({"references": DISQUALIFIED, "selected_reference": "PTP-1"}, [True, True, True, True]),
    ],
)
def test_few_satellites_count_after_some_minutes(watch: Watch, changes: dict[str, Any], delays: list[bool]) -> None:
    """While it is locked they may come back; once it lost its reference they are the cause."""
    weak = polled_grandmaster(satellites=satellites(45, 44, 43, 37, 36), **changes)

    assert ["grandmaster-few-satellites" in watch.ids(weak) for _ in delays] == delays


def test_few_satellites_are_confirmed_by_a_poll(watch: Watch) -> None:
    """Without another poll it is not known whether they are still few."""
    weak = polled_grandmaster(satellites=satellites(45))
    ages_ns = [0, 5 * MINUTE_NS, 10 * MINUTE_NS]
    found = [watch.ids(weak.model_copy(update={"age_ns": age_ns}), after_ns=5 * MINUTE_NS) for age_ns in ages_ns]

    assert found == [set(), set(), set()]
    assert watch.ids(weak) == {"grandmaster-few-satellites"}


@pytest.mark.parametrize(
    "changes",
    [
        {"satellites": satellites(45, 44, 43, 38)},
        {"satellites": satellites(None, None)},
        {"satellites": [], "selected_reference": "PTP-1", "references": [InputReference("PTP-1", "selected")]},
    ],
)
def test_enough_satellites_or_none_needed(changes: dict[str, Any]) -> None:
    """Four above 37 dB-Hz suffice; without levels there is no finding; a grandmaster that follows PTP needs none."""
    watch = Watch()

    assert [watch.judge(polled_grandmaster(**changes)) for _ in range(5)] == [{}] * 5


def test_unhealthy_satellites_are_none(watch: Watch) -> None:
    """However strong they are."""
    weak = polled_grandmaster(satellites=satellites(45, 45, 45, 45, 45, healthy=False), **HOLDOVER)

    assert "0 of 5 satellites" in watch.judge(weak)["grandmaster-few-satellites", "gm-a"].evidence


def test_a_cold_start_is_given_its_time(watch: Watch) -> None:
    """After a restart the receiver finds its satellites for up to a quarter of an hour."""
    cold = polled_grandmaster(
        clock_state="warmup", clock_class=248, satellites=[], references=DISQUALIFIED, selected_reference=None
    )
    watch.add_event(GrandmasterEventKind.RESTARTED)
    first = watch.judge(cold)

    assert {id for id, _ in first} == {"grandmaster-not-locked"}
    assert first["grandmaster-not-locked", "gm-a"].evidence == "WARMUP, after its restart at 02:11Z"
    assert watch.ids(cold, after_ns=16 * MINUTE_NS) == {"grandmaster-few-satellites"}


def after_an_hour(levels: Sequence[int]) -> Watch:
    watch = Watch()
    for number in range(60):
        watch.judge(polled_grandmaster(satellites=satellites(*(level + number % 2 for level in levels))))
    return watch


def test_jamming_is_a_fall_of_all_together() -> None:
    """By 6 dB or more of the last hour's median, and until half of that is regained."""
    usual = [48, 46, 45, 44, 43, 42]
    watch = after_an_hour(usual)
    fallen = [8, 5, 4, 2]
    found = [watch.ids(polled_grandmaster(satellites=satellites(*(level - by for level in usual)))) for by in fallen]

    assert found == [{"grandmaster-jamming"}, {"grandmaster-jamming"}, {"grandmaster-jamming"}, set()]


@pytest.mark.parametrize(
    "now",
    [
        satellites(48, 46, 45, 34, 33, 32),
        satellites(43, 41, 40, 39, 38, 37),
        satellites(30, 30, 30),
    ],
)
def test_a_fall_of_some_or_by_little_is_no_jamming(now: list[Any]) -> None:
    """Satellites set, trees get wet; three satellites are too few for a finding."""
    assert "grandmaster-jamming" not in after_an_hour([48, 46, 45, 44, 43, 42]).ids(polled_grandmaster(satellites=now))


def test_jamming_lasts_while_nothing_is_received() -> None:
    """That no satellite is left is no recovery, and what follows from it is in the chain."""
    watch = after_an_hour([48, 46, 45, 44, 43, 42])
    watch.judge(polled_grandmaster(satellites=satellites(38, 36, 35, 34, 33, 32)))
    found = watch.judge(polled_grandmaster(satellites=[], **HOLDOVER))

    assert set(found) == {("grandmaster-jamming", "gm-a")}
    assert found["grandmaster-jamming", "gm-a"].chain[1:3] == (
        chain_step("grandmaster-few-satellites", "no satellite is tracked"),
        chain_step("grandmaster-not-locked", "HOLDOVER since 02:14Z"),
    )


def test_jamming_does_not_become_normal_within_hours() -> None:
    """What is measured while it lasts is no past to compare with."""
    watch = after_an_hour([50, 49, 48, 47, 46, 45])
    low = polled_grandmaster(satellites=satellites(43, 42, 41, 40, 39, 38))

    assert {frozenset(watch.ids(low)) for _ in range(180)} == {frozenset({"grandmaster-jamming"})}


def test_jamming_and_spoofing_are_one_finding() -> None:
    """A sender of false signals jams the true ones first; the nodes that follow are named."""
    watch = after_an_hour([50, 49, 48, 47, 46, 45])
    watch.add_event(GrandmasterEventKind.PHASE_JUMPED, "its phase moved")
    found = watch.judge(polled_grandmaster(satellites=satellites(43, 42, 41, 40, 39, 38)), nodes=[follower()])

    assert set(found) == {("grandmaster-spoofing", "gm-a")}
    assert found["grandmaster-spoofing", "gm-a"].chain[1:] == (
        chain_step("grandmaster-jamming", "C/N0 of nearly all satellites dropped together by 7 dB or more"),
        chain_step("followers-bounded", "node-a: the UTC bound relies on this grandmaster's report"),
    )


def test_jamming_needs_a_past() -> None:
    """At the first poll there is no drop."""
    watch = Watch()
    for number in range(MIN_READINGS - 1):
        watch.judge(polled_grandmaster(satellites=satellites(48, 46, 45, 44, 43 + number)))

    assert "grandmaster-jamming" not in watch.ids(polled_grandmaster(satellites=satellites(38, 37, 36, 35, 34)))


def test_a_drop_that_lasts_is_the_new_normal() -> None:
    """Another antenna, a longer cable: after a day it is not jamming."""
    watch = after_an_hour([50, 49, 48, 47, 46, 45])
    low = polled_grandmaster(satellites=satellites(43, 42, 41, 40, 39, 38))
    began = watch.ids(low)
    later = watch.ids(low, after_ns=NORMAL_AFTER_NS)

    assert (began, later, watch.ids(low)) == ({"grandmaster-jamming"}, set(), set())


def test_a_held_position_that_moves_is_suspicious() -> None:
    """It was surveyed and does not move by itself; it is trusted again where it was."""
    watch = Watch()
    north = [50.0, 50.0005, 50.01, 50.0]
    held = [polled_grandmaster(gnss_position_mode="position hold", position=Position(at, 8.0, 100.0)) for at in north]

    assert [watch.ids(each) for each in held] == [set(), set(), {"grandmaster-spoofing"}, set()]
    assert watch.judge(held[2])["grandmaster-spoofing", "gm-a"].evidence == "the held position moved by 1113 m"


def test_a_degree_of_longitude_is_shorter_than_one_of_latitude() -> None:
    """Also across the antimeridian, where it is no jump at all."""
    pairs = [(8.0, 8.01), (179.9999, -179.9999)]
    found = []
    for west, east in pairs:
        watch = Watch()
        held = [polled_grandmaster(gnss_position_mode="hold", position=Position(60.0, at, 0.0)) for at in (west, east)]
        found.append([each.evidence for each in [watch.judge(each) for each in held][1].values()])

    assert found == [["the held position moved by 557 m"], []]


def test_a_position_that_is_not_held_may_move() -> None:
    """While it surveys it wanders, and holds where the survey ends."""
    watch = Watch()
    modes = ["position hold", "surveying", "position hold", None]
    states = [
        polled_grandmaster(gnss_position_mode=mode, position=Position(50.0 + number / 10, 8.0, None))
        for number, mode in enumerate(modes)
    ]

    assert [watch.ids(each) for each in states] == [set()] * 4


@pytest.mark.parametrize("kind", [GrandmasterEventKind.PHASE_JUMPED, GrandmasterEventKind.UTC_OFFSET_CHANGED])
def test_a_jump_of_its_time_while_locked_is_suspicious(watch: Watch, kind: GrandmasterEventKind) -> None:
    """For an hour; and the nodes that believe it are named."""
    id = watch.add_event(kind, "its time moved")
    found = watch.judge(polled_grandmaster(), nodes=[follower()])

    assert id is None
    assert found["grandmaster-spoofing", "gm-a"] == Judgement(
        "its time moved while it was locked, at 02:11Z",
        (
            chain_step("grandmaster-spoofing", "its time moved while it was locked, at 02:11Z"),
            chain_step("followers-bounded", "node-a: the UTC bound relies on this grandmaster's report"),
        ),
    )
    assert watch.judge(polled_grandmaster(), after_ns=RECENT_NS) == {}


def test_a_jump_that_has_a_reason_is_not_suspicious(watch: Watch) -> None:
    """A leap second was announced; or it was not locked, when a phase may be set."""
    watch.judge(polled_grandmaster(leap="insert"))
    watch.add_event(GrandmasterEventKind.UTC_OFFSET_CHANGED)
    leapt = watch.ids(polled_grandmaster(utc_offset_s=38))
    watch.judge(polled_grandmaster(clock_state="holdover"))
    watch.add_event(GrandmasterEventKind.PHASE_JUMPED)

    assert (leapt, watch.ids(polled_grandmaster())) == (set(), set())


def test_a_suspicion_is_published_beside_another_cause(watch: Watch) -> None:
    """A cut antenna explains a lost reference, and no jump."""
    watch.add_event(GrandmasterEventKind.PHASE_JUMPED)

    assert watch.ids(polled_grandmaster(**ANTENNA_CUT)) == {"grandmaster-antenna", "grandmaster-spoofing"}


@pytest.mark.parametrize(
    ("kind", "id"),
    [
        (GrandmasterEventKind.RESTARTED, "grandmaster-rebooted"),
        (GrandmasterEventKind.IDENTITY_CHANGED, "grandmaster-identity-changed"),
        (GrandmasterEventKind.LEFT_HOLDOVER, None),
    ],
)
def test_what_happens_at_one_moment_is_an_event(watch: Watch, kind: GrandmasterEventKind, id: str | None) -> None:
    """A restart and another identity are findings at once; the other events show in the state."""
    assert watch.add_event(kind) == id


def test_another_reference_that_takes_over_hides_no_loss(watch: Watch) -> None:
    """It stays locked; until the first reference is qualified again, or the operator disables it."""
    instead = [InputReference("GNSS-1", "disqualified"), InputReference("PTP-1", "selected")]
    disabled = [InputReference("GNSS-1", "disabled"), InputReference("PTP-1", "selected")]
    lost = watch.judge(polled_grandmaster(references=instead, selected_reference="PTP-1"))
    off = watch.judge(polled_grandmaster(references=disabled, selected_reference="PTP-1"))

    assert lost == {
        ("grandmaster-reference-lost", "gm-a"): Judgement("reference GNSS-1 disqualified; on PTP-1 now"),
    }
    assert off == {}


def test_a_spare_reference_that_is_disqualified_is_none_lost() -> None:
    """An input that nothing is connected to may stay so for ever; without any selected one it is a loss."""
    spare = [InputReference("GNSS-1", "selected"), InputReference("J1A", "disqualified")]
    none = [InputReference("GNSS-1", "qualified"), InputReference("J1A", "disqualified")]

    assert Watch().judge(polled_grandmaster(references=spare)) == {}
    assert Watch().ids(polled_grandmaster(references=none, selected_reference=None)) == {"grandmaster-reference-lost"}


@pytest.mark.parametrize(
    ("changes", "is_unfounded"),
    [
        ({"satellites": []}, True),
        ({"satellites": satellites(45, 45, healthy=False)}, True),
        ({"satellites": [], "clock_state": None}, True),
        ({"satellites": [], "references": None, "selected_reference": None, "time_source": 0x20}, True),
        ({"satellites": [], "references": None, "selected_reference": None}, False),
        ({"satellites": [], "selected_reference": "PTP-1"}, False),
        ({"satellites": [], "steps_removed": 1}, False),
        ({"satellites": None}, False),
        ({"utc": BoundMessage.of(unbounded(Reason.GRANDMASTER_CONTRADICTS_ITSELF))}, True),
    ],
)
def test_a_lock_to_nothing_is_a_finding(changes: dict[str, Any], is_unfounded: bool) -> None:
    """Once it lasts: a list may be older than the state. A missing value is not held against the grandmaster."""
    watch = Watch()
    found = [watch.ids(polled_grandmaster(**changes)) for _ in range(4)]

    assert ["grandmaster-unfounded-lock" in ids for ids in found] == [False, False, False, is_unfounded]


@pytest.mark.parametrize(
    ("port", "evidence"),
    [
        (PtpPort("eth1", clients=401, max_clients=500), "eth1: 401 of 500 clients"),
        (PtpPort("eth1", client_load_percent=81), "eth1: 81 % of its capacity used"),
        (PtpPort("eth1", clients=400, max_clients=500, client_load_percent=80), None),
        (PtpPort("eth1", clients=400), None),
        (PtpPort("eth1", clients=400, max_clients=0), None),
    ],
)
def test_a_port_near_its_limit_is_a_finding(watch: Watch, port: PtpPort, evidence: str | None) -> None:
    """Above 80 % of its clients or of its capacity; an unknown limit is none."""
    expected = {} if evidence is None else {("grandmaster-clients", "gm-a"): Judgement(evidence)}

    assert watch.judge(polled_grandmaster(ports=[port])) == expected


@pytest.mark.parametrize(
    ("changes", "id", "evidence"),
    [
        (
            {"leap": "insert"},
            "grandmaster-leap",
            "23:59:60 UTC of 2026-06-30 is inserted, if at the usual time; the UTC offset is 37 s now",
        ),
        (
            {"leap": "delete", "utc_offset_s": None},
            "grandmaster-leap",
            "23:59:59 UTC of 2026-06-30 is deleted, if at the usual time",
        ),
        ({"leap": "both"}, "leap-contradiction", "it reports that a leap second is inserted and deleted at once"),
        ({"sensors": [Sensor("fan 1", "fan", None, None, False)]}, "grandmaster-fan", "fan 1: not ok"),
        ({"sensors": [Sensor("PSU 2", "power", 0.0, "V", False)]}, "grandmaster-power", "PSU 2: 0 V"),
        ({"sensors": [Sensor("board", "temperature", 85.5, "C", False)]}, "grandmaster-temperature", "board: 85.5 C"),
        (
            {"reachable": False, "reason": "no answer", "reason_code": "no_valid_sample"},
            "grandmaster-lost",
            "no answer",
        ),
    ],
)
def test_symptoms_with_a_finding_of_their_own(watch: Watch, changes: dict[str, Any], id: str, evidence: str) -> None:
    """Each is a separate finding, with the grandmaster's values."""
    assert watch.judge(polled_grandmaster(**changes)) == {(id, "gm-a"): Judgement(evidence)}


@pytest.mark.parametrize(
    "changes",
    [
        {"leap": "none"},
        {"sensors": [Sensor("fan 1", "fan", 0.0, "rpm", None), Sensor("board", "temperature", 99.0, "C", True)]},
        {"sensors": [Sensor("input", "voltage", 1.0, "V", False)]},
    ],
)
def test_what_the_grandmaster_does_not_rate_bad_is_none(watch: Watch, changes: dict[str, Any]) -> None:
    """A value alone is not judged: the limits are the grandmaster's."""
    assert watch.judge(polled_grandmaster(**changes)) == {}


@pytest.mark.parametrize(
    ("firmware", "flaws"),
    [("2.4.6", 4), ("2.3.12", 4), ("1.9", 4), ("2.4.7", 1), ("2.5.0", 0), ("2.10.0", 0), (None, 0)],
)
def test_firmware_with_known_flaws(watch: Watch, firmware: str | None, flaws: int) -> None:
    """By version, number by number, and of the model that the advisories name alone."""
    found = watch.judge(polled_grandmaster(firmware=firmware, model="TimeProvider 4100"))
    evidence = found[("firmware-known-flaws", "gm-a")].evidence if found else ""

    assert evidence.count("CVE-") == flaws
    assert watch.judge(polled_grandmaster(firmware=firmware, model="TimeProvider 5000")) == {}


def test_a_lost_grandmaster_keeps_its_findings(watch: Watch) -> None:
    """The findings of its last poll remain beside its loss."""
    lost = polled_grandmaster(reachable=False, reason="no SNMP response", reason_code="no_valid_sample", **ANTENNA_CUT)

    assert watch.ids(lost) == {"grandmaster-lost", "grandmaster-antenna"}


CONTRADICTIONS = [
    ({"clock_class": 7}, {}, "clock class: the grandmaster reports 7, nodes receive 6 (node-a)"),
    ({}, {"clock_class": 248}, "clock class: the grandmaster reports 6, nodes receive 248 (node-a)"),
    ({}, {"clock_accuracy": 0xFE}, "clock accuracy: the grandmaster reports 0x21, nodes receive 0xfe (node-a)"),
    ({}, {"current_utc_offset_s": 36}, "UTC offset: the grandmaster reports 37 s, nodes receive 36 s (node-a)"),
    (
        {"time_traceable": False},
        {"time_traceable": True},
        "time traceable: the grandmaster reports no, nodes receive yes (node-a)",
    ),
    (
        {"leap": "none"},
        {"leap": "insert"},
        "leap second: the grandmaster reports none, nodes receive an insertion (node-a)",
    ),
    (
        {"leap": "insert"},
        {"leap": "delete"},
        "leap second: the grandmaster reports an insertion, nodes receive a deletion (node-a)",
    ),
    (
        {"steps_removed": 2},
        {},
        "it reports 2 steps to its own grandmaster, nodes receive it as a grandmaster (node-a)",
    ),
]


@pytest.mark.parametrize(("polled", "received", "evidence"), CONTRADICTIONS)
def test_a_contradiction_with_announce(
    watch: Watch, polled: dict[str, Any], received: dict[str, Any], evidence: str
) -> None:
    """Once a poll half a minute later still shows it: Announce is faster than any poll."""
    node, reported = follower(sources=[source(**received)]), polled_grandmaster(**polled)
    found = [watch.judge(reported, nodes=[node], after_ns=10 * NS_PER_S) for _ in range(4)]
    key = ("grandmaster-contradiction", "gm-a")

    assert [key in each for each in found] == [False, False, False, True]
    assert found[3][key] == Judgement(evidence)


@pytest.mark.parametrize(
    "node",
    [
        follower(sources=[source(clock_class=None, clock_accuracy=None, current_utc_offset_s=None)]),
        follower(sources=[source(clock_class=84)]),
        follower(sources=[source(clock_class=248, reason="no Sync", reason_code="no_valid_sample")]),
        follower(sources=[source("00a069.fffe.000000", clock_class=248)]),
        follower(sources=[source(clock_class=248)], status="UNKNOWN"),
    ],
)
def test_what_does_not_contradict(watch: Watch, node: NodeState) -> None:
    """Absent, a quality level of G.8265.1, no longer fresh, another grandmaster's, or last known only."""
    assert [watch.judge(polled_grandmaster(), nodes=[node]) for _ in range(3)] == [{}] * 3


def test_a_contradiction_that_ended_begins_again(watch: Watch) -> None:
    """Short ones do not add up."""
    node = follower(sources=[source(clock_class=7)])
    found = [
        watch.judge(each, nodes=[node], after_ns=20 * NS_PER_S)
        for each in [polled_grandmaster(), polled_grandmaster(clock_class=7)] * 3
    ]

    assert all(("grandmaster-contradiction", "gm-a") not in each for each in found)


def apart(offset_ns: int, bound_ns: int = 50) -> list[GrandmasterOffset]:
    return [GrandmasterOffset(other="gm-b", offset_ns=offset_ns, bound_ns=bound_ns, evidence="node-a by x and y")]


def test_two_grandmasters_further_apart_than_their_bounds(watch: Watch) -> None:
    """One finding of the pair, with what measured it; the second grandmaster adds no second one."""
    other = polled_grandmaster("gm-b").model_copy(
        update={"offsets": [apart(400)[0].model_copy(update={"other": "gm-a"})]}
    )
    found = watch.judge(polled_grandmaster(offsets=apart(-400)), other)

    assert found == {
        ("grandmasters-disagree", "gm-a, gm-b"): Judgement(
            "gm-a is 400 ns behind gm-b within 50 ns (node-a by x and y); by their own bounds at most 200 ns"
        )
    }


@pytest.mark.parametrize(
    ("offsets", "utc"),
    [
        (apart(250), BoundMessage(bound_ns=100, growth_ppb=0, reason="")),
        (apart(9_000), BoundMessage(bound_ns=None, growth_ppb=0, reason="holdover", reason_code="no_valid_sample")),
        (apart(9_000), None),
        ([], BoundMessage(bound_ns=100, growth_ppb=0, reason="")),
    ],
)
def test_grandmasters_that_may_both_be_right(
    watch: Watch, offsets: list[GrandmasterOffset], utc: BoundMessage | None
) -> None:
    """Within their bounds and the measurement's error; a grandmaster without a bound cannot be contradicted."""
    assert watch.judge(polled_grandmaster(offsets=offsets, utc=utc), polled_grandmaster("gm-b")) == {}


def test_two_utc_offsets_cannot_both_be_right(watch: Watch) -> None:
    """Once it lasts: they are polled one after the other. A grandmaster that is not locked may not know it yet."""
    other = polled_grandmaster("gm-b", utc_offset_s=36)
    found = [watch.ids(polled_grandmaster(), other) for _ in range(2)]

    assert found == [set(), {"grandmasters-disagree"}]
    assert "grandmasters-disagree" not in watch.ids(
        polled_grandmaster(), other.model_copy(update={"clock_state": "warmup"})
    )


@pytest.mark.parametrize(
    ("one", "other", "ids"),
    [
        ("insert", "delete", {"grandmaster-leap", "grandmasters-disagree"}),
        ("insert", "insert", {"grandmaster-leap"}),
        ("insert", "none", {"grandmaster-leap"}),
    ],
)
def test_two_opposite_leap_seconds_cannot_both_be_right(watch: Watch, one: str, other: str, ids: set[str]) -> None:
    """One may announce it earlier than the other."""
    pair = polled_grandmaster(leap=one), polled_grandmaster("gm-b", leap=other)
    watch.ids(*pair)

    assert watch.ids(*pair) == ids


def test_a_grandmaster_that_knows_one_before_it_announces_it_contradicts_nothing(watch: Watch) -> None:
    """GNSS announces it months ahead, and Announce carries it for the last 12 hours."""
    node, reported = follower(sources=[source(leap="none")]), polled_grandmaster(leap="insert")
    found = [watch.judge(reported, nodes=[node], after_ns=10 * NS_PER_S) for _ in range(6)]

    assert ("grandmaster-contradiction", "gm-a") not in found[-1]


def test_a_grandmaster_of_another_daemon_is_compared_and_not_judged(watch: Watch) -> None:
    """The poller of the first by name judges the pair; the other grandmaster's own findings are its own poller's."""
    other = polled_grandmaster("gm-b", node="other", antenna="open", utc_offset_s=36)
    watch.judge(polled_grandmaster(), received=[other])

    assert watch.judge(polled_grandmaster(), received=[other]).keys() == {("grandmasters-disagree", "gm-a, gm-b")}


@pytest.mark.parametrize(
    ("changes", "is_ours"),
    [
        ({"node": "a-hub"}, False),
        ({"node": "standby"}, True),
        ({"node": "a-hub", "reachable": False}, True),
        ({"node": "a-hub", "published_realtime_ns": NIGHT_NS - POLLER_ALIVE_NS}, True),
        ({"node": "a-hub", "name": "gm-b"}, True),
    ],
)
def test_of_two_pollers_one_publishes(changes: dict[str, Any], is_ours: bool) -> None:
    """The first by name, as long as it is alive and reaches the grandmaster."""
    received = [polled_grandmaster().model_copy(update={"published_realtime_ns": NIGHT_NS} | changes)]
    found = Watch().judge(polled_grandmaster(antenna="open"), received=received, after_ns=0)

    assert bool(found) is is_ours


def test_every_finding_of_a_grandmaster_is_in_the_catalogue() -> None:
    """No rule leads to an id without an entry."""
    crowded: dict[str, Any] = {
        "ports": [PtpPort("eth1", client_load_percent=99)],
        "leap": "insert",
        "firmware": "1.0",
        "model": "4100",
    }
    sensors = [Sensor(kind, kind, None, None, False) for kind in ("fan", "power", "temperature")]
    alarms = [Alarm(number, 0, "minor", text) for number, (text, _) in enumerate(ALARM_MEANINGS)]
    watch = Watch()
    states = [
        polled_grandmaster(**crowded, sensors=sensors, alarms=alarms),
        polled_grandmaster(reachable=False, reason="x", reason_code="no_valid_sample"),
        polled_grandmaster(satellites=[]),
    ]
    found = [watch.ids(each, polled_grandmaster("gm-b", utc_offset_s=9), nodes=[follower(sources=[source(GM_A, clock_class=9)])])
             for each in states for _ in range(5)]  # fmt: skip

    assert set().union(*found) <= set(CATALOGUE)
    assert len(set().union(*found)) >= 13


def test_a_removed_grandmaster_expires(watch: Watch) -> None:
    """Timers end with what they time."""
    weak = polled_grandmaster(satellites=satellites(45))
    watch.judge(weak)
    watch.judge(after_ns=HOUR_NS)

    assert watch.judge(weak) == {}
