"""What people see of `timesyncd status` and of the demo, in a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console, Group, RenderableType

from timesyncd.cli.render import DaemonReplies, DemoNodeState, demo_screen, screen

WIDTH, HEIGHT = 80, 24
SECOND = 1_000_000_000
NOON_NS = 1_700_000_000 * SECOND
ARBITRARY = "the grandmaster announces an arbitrary timescale"


def bound(bound_ns: int | None, reason: str = "") -> dict[str, Any]:
    return {"bound_ns": bound_ns, "growth_ppb": 50_000, "reason": reason}


def source(name: str = "ptp-node-a", **more: Any) -> dict[str, Any]:
    return {"name": name, "driver": "ptp4l", "reachable": True, "port_state": "SLAVE"} | more


def node(name: str = "node-a", **more: Any) -> dict[str, Any]:
    """A synchronized node, measured 0.2 s ago: its bound has grown by 10 us."""
    return {
        "node": name,
        "incarnation": 1,
        "sequence": 1,
        "published_realtime_ns": NOON_NS,
        "age_ns": SECOND // 5,
        "boot_id": "b",
        "time_namespace": 0,
        "status": "SYNCHRONIZED",
        "utc_status": "UNKNOWN",
        "since_realtime_ns": NOON_NS,
        "parent": bound(6_000),
        "gm": bound(6_000),
        "utc": bound(None, ARBITRARY),
        "terms": {"offset": 1_000, "path_delay": 3_000, "step_tolerance": 2_000, "asymmetry_uncertainty": 0},
        "grandmaster_identity": "c25c5d.fffe.9adcd4",
        "parent_identity": "c25c5d.fffe.9adcd4",
        "sources": [source(offset_ns=-1_000, path_delay_ns=2_500)],
    } | more


def unknown(name: str = "node-a", reason: str = "no valid sample yet") -> dict[str, Any]:
    nothing: dict[str, Any] = {"parent": None, "gm": None, "utc": None, "terms": {}, "grandmaster_identity": None}
    return node(
        name,
        status="UNKNOWN",
        reason=reason,
        reason_code="no_valid_sample",
        sources=[source(reason=reason, reason_code="no_valid_sample")],
        **nothing,
    )


def unit(name: str, clock_state: str = "locked", alarms: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "node": "node-a",
        "incarnation": 1,
        "sequence": 1,
        "name": name,
        "published_realtime_ns": NOON_NS,
        "age_ns": 1,
        "reachable": True,
        "clock_state": clock_state,
        "clock_class": 6,
        "gnss_state": "locked",
        "alarms": [{"id": 1, "index": at, "severity": "minor", "text": text} for at, text in enumerate(alarms)],
    } | more


def job(name: str = "train", **more: Any) -> dict[str, Any]:
    return {
        "node": "node-a",
        "incarnation": 1,
        "sequence": 1,
        "job_id": "0011223344556677",
        "job": name,
        "attempt": 0,
        "uid": 0,
        "world_size": 2,
        "published_realtime_ns": NOON_NS,
        "step": 99,
        "steps_complete": 100,
        "steps_incomplete": 0,
        "sync_overhead": 0.341,
        "arrival_skew_ns": 1,
        "arrival_skew_p50_ns": 1,
        "arrival_skew_error_ns": 1,
        "last_rank": 1,
        "straggler_rank": 1,
        "verdict": "rank 1 is slow: last in 98% of 100 conclusive steps",
        "alignment_ns": 612_000,
        "alignment_growth_ppb": 1,
        "alignment_reason": "node-a and node-b, by their parent clock",
        "ranks": [],
        "plan": {"mode": "timed", "slack_ns": 1_240_000},
    } | more


def finding(id: str = "grandmaster-alarm", subject: str = "gm-2", **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "severity": "warning",
        "subject": subject,
        "since_realtime_ns": NOON_NS,
        "until_realtime_ns": None,
        "evidence": "antenna short circuit",
        "cause": "the grandmaster has standing alarms",
        "remedy": "read them on the unit",
    } | more


def steps(*texts: str) -> list[dict[str, str]]:
    return [{"code": "step", "text": text} for text in texts]


def answer(own: dict[str, Any] | None = None, **more: list[dict[str, Any]]) -> dict[str, Any]:
    own = own or node()
    return {"node": own, "nodes": [own], "grandmasters": [], "jobs": [], "findings": []} | more


def lines(*parts: RenderableType) -> list[str]:
    console = Console(file=StringIO(), record=True, width=WIDTH, highlight=False)
    console.print(Group(*parts))
    return [line.rstrip() for line in console.export_text().splitlines()]


def words(told: list[str]) -> str:
    """The screen as running text, wherever its lines were broken."""
    return " ".join(" ".join(told).split())


def shown(told: dict[str, Any]) -> list[str]:
    return lines(*screen(told))


def test_the_first_lines_say_in_sync_since_when_how_well_and_to_whom() -> None:
    """The question that the command is typed for is answered before anything else."""
    first, second, *_ = shown(answer())

    assert first.startswith("node-a      SYNCHRONIZED since 2023-11-1")
    assert second == "within      +-16.0 us of grandmaster c25c5d.fffe.9adcd4"


def test_why_not_stands_in_the_second_line_and_once() -> None:
    """A node that is not in sync says why at once, and its source does not say it again."""
    told = shown(answer(unknown(reason="no Sync: the port is LISTENING")))

    assert "UNKNOWN since" in told[0]
    assert told[1] == "why not     no Sync: the port is LISTENING"
    assert sum("no Sync" in line for line in told) == 1


def test_a_source_that_has_more_to_say_says_it() -> None:
    """Only what stands above already is left out."""
    told = shown(answer(node(sources=[source(reason="the path delay is negative", reason_code="no_valid_sample")])))

    assert "ptp-node-a  ptp4l, last known SLAVE, the path delay is negative" in told


def test_a_bound_that_cannot_be_told_gives_its_reason() -> None:
    """Each reference has its own: the grandmaster's bound may hold while UTC is unknown."""
    told = shown(answer())

    assert f"UTC         unknown: {ARBITRARY}" in told


def test_one_reason_for_grandmaster_and_utc_is_said_once() -> None:
    """Without a bound to the grandmaster there is none to UTC either, for the same reason."""
    why = "boundary clock error unknown: set boundary_clock_error_ns"
    told = shown(answer(node(status="UNKNOWN", reason=why, gm=bound(None, why), utc=bound(None, why))))

    assert sum("boundary clock error unknown" in line for line in told) == 1


def test_the_terms_of_the_bound_come_largest_first_with_what_it_grew_by() -> None:
    """So that a reader sees why a bound is what it is; what is 0 is not shown."""
    told = words(shown(answer()))

    assert "growth 10.0 us + path delay 3.00 us + step tolerance 2.00 us + offset 1.00 us" in told
    assert "asymmetry" not in told


def test_a_forecast_stands_below_the_bound() -> None:
    """When it leaves the next limit if samples stop, and when it is void; none of a clock that has no bound."""
    told = shown(answer(node(gm=bound(6_000) | {"growth_ppb": 100})))

    assert "if silent   leaves 10 us in 39 s; void in 16 min" in told
    assert not any("if silent" in line for line in shown(answer(unknown())))


NOTHING = bound(None, "this source knows UTC and no grandmaster") | {"reason_code": "no_grandmaster"}
NTP: dict[str, Any] = {
    "status": "UNKNOWN", "utc_status": "SYNCHRONIZED", "parent": NOTHING, "gm": NOTHING, "utc": bound(1_500_000), "terms": {},
    "grandmaster_identity": None, "parent_identity": None,
    "sources": [
        source("ntp", driver="chrony", port_state=None, kind="utc", offset_ns=-400_000, error_ns=1_100_000, detail="follows 192.0.2.1, stratum 2"),
        source("kernel", driver="kernel", port_state=None, kind="kernel", detail="disciplines: chronyd"),
    ],
}  # fmt: skip


def test_a_node_that_ntp_keeps_is_told_by_utc() -> None:
    """UTC is what it knows, so that is told first; that no grandmaster is followed is no reason for alarm."""
    told = shown(answer(node(**NTP)))

    assert told[0].startswith("node-a     UTC SYNCHRONIZED since")
    assert told[1:] == [
        "within     +-1.51 ms of UTC; no grandmaster is followed",
        "if silent  void in 16 min",
        "ntp        chrony, offset -400 us +-1.10 ms, follows 192.0.2.1, stratum 2",
        "kernel     kernel, disciplines: chronyd",
    ]


def test_other_nodes_that_ntp_keeps_are_well() -> None:
    """In the list of nodes they are SYNCHRONIZED, with their UTC bound."""
    told = shown(answer(nodes=[node(), node("node-n", **NTP), unknown("node-x")]))

    assert told[-2:] == ["node-x  UNKNOWN           no valid sample yet", "node-n  UTC SYNCHRONIZED  +-1.51 ms"]


def test_a_falseticker_is_named() -> None:
    """The source that cannot be right where the others are."""
    told = shown(answer(node(falsetickers=["ntp"])))

    assert "wrong       ntp: not where the other sources are" in told


def test_a_contradiction_is_told_in_the_node_s_block() -> None:
    """Where no majority says who is wrong."""
    told = shown(answer(node(sources_contradict=True)))

    assert "wrong       the sources contradict each other: one of them at least" in told


def test_while_nothing_is_followed_no_grandmaster_is_named() -> None:
    """NTP spoke first: UTC is bounded, and the PTP source's reason stands once."""
    waiting = [source(port_state=None, reason="no valid sample yet", reason_code="no_valid_sample"), *NTP["sources"]]
    told = shown(
        answer(node(**NTP | {"reason": "no valid sample yet", "reason_code": "no_valid_sample", "sources": waiting}))
    )

    assert told[1:3] == ["why not     no valid sample yet", "UTC         +-1.51 ms"]
    assert "None" not in words(told) and "no grandmaster" not in words(told)


@pytest.mark.parametrize("lost", [{"reason": "no such device", "reason_code": "no_valid_sample"}, {"reachable": False}])
def test_what_a_lost_source_gave_is_called_old(lost: dict[str, Any]) -> None:
    """Its offset is none of now; where it gave nothing there is nothing to call so."""
    gave = source("nic", driver="phc", port_state=None, offset_ns=5, detail="phc:0 by extended") | lost
    nothing = source("nix", driver="phc", port_state=None) | lost
    told = shown(answer(node(sources=[gave, nothing])))
    why = f", {lost['reason']}" if "reason" in lost else ""

    assert told[-2:] == [f"nic        phc, last known offset 5 ns, phc:0 by extended{why}", f"nix        phc{why}"]


def test_a_parent_that_is_not_the_grandmaster_is_named() -> None:
    """Behind a boundary clock both ends of the way are said."""
    told = words(shown(answer(node(parent_identity="000000.fffe.000001"))))

    assert "grandmaster c25c5d.fffe.9adcd4, heard through 000000.fffe.000001" in told


def test_of_many_nodes_those_out_of_sync_come_first() -> None:
    """A hub knows hundreds; one screen shows a few and counts the rest."""
    others = [node(f"node-{number:03}") for number in range(200)] + [unknown("node-x", "no Sync for 9.0 s")]
    told = shown(answer(nodes=others))
    at = told.index("nodes: 3 of 201")

    assert told[at + 1] == "node-x    UNKNOWN       no Sync for 9.0 s"
    assert len(told[at:]) == 4


def test_a_grandmaster_that_does_not_answer_is_told_with_its_reason() -> None:
    """What was known of it last is not shown as if it were known now."""
    told = shown(
        answer(
            grandmasters=[unit("gm-1", reachable=False, reason="no answer within 2 s", reason_code="no_valid_sample")]
        )
    )

    assert "gm-1  not reachable no answer within 2 s" in told


def test_a_grandmaster_whose_snmp_is_silent_is_told_so() -> None:
    """Its web interface answers: that no state was read is not that it has none."""
    without = unit("gm-2") | {"clock_state": None}
    silent = without | {"name": "gm-1", "unknown": ["snmp=gm:161: no SNMP answer", "https=x"]}
    told = shown(answer(grandmasters=[silent, without]))

    assert "gm-1  state not read gm:161: no SNMP answer" in told
    assert any(line.startswith("gm-2  state not provided") for line in told)


HELD: dict[str, Any] = {
    "clock_state": "holdover",
    "clock_state_since_realtime_ns": NOON_NS - 3_600 * SECOND,
    "antenna": "open",
    "utc": bound(1_200),
    "holdover_left_ns": 13_200 * SECOND,
    "age_ns": SECOND // 1_000,
}


def test_a_grandmaster_is_told_in_one_line() -> None:
    """State and since when, why, its error against UTC, what is left of its budget; those with trouble come first."""
    told = shown(answer(grandmasters=[unit("gm-1"), unit("gm-2", alarms=("one", "two"), **HELD)]))

    assert told[-2:] == [
        "gm-2  HOLDOVER since 21:13Z, antenna open, UTC +-1.25 us, 3 h 39 min left, 2 al…",
        "gm-1  LOCKED, GNSS locked, no alarm",
    ]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"clock_state": None}, "state not provided, class 6, GNSS locked"),
        ({"clock_state": "holdover_out_of_spec", "gnss_state": None}, "HOLDOVER OUT OF SPEC"),
        ({"clock_state_since_realtime_ns": NOON_NS - 90_000 * SECOND}, "LOCKED since 2023-11-13 21:13Z, GNSS locked"),
        ({"alarms": [], "gnss_state": "antenna_fault"}, "LOCKED, GNSS antenna fault, no alarm"),
        ({"utc": bound(None, "why")}, "LOCKED, GNSS locked, UTC unbounded"),
        ({"utc": bound(100), "age_ns": 1_001 * SECOND}, "LOCKED, GNSS locked, UTC unbounded"),
        (
            HELD | {"age_ns": 60 * SECOND, "holdover_left_ns": 60 * SECOND},
            "HOLDOVER since 21:13Z, antenna open, UTC unbounded, 0 s left",
        ),
    ],
)
def test_a_grandmasters_line_says_what_is_known(more: dict[str, Any], line: str) -> None:
    """What the unit does not provide is left out, never 0; a bound that holds no longer is no bound."""
    told = shown(answer(grandmasters=[unit("gm-1") | {"alarms": None} | more]))

    assert told[-1] == f"gm-1  {line}"


def test_a_node_says_how_its_grandmaster_fares() -> None:
    """The unit by its name, and its note as a line of its own."""
    note = "gm-a: HOLDOVER since 21:13Z, antenna open, budget left 3 h 40 min"
    told = shown(answer(node(grandmaster="gm-a", grandmaster_note=note)))

    assert told[1] == "within       +-16.0 us of grandmaster gm-a, c25c5d.fffe.9adcd4"
    assert told[2] == f"grandmaster  {note}"


def test_a_job_is_told_in_one_line() -> None:
    """Both signals and the slow rank."""
    assert shown(answer(jobs=[job()]))[-1] == ("train  sync overhead 34.1%, rank 1 is slow, clocks agree within 612 us")


def test_a_job_whose_clocks_are_not_comparable_says_why() -> None:
    """Unknown is said as unknown, never as 0."""
    told = shown(answer(jobs=[job(alignment_ns=None, alignment_reason="node-b is UNKNOWN", sync_overhead=None)]))[-1]

    assert "sync overhead unknown" in told
    assert "clocks not comparable: node-b" in told


def test_findings_that_stand_are_told_the_worst_first() -> None:
    """What has ended is not shown."""
    ended = finding(id="clock-unknown", until_realtime_ns=NOON_NS)
    told = shown(answer(findings=[finding(), ended, finding("store-failing", "node-a", severity="critical")]))
    at = told.index("findings")

    assert [line.split()[:2] for line in told[at + 1 :: 2]] == [
        ["node-a", "store-failing"],
        ["gm-2", "grandmaster-alarm"],
    ]


def test_a_finding_does_not_repeat_the_reason_that_stands_above_it() -> None:
    """Its cause and its remedy are new; its evidence is the node's reason."""
    why = "/run/ptp4l: no such socket"
    told = shown(
        answer(
            unknown(reason=why),
            findings=[finding("source-lost", "ptp-node-a", evidence=why)],
        )
    )

    assert sum(why in line for line in told) == 1
    assert "the grandmaster has standing alarms" in " ".join(told)


def test_a_finding_with_a_chain_shows_it() -> None:
    """From the cause to what it does, instead of the evidence."""
    told = words(shown(answer(findings=[finding(chain=steps("antenna open", "holdover", "class 7"))])))

    assert "antenna open -> holdover -> class 7 read them on the unit" in told
    assert "antenna short circuit" not in told


def test_everything_at_once_fits_one_screen() -> None:
    """However much is wrong and however long the texts: 80 columns, and no more lines than a terminal has."""
    long = "a reason that is much longer than what is left of a line of this terminal, and then some"
    told = shown(
        answer(
            node(sources=[source(offset_ns=1, path_delay_ns=1)]),
            nodes=[unknown(f"node-{number}", long) for number in range(9)],
            grandmasters=[unit(f"gm-{number}", "holdover", (long,)) for number in range(9)],
            jobs=[job(f"job-{number}") for number in range(2)],
            findings=[finding(evidence=long, remedy=long) for _ in range(9)],
        )
    )

    assert len(told) < HEIGHT
    assert max(map(len, told)) <= WIDTH
    assert sum(long[:20] in line for line in told) == 3 + 2 * 2


NASTY = "[red]x[/] \x1b]0;owned\x07\nnext"
HARMLESS = "[red]x[/] ?]0;owned??next"


def test_text_from_the_wire_is_text() -> None:
    """Neither markup nor a terminal's control sequences get through, wherever a name or a reason is shown."""
    told = "\n".join(
        shown(
            answer(
                node(sources=[source(name=NASTY, reason=NASTY, reason_code="no_valid_sample")], terms={NASTY: 1}),
                nodes=[unknown("node-b", NASTY)],
                grandmasters=[unit(NASTY, NASTY, (NASTY,)), unit("g", reachable=False, reason=NASTY)],
                jobs=[job(NASTY, alignment_ns=None, alignment_reason=NASTY)],
                findings=[finding(NASTY, NASTY, evidence=NASTY, remedy=NASTY)],
            )
        )
    )

    assert "\x1b" not in told and "\x07" not in told
    assert HARMLESS in told


def demo_lines(*seen: DemoNodeState, ptp: str = "real") -> list[str]:
    return lines(demo_screen(seen, ptp, "http://127.0.0.1:1/"))


def looked(name: str, true_offset_ns: int, told: dict[str, Any]) -> DemoNodeState:
    return DemoNodeState(name, DaemonReplies.of(told), true_offset_ns)


HUB = answer(grandmasters=[unit("gm-1"), unit("gm-2", "holdover", ("antenna short circuit",))], jobs=[job("demo")])


def test_the_demo_holds_each_bound_against_the_truth() -> None:
    """A true offset within the bound is said to be so, and one beyond it too."""
    wrong = answer(node("node-b", gm=bound(6_000)))
    told = demo_lines(looked("node-a", 0, HUB), looked("node-b", -300_000, wrong))

    assert "node-a  SYNCHRONIZED  +-16.0 us  -1.00 us  2.50 us  0 ns, inside the bound" in told
    assert "node-b  SYNCHRONIZED  +-16.0 us  -1.00 us  2.50 us  -300 us, OUTSIDE the bound" in told


def test_the_demo_shows_units_alarms_job_and_page() -> None:
    """All that the issue of synchronization is about, on one screen."""
    told = demo_lines(looked("node-a", 0, HUB), looked("node-b", -300_000, answer(node("node-b"))))

    assert "http://127.0.0.1:1/" in told[0]
    assert "gm-2         holdover  6      antenna short circuit" in told
    assert "slow rank      rank 1 is slow: last in 98% of 100 conclusive steps" in told
    assert "sync overhead  34.1% of the time is spent in barriers" in told
    assert "clocks         agree within 612 us: node-a and node-b, by their parent clock" in told
    assert "barrier        timed: all ranks go on at one instant, slack 1.24 ms" in told
    assert len(told) < HEIGHT


def test_the_demo_says_what_it_waits_for() -> None:
    """While a daemon starts, or has no sample, the reason stands below the nodes."""
    told = demo_lines(looked("node-a", 0, answer(unknown())), DemoNodeState("node-b", None, -300_000))

    assert "node-a: no valid sample yet" in told
    assert "node-b: its daemon does not answer yet" in told


@pytest.mark.parametrize("ptp", ["real", "simulated"])
def test_the_demo_says_what_its_truth_is_made_of(ptp: str) -> None:
    """A simulated ptp4l is never passed off as a real one."""
    told = demo_lines(looked("node-a", 0, HUB), ptp=ptp)

    assert f"{ptp} ptp4l" in told[0]
    assert any(line.startswith("true offset: ") for line in told)


def test_the_demo_shows_text_from_the_wire_as_text() -> None:
    """As the status does."""
    nasty = answer(
        unknown("node-b", NASTY),
        grandmasters=[unit(NASTY, NASTY, (NASTY,))],
        jobs=[job(NASTY, verdict=NASTY, alignment_reason=NASTY, plan={"reason": NASTY})],
    )
    told = "\n".join(demo_lines(looked("node-a", 0, nasty)))

    assert "\x1b" not in told and "\x07" not in told
    assert f"plain: {HARMLESS}" in told
