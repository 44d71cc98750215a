"""The screens of `timesyncd status` and of the demo in a terminal of 80 columns."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from fake_view import FakeView, as_json
from rich.console import Console, Group, RenderableType
from snapshots import COST

from timesyncd.cli.render import DaemonReplies, DemoNodeState, cost_text, demo_screen, screen
from timesyncd.messages.overview import ConfiguredLimits

WIDTH, HEIGHT = 80, 24
SECOND = 1_000_000_000
NOON_NS = 1_700_000_000 * SECOND
ARBITRARY = "the grandmaster announces an arbitrary timescale"


def bound(bound_ns: int | None, reason: str = "", code: str = "ok") -> dict[str, Any]:
    return {"bound_ns": bound_ns, "growth_ppb": 50_000, "reason": reason, "reason_code": code}


def source(name: str = "ptp-node-a", **more: Any) -> dict[str, Any]:
    return {"name": name, "driver": "ptp4l", "reachable": True, "port_state": "SLAVE"} | more


def node(name: str = "node-a", **more: Any) -> dict[str, Any]:
    """A synchronized node whose sample is 0.2 s old: its bound has grown by 10 us."""
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
        "utc": bound(None, ARBITRARY, "arbitrary_timescale"),
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


def grandmaster(name: str, clock_state: str = "locked", alarms: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
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
        "remedy": "read them on the grandmaster",
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


def words(printed: list[str]) -> str:
    """The screen as running text without line breaks."""
    return " ".join(" ".join(printed).split())


def shown(printed: dict[str, Any]) -> list[str]:
    return lines(*screen(printed))


def test_the_first_lines_give_status_bound_and_grandmaster() -> None:
    """Status, its begin, the bound and its reference precede everything else."""
    first, second, *_ = shown(answer())

    assert first.startswith("node-a      SYNCHRONIZED since 2023-11-1")
    assert second == "within      +-16.0 us of grandmaster c25c5d.fffe.9adcd4"


def test_without_announce_the_bound_is_against_a_nameless_parent() -> None:
    """The grandmaster is unknown, and what is known is the bound to the clock behind the port."""
    why = "no Announce names the grandmaster: a change of the master cannot be detected"
    unnamed = bound(None, why, "no_announce")
    known = node(status="UNKNOWN", reason=why, reason_code="no_announce", gm=unnamed, utc=unnamed, sources=[source()])
    printed = shown(answer(known | {"grandmaster_identity": None, "parent_identity": None}))

    assert "within      +-16.0 us of the PTP parent, whose identity is unknown" in printed
    assert words(printed).count("no Announce") == 1


def test_a_parent_of_an_unknown_grandmaster_is_named() -> None:
    """The bound against the parent holds whatever lies behind it."""
    why, code = "boundary clock error unknown", "boundary_clock_error_unknown"
    unset = bound(None, why, code)
    printed = shown(answer(node(status="UNKNOWN", reason=why, reason_code=code, gm=unset, utc=unset)))

    assert "within      +-16.0 us of the PTP parent c25c5d.fffe.9adcd4" in printed


def test_the_reason_is_the_second_line() -> None:
    """A node that is not synchronized gives its reason first, and its source does not repeat it."""
    printed = shown(answer(unknown(reason="no Sync received yet: the port is in state LISTENING")))

    assert "UNKNOWN since" in printed[0]
    assert printed[1] == "reason      no Sync received yet: the port is in state LISTENING"
    assert sum("no Sync" in line for line in printed) == 1


def test_a_source_gives_its_own_reason() -> None:
    """Only a reason that a line above has printed is omitted."""
    printed = shown(answer(node(sources=[source(reason="the path delay is negative", reason_code="no_valid_sample")])))

    assert "ptp-node-a  ptp4l, last known SLAVE, the path delay is negative" in printed


def test_an_unknown_bound_gives_its_reason() -> None:
    """The grandmaster's bound may be known while UTC is unknown."""
    printed = shown(answer())

    assert f"UTC         unknown: {ARBITRARY}" in printed


def test_one_reason_for_grandmaster_and_utc_is_printed_once() -> None:
    """Without a bound against the grandmaster, UTC is unknown for the same reason."""
    why = "boundary clock error unknown: set boundary_clock_error_ns"
    code = "boundary_clock_error_unknown"
    both: dict[str, Any] = {"gm": bound(None, why, code), "utc": bound(None, why, code)}
    printed = shown(answer(node(status="UNKNOWN", reason=why, reason_code=code, **both)))

    assert sum("boundary clock error unknown" in line for line in printed) == 1


def test_the_terms_are_in_order_of_size() -> None:
    """The growth since the sample is one of them; a term of 0 is omitted."""
    printed = words(shown(answer()))

    assert "growth 10.0 us + path delay 3.00 us + step tolerance 2.00 us + offset 1.00 us" in printed
    assert "asymmetry" not in printed


def test_a_forecast_follows_the_bound() -> None:
    """It gives the next limit that the bound exceeds and when it expires; an unknown bound has none."""
    printed = shown(answer(node(gm=bound(6_000) | {"growth_ppb": 100})))

    assert "forecast    without new samples: exceeds 10 us in 39 s, expires in 16 min" in printed
    assert not any("forecast" in line for line in shown(answer(unknown())))


@pytest.mark.parametrize(
    ("limit_ns", "text"),
    [
        (None, "exceeds 10 us in 39 s, expires in 16 min"),
        (7_500, "exceeds the limit of 7.5 us in 14 s, expires in 16 min"),
        (5_000, "above the limit of 5 us, expires in 16 min"),
        (1_000_000, "expires in 16 min"),
    ],
)
def test_a_forecast_names_the_operator_s_limit(limit_ns: int | None, text: str) -> None:
    """As the page does: a bound that an operator allows is no news at a power of ten."""
    overview = FakeView().overview()
    limits = ConfiguredLimits(node_bound_ns=limit_ns)
    headline = overview.headline.model_copy(update={"limits": limits})
    replies = answer(node(gm=bound(6_000) | {"growth_ppb": 100})) | {
        "overview": as_json(overview.model_copy(update={"headline": headline}))
    }

    assert f"forecast without new samples: {text} " in words(shown(replies))


NOTHING = bound(None, "this source measures UTC and has no grandmaster") | {"reason_code": "no_grandmaster"}
NTP: dict[str, Any] = {
    "status": "UNKNOWN", "utc_status": "SYNCHRONIZED", "parent": NOTHING, "gm": NOTHING, "utc": bound(1_500_000), "terms": {},
    "grandmaster_identity": None, "parent_identity": None,
    "sources": [
        source("ntp", driver="chrony", port_state=None, kind="utc", offset_ns=-400_000, error_ns=1_100_000, detail="follows 192.0.2.1, stratum 2"),
        source("kernel", driver="kernel", port_state=None, kind="kernel", detail="disciplined by: chronyd"),
    ],
}  # fmt: skip


def test_a_node_synchronized_by_ntp_shows_utc() -> None:
    """Its main bound is that against UTC; following no grandmaster is no fault."""
    printed = shown(answer(node(**NTP)))

    assert printed[0].startswith("node-a    UTC SYNCHRONIZED since")
    assert printed[1:] == [
        "within    +-1.51 ms of UTC; the node follows no grandmaster",
        "forecast  without new samples: expires in 16 min",
        "ntp       chrony, offset -400 us +-1.10 ms, follows 192.0.2.1, stratum 2",
        "kernel    kernel, disciplined by: chronyd",
    ]


@pytest.mark.parametrize(
    ("own_ns", "more", "line"),
    [
        (90_000, {"utc_narrowed_by": ["ntp"]}, "UTC         +-80.0 us, narrowed by ntp"),
        (None, {"utc_narrowed_by": ["ntp"]}, "UTC         +-80.0 us, by ntp"),
        (90_000, {"sources_contradict": True}, "UTC         +-80.0 us, whichever source is right"),
        (70_000, {}, "UTC         +-80.0 us"),
    ],
)
def test_a_utc_bound_that_is_not_the_grandmaster_s_gives_its_reason(
    own_ns: int | None, more: dict[str, Any], line: str
) -> None:
    """The source that makes it narrower is named."""
    sources = [
        source(kind="ptp", utc=bound(own_ns), age_ns=1),
        source("ntp", driver="chrony", kind="utc", utc=bound(70_000), age_ns=1),
    ]
    printed = shown(answer(node(utc=bound(70_000), utc_status="SYNCHRONIZED", sources=sources, **more)))

    assert line in printed


def test_other_nodes_synchronized_by_ntp() -> None:
    """The list of nodes shows their status and bound against UTC."""
    printed = shown(answer(nodes=[node(), node("node-n", **NTP), unknown("node-x")]))

    assert printed[-2:] == ["node-x  UNKNOWN           no valid sample yet", "node-n  UTC SYNCHRONIZED  +-1.51 ms"]


def test_a_falseticker_is_named() -> None:
    """A source that disagrees with the majority is named."""
    printed = shown(answer(node(falsetickers=["ntp"])))

    assert "falseticker  ntp: disagrees with the majority of the sources" in printed


def test_a_contradiction_is_a_line() -> None:
    """Without a majority no source is named."""
    printed = shown(answer(node(sources_contradict=True)))

    assert "conflict    the sources contradict each other: at least one of them is wrong" in printed


def test_without_a_grandmaster_none_is_named() -> None:
    """UTC is bounded by NTP before PTP has a sample, whose reason is printed once."""
    waiting = [source(port_state=None, reason="no valid sample yet", reason_code="no_valid_sample"), *NTP["sources"]]
    printed = shown(
        answer(node(**NTP | {"reason": "no valid sample yet", "reason_code": "no_valid_sample", "sources": waiting}))
    )

    assert printed[1:3] == ["reason      no valid sample yet", "UTC         +-1.51 ms"]
    assert "None" not in words(printed) and "no grandmaster" not in words(printed)


@pytest.mark.parametrize("lost", [{"reason": "no such device", "reason_code": "no_valid_sample"}, {"reachable": False}])
def test_values_of_a_lost_source_are_marked(lost: dict[str, Any]) -> None:
    """They are "last known"; a source without values has no such mark."""
    gave = source("nic", driver="phc", port_state=None, offset_ns=5, detail="phc:0 by extended") | lost
    nothing = source("nix", driver="phc", port_state=None) | lost
    printed = shown(answer(node(sources=[gave, nothing])))
    why = f", {lost['reason']}" if "reason" in lost else ""

    assert printed[-2:] == [f"nic       phc, last known offset 5 ns, phc:0 by extended{why}", f"nix       phc{why}"]


def test_a_parent_that_is_not_the_grandmaster_is_named() -> None:
    """Behind a boundary clock, grandmaster and parent are both named."""
    printed = words(shown(answer(node(parent_identity="000000.fffe.000001"))))

    assert "grandmaster c25c5d.fffe.9adcd4, through parent 000000.fffe.000001" in printed


def test_nodes_that_are_not_synchronized_come_first() -> None:
    """One screen shows a few nodes and counts the others."""
    others = [node(f"node-{number:03}") for number in range(200)] + [unknown("node-x", "no Sync for 9.0 s")]
    printed = shown(answer(nodes=others))
    at = printed.index("nodes: 3 of 201")

    assert printed[at + 1] == "node-x    UNKNOWN       no Sync for 9.0 s"
    assert len(printed[at:]) == 4


def test_a_hub_shows_the_fleet_in_one_sentence_and_the_worst_five() -> None:
    """Without a bound first, then the widest; the headline and the counts by status stand above them."""
    wide = [node(f"wide-{width}", gm={"bound_ns": width, "growth_ppb": 0, "reason": ""}) for width in (70, 5, 9_000)]
    rest = [unknown(f"lost-{number}", "no Sync for 9.0 s") for number in range(3)]
    overview = FakeView().overview().model_dump(mode="json")
    printed = shown(answer(nodes=[*wide, *rest]) | {"overview": overview})
    at = printed.index("nodes: 5 of 6")

    assert [line.split()[0] for line in printed[at + 1 : at + 6]] == [
        "lost-0",
        "lost-1",
        "lost-2",
        "wide-9000",
        "wide-70",
    ]
    assert printed[at - 2 : at] == [overview["headline"]["text"], "1 SYNCHRONIZED, 1 HOLDOVER"]


@pytest.mark.parametrize(("sources", "is_fleet"), [([], True), ([source()], False)])
def test_a_hub_without_a_clock_shows_the_fleet_of_one_node(sources: list[dict[str, Any]], is_fleet: bool) -> None:
    """Its own node is no node of the fleet; with a clock it is the only one."""
    overview = FakeView().overview()
    headline = overview.headline.model_copy(update={"nodes": 1})
    answered = answer(node(sources=sources)) | {"overview": as_json(overview.model_copy(update={"headline": headline}))}

    assert (headline.text in shown(answered)) is is_fleet


def test_a_remedy_is_never_cut() -> None:
    """It wraps, since what is cut cannot be done; the evidence before it takes one line."""
    remedy = "first look at " + ", then at ".join(f"thing {number}" for number in range(30))
    printed = shown(answer(findings=[finding(evidence="x" * 200, remedy=remedy), finding(remedy="short")]))

    assert remedy in words(printed)
    assert "findings: 1 of 2; also gm-2 grandmaster-alarm" in printed


def test_what_began_first_is_shown_and_the_others_named() -> None:
    """The cause of the others is mostly the oldest; one that has no room is not hidden."""
    later = finding(subject="node-9", id="clock-unknown", since_realtime_ns=NOON_NS + 1, remedy="x " * 200)
    printed = shown(answer(findings=[later, finding(remedy="y " * 200)]))

    title, first = printed[printed.index(next(line for line in printed if line.startswith("findings"))) :][:2]
    assert title == "findings: 1 of 2; also node-9 clock-unknown"
    assert first.startswith("gm-2  grandmaster-alarm")


def test_an_unreachable_grandmaster_gives_its_reason() -> None:
    """Its last known state is not shown as its present one."""
    printed = shown(
        answer(
            grandmasters=[
                grandmaster("gm-1", reachable=False, reason="no answer within 2 s", reason_code="no_valid_sample")
            ]
        )
    )

    assert "gm-1  not reachable: no answer within 2 s" in printed


def test_a_grandmaster_without_snmp_gives_its_reason() -> None:
    """A state that could not be read differs from one that is not provided."""
    without = grandmaster("gm-2") | {"clock_state": None}
    silent = without | {"name": "gm-1", "snmp_error": "gm:161: no SNMP response", "unknown": ["https=x"]}
    printed = shown(answer(grandmasters=[silent, without]))

    assert "gm-1  state not read: gm:161: no SNMP response" in printed
    assert any(line.startswith("gm-2  state not provided") for line in printed)


HELD: dict[str, Any] = {
    "clock_state": "holdover",
    "clock_state_since_realtime_ns": NOON_NS - 3_600 * SECOND,
    "antenna": "open",
    "utc": bound(1_200),
    "holdover_left_ns": 13_200 * SECOND,
    "age_ns": SECOND // 1_000,
}


def test_a_grandmaster_is_one_line() -> None:
    """State, begin, cause, error against UTC and budget; grandmasters with faults come first."""
    printed = shown(answer(grandmasters=[grandmaster("gm-1"), grandmaster("gm-2", alarms=("one", "two"), **HELD)]))

    assert printed[-2:] == [
        "gm-2  HOLDOVER since 21:13Z, antenna open, UTC +-1.25 us, budget left 3 h 39 mi…",
        "gm-1  LOCKED, GNSS locked, no alarms",
    ]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"clock_state": None}, "state not provided, class 6, GNSS locked"),
        ({"clock_state": "holdover_out_of_spec", "gnss_state": None}, "HOLDOVER OUT OF SPEC"),
        ({"clock_state_since_realtime_ns": NOON_NS - 90_000 * SECOND}, "LOCKED since 2023-11-13 21:13Z, GNSS locked"),
        ({"alarms": [], "gnss_state": "antenna_fault"}, "LOCKED, GNSS antenna fault, no alarms"),
        ({"utc": bound(None, "why")}, "LOCKED, GNSS locked, UTC unbounded"),
        ({"utc": bound(100), "age_ns": 1_001 * SECOND}, "LOCKED, GNSS locked, UTC unbounded"),
        (
            HELD | {"age_ns": 60 * SECOND, "holdover_left_ns": 60 * SECOND},
            "HOLDOVER since 21:13Z, antenna open, UTC unbounded, budget left 0 s",
        ),
    ],
)
def test_a_grandmaster_s_line_has_the_known_values(more: dict[str, Any], line: str) -> None:
    """Absent values are omitted, never 0; an expired bound is unbounded."""
    printed = shown(answer(grandmasters=[grandmaster("gm-1") | {"alarms": None} | more]))

    assert printed[-1] == f"gm-1  {line}"


def test_a_node_shows_its_grandmaster_s_state() -> None:
    """The grandmaster is named, and its state is a line of its own."""
    summary = "gm-a: HOLDOVER since 21:13Z, antenna open, budget left 3 h 40 min"
    printed = shown(answer(node(grandmaster="gm-a", grandmaster_summary=summary)))

    assert printed[1] == "within       +-16.0 us of grandmaster gm-a, c25c5d.fffe.9adcd4"
    assert printed[2] == f"grandmaster  {summary}"


def test_a_job_is_one_line() -> None:
    """The line has the agreement of the clocks, the overhead, and the straggler, whose place may be cut."""
    assert shown(answer(jobs=[job()]))[-1] == (
        "train  clocks agree within 612 us, sync overhead 34.1%, straggler: rank 1"
    )


def test_a_job_whose_clocks_are_not_comparable_gives_the_reason() -> None:
    """An unknown value is "unknown", never 0."""
    printed = shown(answer(jobs=[job(alignment_ns=None, alignment_reason="node-b is UNKNOWN", sync_overhead=None)]))[-1]

    assert "sync overhead unknown" in printed
    assert "clocks not comparable: node-b" in printed


def test_active_findings_are_in_order_of_severity() -> None:
    """A finding that has ended is omitted."""
    ended = finding(id="clock-unknown", until_realtime_ns=NOON_NS)
    printed = shown(answer(findings=[finding(), ended, finding("store-failing", "node-a", severity="critical")]))
    at = printed.index("findings")

    assert [line.split()[:2] for line in printed[at + 1 :: 2]] == [
        ["node-a", "store-failing"],
        ["gm-2", "grandmaster-alarm"],
    ]


def test_a_finding_does_not_repeat_a_printed_reason() -> None:
    """Its evidence is the reason of a source above, so its cause is printed instead."""
    why = "/run/ptp4l: no such socket"
    printed = shown(
        answer(
            unknown(reason=why),
            findings=[finding("source-lost", "ptp-node-a", evidence=why)],
        )
    )

    assert sum(why in line for line in printed) == 1
    assert "the grandmaster has standing alarms" in " ".join(printed)


def test_a_finding_with_a_chain_shows_it() -> None:
    """The chain from cause to effect replaces the evidence."""
    printed = words(shown(answer(findings=[finding(chain=steps("antenna open", "holdover", "class 7"))])))

    assert "antenna open -> holdover -> class 7 read them on the grandmaster" in printed
    assert "antenna short circuit" not in printed


def test_everything_at_once_fits_one_screen() -> None:
    """With many faults and long texts, the screen has 80 columns and at most the lines of a terminal."""
    long = "a reason that is much longer than what is left of a line of this terminal, and then some"
    printed = shown(
        answer(
            node(sources=[source(offset_ns=1, path_delay_ns=1)]),
            nodes=[unknown(f"node-{number}", long) for number in range(9)],
            grandmasters=[grandmaster(f"gm-{number}", "holdover", (long,)) for number in range(9)],
            jobs=[job(f"job-{number}") for number in range(2)],
            findings=[finding(evidence=long, remedy=long) for _ in range(9)],
        )
    )

    assert len(printed) < HEIGHT
    assert max(map(len, printed)) <= WIDTH
    assert sum(long[:20] in line for line in printed) == 3 + 2  # nodes; one finding, since its remedy wraps


HOSTILE = "[red]x[/] \x1b]0;owned\x07\nnext"
HARMLESS = "[red]x[/] ?]0;owned??next"


def test_strings_from_the_network_are_text() -> None:
    """Markup and control characters in names and reasons are printed as text."""
    printed = "\n".join(
        shown(
            answer(
                node(sources=[source(name=HOSTILE, reason=HOSTILE, reason_code="no_valid_sample")], terms={HOSTILE: 1}),
                nodes=[unknown("node-b", HOSTILE)],
                grandmasters=[
                    grandmaster(HOSTILE, HOSTILE, (HOSTILE,)),
                    grandmaster("g", reachable=False, reason=HOSTILE),
                ],
                jobs=[job(HOSTILE, alignment_ns=None, alignment_reason=HOSTILE)],
                findings=[finding(HOSTILE, HOSTILE, evidence=HOSTILE, remedy=HOSTILE)],
            )
        )
    )

    assert "\x1b" not in printed and "\x07" not in printed
    assert HARMLESS in printed


def demo_lines(*seen: DemoNodeState, ptp: str = "real") -> list[str]:
    return lines(demo_screen(seen, ptp, "http://127.0.0.1:1/"))


def demo_node(name: str, true_offset_ns: int, printed: dict[str, Any]) -> DemoNodeState:
    return DemoNodeState(name, DaemonReplies.of(printed), true_offset_ns)


HUB = answer(
    grandmasters=[grandmaster("gm-1"), grandmaster("gm-2", "holdover", ("antenna short circuit",))], jobs=[job("demo")]
)


def test_the_demo_compares_each_bound_with_the_truth() -> None:
    """A true offset is marked as inside or outside the bound."""
    wrong = answer(node("node-b", gm=bound(6_000)))
    printed = demo_lines(demo_node("node-a", 0, HUB), demo_node("node-b", -300_000, wrong))

    assert "node-a  SYNCHRONIZED  +-16.0 us  -1.00 us  2.50 us  0 ns, inside the bound" in printed
    assert "node-b  SYNCHRONIZED  +-16.0 us  -1.00 us  2.50 us  -300 us, OUTSIDE the bound" in printed


def test_the_demo_shows_grandmasters_job_and_page() -> None:
    """One screen has the page's address, the alarms and the job's results."""
    printed = demo_lines(demo_node("node-a", 0, HUB), demo_node("node-b", -300_000, answer(node("node-b"))))

    assert "http://127.0.0.1:1/" in printed[0]
    assert "gm-2         holdover  6      antenna short circuit" in printed
    assert "straggler      rank 1 is slow: last in 98% of 100 conclusive steps" in printed
    assert "sync overhead  34.1% of the time is spent in barriers" in printed
    assert "clocks         agree within 612 us: node-a and node-b, by their parent clock" in printed
    assert "barrier        timed: all ranks continue at one instant, slack 1.24 ms" in printed
    assert len(printed) < HEIGHT


def test_the_demo_shows_why_it_waits() -> None:
    """While a daemon starts or has no sample, its reason is below the nodes."""
    printed = demo_lines(demo_node("node-a", 0, answer(unknown())), DemoNodeState("node-b", None, -300_000))

    assert "node-a: no valid sample yet" in printed
    assert "node-b: the daemon does not reply yet" in printed


@pytest.mark.parametrize("ptp", ["real", "simulated"])
def test_the_demo_names_the_origin_of_its_truth(ptp: str) -> None:
    """A simulated ptp4l is named as such."""
    printed = demo_lines(demo_node("node-a", 0, HUB), ptp=ptp)

    assert f"{ptp} ptp4l" in printed[0]
    assert any(line.startswith("true offset: ") for line in printed)


def test_the_demo_shows_strings_from_the_network_as_text() -> None:
    """Control characters in the demo's strings are printed as text."""
    hostile = answer(
        unknown("node-b", HOSTILE),
        grandmasters=[grandmaster(HOSTILE, HOSTILE, (HOSTILE,))],
        jobs=[job(HOSTILE, verdict=HOSTILE, alignment_reason=HOSTILE, plan={"reason": HOSTILE})],
    )
    printed = "\n".join(demo_lines(demo_node("node-a", 0, hostile)))

    assert "\x1b" not in printed and "\x07" not in printed
    assert f"plain: {HARMLESS}" in printed


def test_a_lost_source_shows_when_it_was_polled_last() -> None:
    """Its values are the last known ones; the age of the poll shows how often the daemon still tries."""
    away = source(reachable=False, reason="no answer", reason_code="source_unreachable", since_poll_ns=42_000_000_000)
    there = source(since_poll_ns=42_000_000_000)

    assert "no answer, last polled 42 s ago" in " ".join(shown(answer(node(sources=[away]))))
    assert "last polled" not in " ".join(shown(answer(node(sources=[there]))))


@pytest.mark.parametrize(("clock", "named"), [("phc:0", "offset of phc:0 1.00 us"), ("realtime", "offset 1.00 us")])
def test_the_offset_of_a_network_card_s_clock_is_named_as_such(clock: str, named: str) -> None:
    """ptp4l measures the PHC; the bound is that of the system clock."""
    assert named in " ".join(shown(answer(node(terms={}, sources=[source(clock=clock, offset_ns=1_000)]))))


def test_the_last_line_is_what_the_daemon_costs() -> None:
    """Its share of a core, memory and the sources that it polls most; while it keeps to its budget, that it polls less often."""
    assert (
        cost_text(COST)
        == "this daemon: 1.3% of a core, 86 MiB; polls a second: ptp 8.0; polls 2 times less often than configured"
    )
    unknown = COST.model_copy(update={"cpu_share": None, "memory_bytes": None, "sources": [], "poll_factor": 1})
    assert cost_text(unknown) == "this daemon: CPU not measured yet"
