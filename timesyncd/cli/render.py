"""What daemons answer over HTTP, on one screen of a terminal. What came over a wire is shown as text, never as markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from timesyncd.bound import GRANDMASTER_EXPIRES_AFTER_NS, Bound, Reason, growth_ns
from timesyncd.cli.budget import forecast_text, node_forecast
from timesyncd.cli.render_job import agreement, job_line, percent
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import OK, BoundMessage, FindingMessage, GrandmasterState, NodeState, SourceState
from timesyncd.units import duration_text, span_text

#: So many rows of a kind leave room for the other kinds; what is wrong comes first.
MAX_ROWS = 3
MAX_FINDINGS = 2  # of two lines each

STYLES = {"SYNCHRONIZED": "bold green", "HOLDOVER": "bold yellow", "DISRUPTED": "bold red", "UNKNOWN": "bold red"}
SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": ""}


@dataclass(frozen=True, slots=True)
class DaemonReplies:
    """What one daemon answered: itself first in `nodes`, and of the findings those that stand."""

    node: NodeState
    nodes: list[NodeState]
    grandmasters: list[GrandmasterState]
    jobs: list[JobState]
    findings: list[FindingMessage]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> DaemonReplies:
        findings = [FindingMessage.model_validate(each) for each in answer["findings"]]
        return cls(
            NodeState.model_validate(answer["node"]),
            [NodeState.model_validate(each) for each in answer["nodes"]],
            [GrandmasterState.model_validate(each) for each in answer["grandmasters"]],
            [JobState.model_validate(each) for each in answer["jobs"]],
            [finding for finding in findings if finding.until_realtime_ns is None],
        )


def screen(answer: dict[str, Any]) -> list[RenderableType]:
    """In sync or not, since when, to whom, how well, and why not; then the others, and what is wrong."""
    answers = DaemonReplies.of(answer)
    others = [node for node in answers.nodes if node.node != answers.node.node]
    others.sort(key=lambda node: (node.main_status == "SYNCHRONIZED", node.node))
    units = sorted(answers.grandmasters, key=lambda unit: unit.clock_state == "locked" and not unit.alarms)
    findings = sorted(answers.findings, key=lambda finding: list(SEVERITIES).index(finding.severity))
    return [
        node_block(answers.node),
        *titled_section("nodes", [node_row(node) for node in others]),
        *titled_section("grandmasters", [grandmaster_row(unit) for unit in units]),
        *titled_section("jobs", [job_row(job) for job in answers.jobs]),
        *titled_section(
            "findings",
            [finding_row(finding, reasons_in_node_block(answers.node)) for finding in findings],
            MAX_FINDINGS,
        ),
    ]


def node_block(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    table.add_row(plain_text(node.node, "bold"), headline(node))
    if node.reason:
        table.add_row("why not", plain_text(node.reason))
    told = {node.reason}
    if node.reason and node.grandmaster_identity is None:
        told.add(Reason.NO_GRANDMASTER.text)  # why that is so stands there already
    if node.knows_utc_alone:
        table.add_row("within", Text.assemble(bound_text(node.utc, node.age_ns), " of UTC; no grandmaster is followed"))
    elif is_new_information(node.gm, told):
        whom = plain_text(f" of {followed_text(node)}" if node.grandmaster_identity else "")
        table.add_row("within", Text.assemble(bound_text(node.gm, node.age_ns), whom))
    if node.grandmaster_note:
        table.add_row("grandmaster", plain_text(node.grandmaster_note))
    if not node.knows_utc_alone and is_new_information(node.utc, told | {node.gm.reason if node.gm else ""}):
        table.add_row("UTC", bound_text(node.utc, node.age_ns))
    if (expected := node_forecast(node)) is not None:
        table.add_row("if silent", forecast_text(expected), style="dim")
    if node.terms:
        table.add_row("made of", plain_text(terms_text(node)), style="dim")
    for source in node.sources:
        table.add_row(plain_text(source.name), source_text(source, node.reason), style="dim")
    if node.falsetickers:
        table.add_row("wrong", plain_text(f"{', '.join(node.falsetickers)}: not where the other sources are", "yellow"))
    if node.sources_contradict:
        table.add_row("wrong", plain_text("the sources contradict each other: one of them at least", "yellow"))
    return table


def headline(node: NodeState) -> Text:
    since = f" since {local_time_text(node.since_realtime_ns)}" if node.since_realtime_ns else ""
    return Text.assemble(status_text(node), since)


def is_new_information(message: BoundMessage | None, told: set[str]) -> bool:
    """A bound is; that there is none only for a reason that does not stand above it."""
    return message is not None and (message.bound_ns is not None or message.reason not in told)


def followed_text(node: NodeState) -> str:
    through = "" if node.parent_identity == node.grandmaster_identity else f", heard through {node.parent_identity}"
    known_as = "" if node.grandmaster is None else f"{node.grandmaster}, "
    return f"grandmaster {known_as}{node.grandmaster_identity}{through}"


def terms_text(node: NodeState) -> str:
    """The bound's parts, the largest first, and what it has grown by since the last reading."""
    parts = dict(node.terms)
    if node.parent and node.age_ns is not None:
        parts["growth"] = growth_ns(node.parent.growth_ppb, node.age_ns)
    largest_first = sorted(parts.items(), key=lambda part: -part[1])
    return " + ".join(f"{name.replace('_', ' ')} {duration_text(ns)}" for name, ns in largest_first if ns)


def source_text(source: SourceState, told: str) -> Text:
    """`told`: the reason that stands above it, which is not said twice. What a lost source gave is old."""
    known = ", ".join(part for part in (source.port_state, measured_text(source), source.detail) if part)
    is_old = source.reason_code != OK or not source.reachable
    parts = [source.driver, f"last known {known}" if known and is_old else known]
    if source.reason and source.reason not in told:
        parts.append(source.reason)
    return plain_text(", ".join(part for part in parts if part))


def measured_text(source: SourceState) -> str | None:
    if source.offset_ns is None:
        return None
    error = "" if source.error_ns is None else f" +-{duration_text(source.error_ns)}"
    delay = "" if source.path_delay_ns is None else f", path delay {duration_text(source.path_delay_ns)}"
    return f"offset {duration_text(source.offset_ns)}{error}{delay}"


def bound_text(message: BoundMessage | None, age_ns: int | None) -> Text:
    now_ns = bound_now_ns(message, age_ns)
    if now_ns is not None:
        return Text(f"+-{duration_text(now_ns)}", "bold")
    return plain_text(f"unknown: {message.reason}" if message and message.reason else "unknown")


def bound_now_ns(message: BoundMessage | None, age_ns: int | None) -> int | None:
    """Grown since it was read; None: unbounded."""
    if message is None or age_ns is None:
        return None
    return Bound(message.bound_ns, message.growth_ppb).at(age_ns)


def node_row(node: NodeState) -> list[Text]:
    return [
        plain_text(node.node),
        status_text(node),
        plain_text(node.reason) if node.reason else bound_text(node.main_bound, node.age_ns),
    ]


def grandmaster_row(unit: GrandmasterState) -> list[Text]:
    """What an operator asks first, the most telling before where the line is cut."""
    if not unit.reachable:
        return [plain_text(unit.name), Text.assemble(("not reachable", "yellow"), " ", plain_text(unit.reason or ""))]
    if (trouble := snmp_failure(unit)) is not None:
        return [plain_text(unit.name), Text.assemble(("state not read", "yellow"), " ", plain_text(trouble))]
    since_ns = unit.clock_state_since_realtime_ns
    since = "" if since_ns is None else f" since {utc_time_text(since_ns, unit.published_realtime_ns)}"
    known = [
        gnss_text(unit),
        None if unit.utc is None else utc_error_text(unit),
        None if (left_ns := holdover_left_ns(unit)) is None else f"{span_text(left_ns)} left",
        None if unit.alarms is None else alarm_count_text(len(unit.alarms)),
    ]
    told = [word for word in known if word]
    return [
        plain_text(unit.name),
        Text.assemble(
            grandmaster_state_text(unit), plain_text(since), plain_text("".join(f", {word}" for word in told))
        ),
    ]


def snmp_failure(unit: GrandmasterState) -> str | None:
    """Why there is no state, where the unit's web interface alone answers."""
    if unit.clock_state is not None:
        return None
    return next((note.removeprefix("snmp=") for note in unit.unknown if note.startswith("snmp=")), None)


def grandmaster_state_text(unit: GrandmasterState) -> Text:
    if unit.clock_state is None:
        known = "" if unit.clock_class is None else f", class {unit.clock_class}"
        return plain_text(f"state not provided{known}", "yellow")
    return plain_text(unit.clock_state.replace("_", " ").upper(), "green" if unit.clock_state == "locked" else "yellow")


def gnss_text(unit: GrandmasterState) -> str | None:
    """An antenna that is not well says more than the receiver that it feeds."""
    if unit.antenna not in (None, "ok"):
        return f"antenna {unit.antenna}"
    return None if unit.gnss_state is None else f"GNSS {unit.gnss_state.replace('_', ' ')}"


def alarm_count_text(number: int) -> str:
    return "no alarm" if number == 0 else "1 alarm" if number == 1 else f"{number} alarms"


def utc_error_text(unit: GrandmasterState) -> str:
    """Its own error against UTC now; what a poll told holds for a while only, and within the holdover budget."""
    holds = unit.age_ns is not None and unit.age_ns <= GRANDMASTER_EXPIRES_AFTER_NS and holdover_left_ns(unit) != 0
    now_ns = bound_now_ns(unit.utc, unit.age_ns) if holds else None
    return "UTC unbounded" if now_ns is None else f"UTC +-{duration_text(now_ns)}"


def holdover_left_ns(unit: GrandmasterState) -> int | None:
    if unit.holdover_left_ns is None or unit.age_ns is None:
        return None
    return max(0, unit.holdover_left_ns - unit.age_ns)


def utc_time_text(realtime_ns: int, now_ns: int) -> str:
    """The time of day in UTC, with its date where it is not of the last 20 hours."""
    at = datetime.fromtimestamp(realtime_ns // 1_000_000_000, UTC)
    return f"{at:%H:%MZ}" if 0 <= now_ns - realtime_ns < 72_000_000_000_000 else f"{at:%Y-%m-%d %H:%MZ}"


def clock_state_cell(unit: GrandmasterState) -> Text:
    return plain_text(unit.clock_state or "unknown", "green" if unit.clock_state == "locked" else "yellow")


def job_row(job: JobState) -> list[Text]:
    return [plain_text(job.job), plain_text(job_line(job))]


def reasons_in_node_block(node: NodeState) -> set[str]:
    """The reasons that the node's own block shows already."""
    return {node.reason, *(source.reason or "" for source in node.sources)}


def finding_row(finding: FindingMessage, told: Iterable[str]) -> list[Text]:
    what = " -> ".join(step.text for step in finding.chain) or (
        finding.cause if finding.evidence in told else finding.evidence
    )
    return [
        plain_text(finding.subject),
        plain_text(finding.id, SEVERITIES[finding.severity]),
        Text("\n", no_wrap=True, overflow="ellipsis").join([plain_text(what), plain_text(finding.remedy, "dim")]),
    ]


def titled_section(title: str, rows: Sequence[list[Text]], most: int = MAX_ROWS) -> list[RenderableType]:
    """One line a row, the last cell cut where the screen ends; the title counts those left out. Nothing without rows."""
    if not rows:
        return []
    table = Table.grid(padding=(0, 2))
    for row in rows[:most]:
        for cell in row:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*row)
    return [Text(f"{title}: {most} of {len(rows)}" if len(rows) > most else title, "dim"), table]


def status_text(node: NodeState) -> Text:
    """Against the grandmaster, unless the node knows UTC alone."""
    return Text(f"{'UTC ' if node.knows_utc_alone else ''}{node.main_status}", STYLES[node.main_status])


def plain_text(text: str, style: str = "") -> Text:
    """Text of whatever origin: no markup, and nothing that a terminal would obey."""
    return Text("".join(each if each.isprintable() else "?" for each in text), style)


def local_time_text(realtime_ns: int) -> str:
    return f"{datetime.fromtimestamp(realtime_ns // 1_000_000_000).astimezone():%Y-%m-%d %H:%M:%S %Z}"


@dataclass(frozen=True, slots=True)
class DemoNodeState:
    """A node of the demo: what its daemon answers, None while it starts, and the true offset of its clock."""

    name: str
    answers: DaemonReplies | None
    true_offset_ns: int


#: Why the demo can tell a true offset.
TRUTHS = {
    "real": "true offset: both have one clock, and a relay shifts node-b's grandmaster",
    "simulated": "true offset: what the simulated ptp4l was told, before its noise",
}


def demo_screen(seen: Sequence[DemoNodeState], ptp: str, page: str) -> RenderableType:
    """The demo's live view. The first node's daemon is the one that polls grandmasters and has the hub."""
    hub = seen[0].answers
    return Group(
        Text.assemble(("timesyncd demo", "bold"), f", {ptp} ptp4l, simulated grandmasters: {page}"),
        Text(),
        table_with_headings(["node", "status", "bound", "offset", "delay", "true offset"], map(demo_node_row, seen)),
        *([plain_text(why, "dim") for each in seen if (why := unready_reason(each))] or [Text(TRUTHS[ptp], "dim")]),
        Text(),
        table_with_headings(
            ["grandmaster", "state", "class", "alarms"], map(demo_grandmaster_row, hub.grandmasters if hub else [])
        ),
        *(demo_job(job) for job in (hub.jobs if hub else [])),
        Text("\nCtrl-C ends the demo; nothing stays behind", "dim"),
    )


def table_with_headings(titles: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    table = Table(*titles, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def demo_node_row(seen: DemoNodeState) -> list[Text]:
    if seen.answers is None:
        return [Text(seen.name), Text("-", "dim")]
    node = seen.answers.node
    sources = [source for source in node.sources if source.offset_ns is not None]
    row = [plain_text(node.node), status_text(node)]
    now_ns = bound_now_ns(node.gm, node.age_ns)
    if now_ns is None or not sources:
        return row
    held = abs(seen.true_offset_ns) <= now_ns
    return [
        *row,
        bound_text(node.gm, node.age_ns),
        Text(duration_text(sources[0].offset_ns)),
        Text(duration_text(sources[0].path_delay_ns)),
        Text(
            f"{duration_text(seen.true_offset_ns)}, {'inside' if held else 'OUTSIDE'} the bound",
            "green" if held else "bold red",
        ),
    ]


def unready_reason(seen: DemoNodeState) -> str:
    reason = seen.answers.node.reason if seen.answers else "its daemon does not answer yet"
    return f"{seen.name}: {reason}" if reason else ""


def demo_grandmaster_row(unit: GrandmasterState) -> list[Text]:
    told = "; ".join(alarm.text for alarm in unit.alarms or []) or ("not provided" if unit.alarms is None else "none")
    alarms = told if unit.reachable else unit.reason or ""
    clock_class = "unknown" if unit.clock_class is None else str(unit.clock_class)
    return [
        plain_text(unit.name),
        clock_state_cell(unit),
        Text(clock_class),
        plain_text(alarms, "yellow" if unit.alarms else ""),
    ]


def demo_job(job: JobState) -> RenderableType:
    timed = f"timed: all ranks go on at one instant, slack {duration_text(job.plan.slack_ns)}"
    table = Table.grid(padding=(0, 2))
    table.add_row()
    table.add_row(
        plain_text(f"job {job.job}", "bold"), plain_text(f"{job.world_size} ranks, {job.steps_complete} steps")
    )
    table.add_row("slow rank", plain_text(job.verdict, "" if job.straggler_rank is None else "yellow"))
    table.add_row("sync overhead", f"{percent(job.sync_overhead)} of the time is spent in barriers")
    table.add_row("clocks", plain_text(f"{agreement(job)}: {job.alignment_reason}"))
    table.add_row("barrier", plain_text(timed if job.plan.mode == "timed" else f"plain: {job.plan.reason}"))
    return table
