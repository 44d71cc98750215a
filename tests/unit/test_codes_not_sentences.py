"""
Rewording a sentence changes nothing that a program decides: each sentence of every message is replaced by random text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from doctor_lab import DAEMON, WELL
from fake_clocks import FakeClocks
from grandmaster_states import GM_A, GM_B, NIGHT_NS, follower, polled_grandmaster
from reworded import OF_MESSAGE, SENTENCES, reworded
from rich.console import Console, Group, RenderableType
from snapshots import EVERYTHING, RECORDED

from timesyncd.bound import Reason, unbounded
from timesyncd.cli._tables import grandmaster_tables, job_tables, node_tables
from timesyncd.cli.budget import current_bound_lines, node_forecast, reference_lines
from timesyncd.cli.doctor.checks import checks, exit_status
from timesyncd.cli.render import screen
from timesyncd.clocks import NS_PER_S, Moment
from timesyncd.daemon.remote_state import aged_state, grandmaster_verdict
from timesyncd.findings.catalogue import CATALOGUE, Judgement
from timesyncd.findings.fleet import FleetFindings
from timesyncd.findings.grandmaster import GrandmasterFindings
from timesyncd.findings.node import state_findings
from timesyncd.fleet.registry import Fleet
from timesyncd.ipc.job_segment import Plan
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages import fleet, jobs
from timesyncd.messages import node as node_messages
from timesyncd.messages.events import CloudEvents, StateChanges
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import BoundMessage, FindingMessage, GrandmasterState, Message, NodeState
from timesyncd.metrics.exposition import Metrics
from timesyncd.sample import Alarm


def messages() -> Iterator[type[Message]]:
    for module in (node_messages, fleet, jobs):
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, Message) and found.__module__ == module.__name__:
                yield found
    yield RecordingMessage


@pytest.mark.parametrize("message", list(messages()), ids=lambda message: message.__name__)
def test_every_reason_has_its_code_beside_it(message: type[Message]) -> None:
    """A field for a sentence that gives a reason or a verdict has a field for the code."""
    reasons = [name for name in message.model_fields if name == "reason" or name.endswith("_reason")]
    reasons += [name for name in message.model_fields if name in OF_MESSAGE and message.__name__ in OF_MESSAGE[name]]
    codes = {name.removesuffix("_code") for name in message.model_fields if name.endswith("_code")}

    assert set(reasons) - {"text"} <= codes


def test_a_plan_has_its_code_beside_its_reason() -> None:
    """The plan of a job state is a dataclass of the client."""
    assert {"reason", "reason_code"} <= set(Plan.__dataclass_fields__)


NO_GRANDMASTER = BoundMessage.of(unbounded(Reason.NO_GRANDMASTER))
STALE = {"reason": Reason.STALE.text, "reason_code": Reason.STALE.code}
LOST_SOURCE = (
    follower()
    .sources[0]
    .model_copy(
        update={"reachable": False, "reason": "no response", "reason_code": "source_unreachable", "poll_duration_ns": 5}
    )
)
NTP_SOURCE = follower().sources[0].model_copy(update={"kind": "utc", "detail": "follows 192.0.2.1, stratum 2"})

NODES: list[NodeState] = [
    *(NodeState.model_validate(each) for each in RECORDED["nodes"]),
    follower(),
    follower(status="HOLDOVER", utc_status="HOLDOVER", age_ns=6 * NS_PER_S, **STALE),
    follower(status="UNKNOWN", utc_status="UNKNOWN", reason="the source is lost", reason_code="source_unreachable"),
    follower(status="DISRUPTED", utc_status="DISRUPTED", reason=Reason.CLOCK_STEPPED.text, reason_code="clock_stepped"),
    follower(status="UNKNOWN", gm=NO_GRANDMASTER, sources=[NTP_SOURCE]),
    follower(sources=[LOST_SOURCE]),
    *(follower(utc=BoundMessage.of(unbounded(reason)), utc_status="UNKNOWN") for reason in Reason),
]

FOLLOWERS = [
    follower("b", GM_B),
    *(follower(f"n-{reason.code}", GM_A, utc=BoundMessage.of(unbounded(reason))) for reason in Reason),
]

ANTENNA_ALARM = Alarm(1, 0, "major", "antenna")
INVALIDATED = {
    "invalidation_reason": Reason.GRANDMASTER_JUMPED.text,
    "invalidation_reason_code": Reason.GRANDMASTER_JUMPED.code,
}

GRANDMASTERS: list[GrandmasterState] = [
    *(GrandmasterState.model_validate(each) for each in RECORDED["grandmasters"]),
    polled_grandmaster(),
    polled_grandmaster(clock_state="holdover", clock_class=7, antenna="open", satellites=[], alarms=[ANTENNA_ALARM]),
    polled_grandmaster(reachable=False, reason="no response", reason_code="source_unreachable"),
    polled_grandmaster(clock_state="locked", utc=BoundMessage.of(unbounded(Reason.GRANDMASTER_CONTRADICTS_ITSELF))),
    polled_grandmaster(invalid_before_realtime_ns=NIGHT_NS, **INVALIDATED),
    *(polled_grandmaster(clock_state="holdover", utc=BoundMessage.of(unbounded(reason)), utc_detail="why") for reason in Reason),
]  # fmt: skip


def _of_node(state: NodeState) -> object:
    """What is decided by one node's state."""
    later = Moment(realtime_ns=state.published_realtime_ns, boottime_ns=NS_PER_S)
    aged = [aged_state(state, NS_PER_S, later.at_boottime(NS_PER_S + age_s * NS_PER_S)) for age_s in (0, 6, 2_000)]
    events = StateChanges(CloudEvents("n", 1)).of_node(state)
    of_node = state_findings(state, None, None)
    fleet_of_one = Fleet()
    fleet_of_one.accept(state, NS_PER_S, live=True)
    alignment = fleet_of_one.alignment_state(None, later)
    overview = fleet_of_one.overview(later)
    return (
        state.main_status, state.knows_utc_alone, [(each.main_status, each.reason_code) for each in aged],
        [(event.type, event.data) for event in events], [(*key, CATALOGUE[key[0]].severity) for key in of_node],
        alignment.reason_code, [(part.status, part.reason_code, part.bound_ns) for part in alignment.nodes],
        overview.statuses, overview.grandmasters,
    )  # fmt: skip


def _of_grandmaster(state: GrandmasterState, followers: list[NodeState]) -> object:
    """What is decided by one grandmaster's state, with its followers."""
    rules, now_ns = GrandmasterFindings(), NIGHT_NS
    found: dict[tuple[str, str], Judgement] = {}
    for after_ns in (0, 200 * NS_PER_S):
        later = state.model_copy(update={"age_ns": 0})
        found = rules.judge([later], [], followers, now_ns + after_ns)
    verdict = grandmaster_verdict(state, Moment(realtime_ns=now_ns, boottime_ns=NS_PER_S))
    events = StateChanges(CloudEvents("n", 1)).of_grandmaster(state)
    return (
        {key: [step.code for step in judgement.chain] for key, judgement in found.items()},
        None if verdict is None else (verdict.utc, verdict.holdover_left_ns, verdict.invalidation),
        [(event.type, event.data) for event in events],
    )  # fmt: skip


@pytest.mark.parametrize("state", NODES, ids=range(len(NODES)))
def test_a_node_s_sentences_decide_nothing(state: NodeState) -> None:
    """Statuses, findings, severities, events, and the fleet's summary and alignment stay what they are."""
    assert _of_node(reworded(state)) == _of_node(state)


@pytest.mark.parametrize("state", GRANDMASTERS, ids=range(len(GRANDMASTERS)))
def test_a_grandmaster_s_sentences_decide_nothing(state: GrandmasterState) -> None:
    """Findings with the steps of their chains, its own error for its followers, and events stay what they are."""
    other = [reworded(each) for each in FOLLOWERS]

    assert _of_grandmaster(reworded(state), other) == _of_grandmaster(state, FOLLOWERS)


def test_the_fleet_s_findings_do_not_read_sentences() -> None:
    """
    The same findings, of the same subjects, over a minute of a fleet in which one source is lost and one node is away.
    """

    def found(change: Callable[[NodeState], NodeState]) -> set[tuple[str, str]]:
        rules = FleetFindings(["node-0", "node-9"], "hub")
        ids: set[tuple[str, str]] = set()
        for second in range(0, 120, 5):
            for number in range(8):
                sources = (
                    [LOST_SOURCE]
                    if number == 3
                    else [follower().sources[0].model_copy(update={"kind": "ptp", "domain": 24})]
                )
                rules.add(change(follower(f"node-{number}", sources=sources)), second * NS_PER_S)
            ids |= rules.judge(GRANDMASTERS[-1:], second * NS_PER_S, NIGHT_NS + second * NS_PER_S).keys()
        return ids

    assert found(reworded) == found(lambda state: state) != set()


def test_metrics_do_not_read_sentences() -> None:
    """A scrape has the same series with the same values."""
    full = EVERYTHING
    other = replace(
        full,
        node=reworded(full.node),
        grandmasters=[reworded(each) for each in full.grandmasters],
        jobs=[reworded(each) for each in full.jobs],
        findings=[reworded(each) for each in full.findings],
    )
    scrapes = [Metrics(lambda shown=shown: shown, FakeClocks()).render() for shown in (full, other)]  # type: ignore[misc]

    assert _series(scrapes[1]) == _series(scrapes[0])


def _series(scrape: bytes) -> set[str]:
    return {line for line in scrape.decode().splitlines() if not line.startswith(("#", "process_", "python_"))}


@pytest.mark.parametrize("id", CATALOGUE)
def test_the_doctor_s_exit_status_does_not_read_sentences(id: str) -> None:
    """Of each finding: the same checks with the same severities and commands, and the same exit status."""
    kind = CATALOGUE[id]
    finding = FindingMessage(
        id=id, severity=kind.severity, subject="ptp", since_realtime_ns=1, until_realtime_ns=None, evidence="so",
        cause=kind.cause, remedy=kind.remedy,
    )  # fmt: skip
    both = [checks(replace(WELL, daemon=replace(DAEMON, findings=(each,)))) for each in (finding, reworded(finding))]

    assert [[(r.group, r.check, r.state, r.severity, r.command) for r in results] for results in both[:1]] == [
        [(r.group, r.check, r.state, r.severity, r.command) for r in results] for results in both[1:]
    ]
    assert exit_status(both[0]) == exit_status(both[1])


def look(parts: list[RenderableType]) -> list[list[str]]:
    """The styles of each line of a terminal that is wide enough for every sentence."""
    console = Console(file=StringIO(), width=4_000, color_system="truecolor", force_terminal=True, highlight=False)
    lines = console.render_lines(Group(*parts))
    return [[str(segment.style) for segment in line if segment.text.strip()] for line in lines]


@pytest.mark.parametrize("state", NODES, ids=range(len(NODES)))
def test_a_node_s_screen_and_budget_do_not_read_sentences(state: NodeState) -> None:
    """`timesyncd status` and `explain` print the same rows in the same styles, and the same bounds and forecast."""
    other = reworded(state)
    budgets = [
        [(line.name, line.hard_ns, line.stat_ns, line.reason_code) for line in lines(each)]
        for each in (state, other)
        for lines in (reference_lines, current_bound_lines)
    ]

    assert look(node_tables(other, None)) == look(node_tables(state, None))
    assert budgets[:2] == budgets[2:]
    assert node_forecast(other) == node_forecast(state)


@pytest.mark.parametrize("state", GRANDMASTERS, ids=range(len(GRANDMASTERS)))
def test_a_grandmaster_s_screen_does_not_read_sentences(state: GrandmasterState) -> None:
    """`timesyncd status NAME` prints the same rows in the same styles."""
    assert look(grandmaster_tables(reworded(state))) == look(grandmaster_tables(state))


def test_the_status_screen_does_not_read_sentences() -> None:
    """Nodes, grandmasters, jobs and findings have the same rows in the same order and styles."""

    def of(change: Callable[[Any], Message]) -> tuple[list[list[str]], list[list[list[str]]]]:
        jobs_ = [change(each) for each in EVERYTHING.jobs]
        answer: dict[str, Any] = {
            "node": change(EVERYTHING.node).model_dump(mode="json"),
            "nodes": [change(each).model_dump(mode="json") for each in NODES],
            "grandmasters": [change(each).model_dump(mode="json") for each in GRANDMASTERS],
            "jobs": [job.model_dump(mode="json") for job in jobs_],
            "findings": [change(each).model_dump(mode="json") for each in EVERYTHING.findings],
        }
        return look(screen(answer)), [look(job_tables(JobState.model_validate(each))) for each in answer["jobs"]]

    assert of(reworded) == of(lambda message: message)


def test_a_job_s_sentences_are_all_replaced() -> None:
    """So that what holds above is not true because nothing was replaced."""
    job = JobState.model_validate(RECORDED["jobs"][0])
    other = reworded(job)

    assert other.verdict != job.verdict and other.model_dump(exclude=_excluded()) == job.model_dump(exclude=_excluded())


def _excluded() -> dict[str, Any]:
    names = ("verdict", "alignment_reason", "phase_reason", "groups_reason")
    return {name: True for name in names} | {"plan": {"reason": True}}


def test_every_sentence_is_a_field_of_a_message() -> None:
    """A renamed field would otherwise escape the tests above."""
    fields = {name for message in messages() for name in message.model_fields}

    assert fields >= SENTENCES
    assert {name for name in fields if name.endswith("reason")} <= SENTENCES
