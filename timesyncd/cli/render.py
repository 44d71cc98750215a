"""
The screens of `timesyncd status` and of the demo: a daemon's replies on a terminal of 80 columns and 24 lines.

Strings that came over the network are printed as text, never as markup or control sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from timesyncd.bound import Bound, Reason, growth_ns
from timesyncd.cli.budget import current_bound_lines, knows_own_utc, node_forecast_text
from timesyncd.cli.render_job import agreement, job_line, percent
from timesyncd.messages.cost import DaemonCost
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import OK, BoundMessage, FindingMessage, GrandmasterState, NodeState, SourceState
from timesyncd.messages.overview import Overview
from timesyncd.units import duration_text, span_text

#: Rows of one section, so that all sections fit one screen; the rows that need attention come first.
MAX_ROWS = 3
MAX_NODES = 5
#: Lines of findings, the first finding in any case; and what a line holds of a remedy, with words that do not break.
FINDINGS_HEIGHT = 4
REMEDY_WIDTH = 72

STYLES = {"SYNCHRONIZED": "bold green", "HOLDOVER": "bold yellow", "DISRUPTED": "bold red", "UNKNOWN": "bold red"}
#: Findings whose evidence is the reason of a node or of one of its sources.
_FINDINGS_OF_REASONS = frozenset({"source-lost", "clock-holdover", "clock-unknown", "clock-disrupted"})
SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": ""}


@dataclass(frozen=True, slots=True)
class DaemonReplies:
    """The replies of one daemon; `findings` are the active ones."""

    node: NodeState
    nodes: list[NodeState]
    grandmasters: list[GrandmasterState]
    jobs: list[JobState]
    findings: list[FindingMessage]
    overview: Overview | None = None
    cost: DaemonCost | None = None

    @property
    def node_limit_ns(self) -> int | None:
        """The operator's limit of a node's bound."""
        return None if self.overview is None else self.overview.headline.limits.node_bound_ns

    @classmethod
    def of(cls, answer: dict[str, Any]) -> DaemonReplies:
        """From the JSON of `client.api.fetch_all`. Raises pydantic.ValidationError."""
        findings = [FindingMessage.model_validate(each) for each in answer["findings"]]
        return cls(
            NodeState.model_validate(answer["node"]),
            [NodeState.model_validate(each) for each in answer["nodes"]],
            [GrandmasterState.model_validate(each) for each in answer["grandmasters"]],
            [JobState.model_validate(each) for each in answer["jobs"]],
            [finding for finding in findings if finding.until_realtime_ns is None],
            Overview.model_validate(answer["overview"]) if "overview" in answer else None,
            DaemonCost.model_validate(answer["cost"]) if answer.get("cost") is not None else None,
        )


def screen(answer: dict[str, Any]) -> list[RenderableType]:
    """The daemon's own node, then the other nodes, the grandmasters, the jobs and the findings."""
    replies = DaemonReplies.of(answer)
    others = [node for node in replies.nodes if node.node != replies.node.node]
    others.sort(key=worst_first)
    grandmasters = sorted(replies.grandmasters, key=lambda each: each.clock_state == "locked" and not each.alarms)
    findings = sorted(
        replies.findings, key=lambda each: (list(SEVERITIES).index(each.severity), each.since_realtime_ns)
    )
    return [
        node_block(replies.node, replies.node_limit_ns),
        *(fleet_lines(replies.overview) if replies.overview is not None and is_fleet(replies) else []),
        *titled_section("nodes", [node_row(node) for node in others], MAX_NODES if is_fleet(replies) else MAX_ROWS),
        *titled_section("grandmasters", [grandmaster_row(each) for each in grandmasters]),
        *titled_section("jobs", [job_row(job) for job in replies.jobs]),
        *findings_section([finding_row(finding, replies.node) for finding in findings]),
        *([plain_text(cost_text(replies.cost), "dim")] if replies.cost is not None else []),
    ]


def cost_text(cost: DaemonCost) -> str:
    """What the daemon costs its node, in one line."""
    cpu = "CPU not measured yet" if cost.cpu_share is None else f"{cost.cpu_share:.1%} of a core"
    memory = "" if cost.memory_bytes is None else f", {cost.memory_bytes / 1_048_576:.0f} MiB"
    rates = [(each.source, each.polls_per_s) for each in cost.sources if each.polls_per_s]
    polled = ", ".join(f"{source} {rate:.1f}" for source, rate in sorted(rates, key=lambda each: -each[1])[:3])
    spread = f"; polls {cost.poll_factor} times less often than configured" if cost.poll_factor > 1 else ""
    return f"this daemon: {cpu}{memory}{f'; polls a second: {polled}' if polled else ''}{spread}"


def worst_first(node: NodeState) -> tuple[int, int, str]:
    """The order in which nodes need attention: by status, and of one status the widest bound first."""
    bound_ns = bound_now_ns(node.main_bound, node.age_ns)
    return -list(STYLES).index(node.main_status), -(bound_ns or 0), node.node


def is_fleet(replies: DaemonReplies) -> bool:
    """Whether the daemon is a hub that knows more nodes than its own, which counts if it has a clock source."""
    own = 1 if replies.node.sources else 0
    return replies.overview is not None and replies.overview.headline.nodes > own


def fleet_lines(overview: Overview) -> list[RenderableType]:
    """The headline, and the nodes by status."""
    style = {"exceeded": "bold red", "unknown": "bold red"}.get(overview.headline.verdict, "bold")
    counts = [f"{count:,} {name}" for name, count in overview.statuses.items() if count]
    return [plain_text(overview.headline.text, style), plain_text(", ".join(counts), "dim")]


def node_block(node: NodeState, limit_ns: int | None) -> RenderableType:
    """`limit_ns`: the operator's limit of its bound."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    table.add_row(plain_text(node.node, "bold"), headline(node))
    if node.reason:
        table.add_row("reason", plain_text(node.reason))
    for name, text in _bound_rows(node):
        table.add_row(name, text)
    if (expected := node_forecast_text(node, limit_ns)) is not None:
        table.add_row("forecast", f"without new samples: {expected}", style="dim")
    if node.terms:
        table.add_row("terms", plain_text(terms_text(node)), style="dim")
    explained = explained_source(node)
    for source in node.sources:
        table.add_row(plain_text(source.name), source_text(source, with_reason=source is not explained), style="dim")
    if node.falsetickers:
        names = ", ".join(node.falsetickers)
        table.add_row("falseticker", plain_text(f"{names}: disagrees with the majority of the sources", "yellow"))
    if node.sources_contradict:
        table.add_row("conflict", Text("the sources contradict each other: at least one of them is wrong", "yellow"))
    return table


def _bound_rows(node: NodeState) -> Iterator[tuple[str, Text]]:
    """The bounds, and the reason of an unknown one unless a line above it has printed that reason."""
    if node.knows_utc_alone:
        of_utc = f" of UTC{utc_note(node)}; the node follows no grandmaster"
        yield "within", Text.assemble(bound_text(node.utc, node.age_ns), plain_text(of_utc))
        return
    printed = {node.reason_code}
    if node.reason_code != OK and node.grandmaster_identity is None:
        printed.add(Reason.NO_GRANDMASTER.code)  # the node's reason explains why it follows none
    if is_new_information(node.gm, printed):
        followed = plain_text(f" of {followed_text(node)}" if node.grandmaster_identity else "")
        yield "within", Text.assemble(bound_text(node.gm, node.age_ns), followed)
    parent = current_bound_lines(node)[0]
    if parent.hard_ns is not None and node.gm is not None and node.gm.bound_ns is None:
        parent_text = f" {node.parent_identity}" if node.parent_identity else ", whose identity is unknown"
        of_parent = plain_text(f" of the PTP parent{parent_text}")
        yield "within", Text.assemble((f"+-{duration_text(parent.hard_ns)}", "bold"), of_parent)
    if node.grandmaster_summary:
        yield "grandmaster", plain_text(node.grandmaster_summary)
    if is_new_information(node.utc, printed | {node.gm.reason_code if node.gm else OK}):
        yield "UTC", Text.assemble(bound_text(node.utc, node.age_ns), plain_text(utc_note(node)))


def utc_note(node: NodeState) -> str:
    """Why the UTC bound is not the deciding source's own; empty where it is, or where UTC is unknown."""
    if node.utc is None or node.utc.bound_ns is None:
        return ""
    if node.sources_contradict:
        return ", whichever source is right"
    names = ", ".join(node.utc_narrowed_by)
    return f", {'narrowed ' if knows_own_utc(node) else ''}by {names}" if names else ""


def headline(node: NodeState) -> Text:
    """The status and when it began."""
    since = f" since {local_time_text(node.since_realtime_ns)}" if node.since_realtime_ns else ""
    return Text.assemble(status_text(node), since)


def is_new_information(message: BoundMessage | None, printed: set[str]) -> bool:
    """Whether the bound is known, or unknown for a reason whose code is not among the `printed` ones."""
    return message is not None and (message.bound_ns is not None or message.reason_code not in printed)


def explained_source(node: NodeState) -> SourceState | None:
    """
    The source that the node's reason is about: the first one that gives no samples for that reason; None: no source.
    """
    if node.reason_code == OK:
        return None
    return next((source for source in node.sources if source.reason_code == node.reason_code), None)


def followed_text(node: NodeState) -> str:
    """The grandmaster that the node follows, and the parent clock between them."""
    through = "" if node.parent_identity == node.grandmaster_identity else f", through parent {node.parent_identity}"
    name = "" if node.grandmaster is None else f"{node.grandmaster}, "
    return f"grandmaster {name}{node.grandmaster_identity}{through}"


def terms_text(node: NodeState) -> str:
    """The terms of the hard parent bound, the largest first, with its growth since the sample."""
    terms = dict(node.terms)
    if node.parent and node.age_ns is not None:
        terms["growth"] = growth_ns(node.parent.growth_ppb, node.age_ns)
    largest_first = sorted(terms.items(), key=lambda term: -term[1])
    return " + ".join(f"{name.replace('_', ' ')} {duration_text(ns)}" for name, ns in largest_first if ns)


def source_text(source: SourceState, with_reason: bool = True) -> Text:
    """
    `with_reason` False: a line above has printed the source's reason. The values of a lost source are marked as last
    known.
    """
    known = ", ".join(part for part in (source.port_state, measured_text(source), source.detail) if part)
    is_old = source.reason_code != OK or not source.reachable
    parts = [source.driver, f"last known {known}" if known and is_old else known]
    if source.reason and with_reason:
        parts.append(source.reason)
    if not source.reachable and source.since_poll_ns is not None:
        parts.append(f"last polled {span_text(source.since_poll_ns)} ago")
    return plain_text(", ".join(part for part in parts if part))


def measured_clock(source: SourceState) -> str:
    """ " of phc:0": with hardware timestamps ptp4l measures the network card's clock, and the bound is the system clock's."""
    return "" if source.clock in (None, "realtime") else f" of {source.clock}"


def measured_text(source: SourceState) -> str | None:
    if source.offset_ns is None:
        return None
    error = "" if source.error_ns is None else f" +-{duration_text(source.error_ns)}"
    delay = "" if source.path_delay_ns is None else f", path delay {duration_text(source.path_delay_ns)}"
    return f"offset{measured_clock(source)} {duration_text(source.offset_ns)}{error}{delay}"


def bound_text(message: BoundMessage | None, age_ns: int | None) -> Text:
    now_ns = bound_now_ns(message, age_ns)
    if now_ns is not None:
        return Text(f"+-{duration_text(now_ns)}", "bold")
    return plain_text(f"unknown: {message.reason}" if message and message.reason else "unknown")


def bound_now_ns(message: BoundMessage | None, age_ns: int | None) -> int | None:
    """The bound in ns at this age; None: unknown."""
    if message is None or age_ns is None:
        return None
    return Bound(message.bound_ns, message.growth_ppb).at(age_ns)


def node_row(node: NodeState) -> list[Text]:
    return [
        plain_text(node.node),
        status_text(node),
        plain_text(node.reason) if node.reason else bound_text(node.main_bound, node.age_ns),
    ]


def grandmaster_row(grandmaster: GrandmasterState) -> list[Text]:
    """
    State, reference, error against UTC, holdover budget and alarms, in the order of urgency: the terminal cuts the
    line.
    """
    if not grandmaster.reachable:
        return [
            plain_text(grandmaster.name),
            Text.assemble(
                ("not reachable", "yellow"), plain_text(f": {grandmaster.reason}" if grandmaster.reason else "")
            ),
        ]
    if (failure := snmp_failure(grandmaster)) is not None:
        return [plain_text(grandmaster.name), Text.assemble(("state not read", "yellow"), plain_text(f": {failure}"))]
    since_ns = grandmaster.clock_state_since_realtime_ns
    since = "" if since_ns is None else f" since {utc_time_text(since_ns, grandmaster.published_realtime_ns)}"
    known = [
        gnss_text(grandmaster),
        None if grandmaster.utc is None else utc_error_text(grandmaster),
        None if (left_ns := grandmaster.current_holdover_left_ns) is None else f"budget left {span_text(left_ns)}",
        None if grandmaster.alarms is None else alarm_count_text(len(grandmaster.alarms)),
    ]
    rest = "".join(f", {text}" for text in known if text)
    return [
        plain_text(grandmaster.name),
        Text.assemble(grandmaster_state_text(grandmaster), plain_text(f"{since}{rest}")),
    ]


def snmp_failure(grandmaster: GrandmasterState) -> str | None:
    """Why SNMP gave no state although the grandmaster is reachable over HTTPS; None: SNMP did not fail."""
    return grandmaster.snmp_error if grandmaster.clock_state is None else None


def grandmaster_state_text(grandmaster: GrandmasterState) -> Text:
    if grandmaster.clock_state is None:
        known = "" if grandmaster.clock_class is None else f", class {grandmaster.clock_class}"
        return plain_text(f"state not provided{known}", "yellow")
    return plain_text(
        grandmaster.clock_state.replace("_", " ").upper(), "green" if grandmaster.clock_state == "locked" else "yellow"
    )


def gnss_text(grandmaster: GrandmasterState) -> str | None:
    """The antenna's state if it is faulty, else that of the GNSS receiver, which follows from it."""
    if grandmaster.antenna not in (None, "ok"):
        return f"antenna {grandmaster.antenna}"
    return None if grandmaster.gnss_state is None else f"GNSS {grandmaster.gnss_state.replace('_', ' ')}"


def alarm_count_text(number: int) -> str:
    return "no alarms" if number == 0 else "1 alarm" if number == 1 else f"{number} alarms"


def utc_error_text(grandmaster: GrandmasterState) -> str:
    """The grandmaster's own error against UTC now; unbounded if the last poll is too old or no budget is left."""
    now_ns = grandmaster.current_utc_bound_ns
    return "UTC unbounded" if now_ns is None else f"UTC +-{duration_text(now_ns)}"


def utc_time_text(realtime_ns: int, now_ns: int) -> str:
    """The time of day in UTC, with its date if it is not within the 20 hours before `now_ns`."""
    at = datetime.fromtimestamp(realtime_ns // 1_000_000_000, UTC)
    return f"{at:%H:%MZ}" if 0 <= now_ns - realtime_ns < 72_000_000_000_000 else f"{at:%Y-%m-%d %H:%MZ}"


def clock_state_cell(grandmaster: GrandmasterState) -> Text:
    return plain_text(
        grandmaster.clock_state or "unknown", "green" if grandmaster.clock_state == "locked" else "yellow"
    )


def job_row(job: JobState) -> list[Text]:
    return [plain_text(job.job), plain_text(job_line(job))]


def finding_row(finding: FindingMessage, node: NodeState) -> list[Text]:
    """
    The chain of causes, or the evidence; the cause if the block of `node` has printed the evidence as a reason; and the
    remedy.
    """
    in_block = {node.node, *(source.name for source in node.sources)}
    is_printed = finding.id in _FINDINGS_OF_REASONS and finding.subject in in_block
    what = " -> ".join(step.text for step in finding.chain) or (finding.cause if is_printed else finding.evidence)
    return [
        plain_text(finding.subject),
        plain_text(finding.id, SEVERITIES[finding.severity]),
        plain_text(what),
        plain_text(finding.remedy, "dim"),
    ]


def findings_section(rows: Sequence[list[Text]]) -> list[RenderableType]:
    """
    A line for each finding, and under it the whole remedy, which wraps: what is cut cannot be done. The title names those for
    which there is no room. Empty without rows.
    """
    if not rows:
        return []
    lines: list[RenderableType] = []
    count = height = 0
    for subject, id, what, remedy in rows:
        height += 1 + -(-len(remedy) // REMEDY_WIDTH)
        if count and height > FINDINGS_HEIGHT:
            break
        count += 1
        line = Text("  ").join([subject, id, what])
        line.no_wrap, line.overflow = True, "ellipsis"
        lines += [line, Padding(remedy, (0, 0, 0, 2), expand=False)]
    if len(rows) == count:
        return [Text("findings", "dim"), *lines]
    others = Text(", ").join(Text(" ").join([subject, id]) for subject, id, *_ in rows[count:])
    title = Text(f"findings: {count} of {len(rows)}; also ", "dim") + others
    title.no_wrap, title.overflow = True, "ellipsis"
    return [title, *lines]


def titled_section(title: str, rows: Sequence[list[Text]], most: int = MAX_ROWS) -> list[RenderableType]:
    """One line per row, cut at the edge of the screen; the title counts omitted rows. Empty without rows."""
    if not rows:
        return []
    table = Table.grid(padding=(0, 2))
    for row in rows[:most]:
        for cell in row:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*row)
    return [Text(f"{title}: {most} of {len(rows)}" if len(rows) > most else title, "dim"), table]


def status_text(node: NodeState) -> Text:
    """The status against the grandmaster, or against UTC where the node knows UTC alone."""
    return Text(f"{'UTC ' if node.knows_utc_alone else ''}{node.main_status}", STYLES[node.main_status])


def plain_text(text: str, style: str = "") -> Text:
    """Text of any origin: without markup, and with "?" for each control character."""
    return Text("".join(each if each.isprintable() else "?" for each in text), style)


def local_time_text(realtime_ns: int) -> str:
    return f"{datetime.fromtimestamp(realtime_ns // 1_000_000_000).astimezone():%Y-%m-%d %H:%M:%S %Z}"


@dataclass(frozen=True, slots=True)
class DemoNodeState:
    """A node of the demo: its daemon's replies (None while it starts) and the true offset of its clock."""

    name: str
    replies: DaemonReplies | None
    true_offset_ns: int


#: By the kind of ptp4l: how the demo knows the true offset.
TRUTHS = {
    "real": "true offset: both nodes read one clock; a relay shifts node-b's grandmaster",
    "simulated": "true offset: the value set in the simulated ptp4l, before its noise",
}


def demo_screen(nodes: Sequence[DemoNodeState], ptp: str, page: str) -> RenderableType:
    """The demo's live view. The first node's daemon is the one that polls grandmasters and has the hub."""
    hub = nodes[0].replies
    return Group(
        Text.assemble(("timesyncd demo", "bold"), f", {ptp} ptp4l, simulated grandmasters: {page}"),
        Text(),
        table_with_headings(["node", "status", "bound", "offset", "delay", "true offset"], map(demo_node_row, nodes)),
        *([plain_text(why, "dim") for each in nodes if (why := unready_reason(each))] or [Text(TRUTHS[ptp], "dim")]),
        Text(),
        table_with_headings(
            ["grandmaster", "state", "class", "alarms"], map(demo_grandmaster_row, hub.grandmasters if hub else [])
        ),
        *(demo_job(job) for job in (hub.jobs if hub else [])),
        Text("\nCtrl-C ends the demo and removes all that it started", "dim"),
    )


def table_with_headings(titles: Sequence[str], rows: Iterable[Sequence[Text]]) -> Table:
    table = Table(*titles, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def demo_node_row(state: DemoNodeState) -> list[Text]:
    if state.replies is None:
        return [Text(state.name), Text("-", "dim")]
    node = state.replies.node
    sources = [source for source in node.sources if source.offset_ns is not None]
    row = [plain_text(node.node), status_text(node)]
    now_ns = bound_now_ns(node.gm, node.age_ns)
    if now_ns is None or not sources:
        return row
    is_inside = abs(state.true_offset_ns) <= now_ns
    return [
        *row,
        bound_text(node.gm, node.age_ns),
        Text(duration_text(sources[0].offset_ns)),
        Text(duration_text(sources[0].path_delay_ns)),
        Text(
            f"{duration_text(state.true_offset_ns)}, {'inside' if is_inside else 'OUTSIDE'} the bound",
            "green" if is_inside else "bold red",
        ),
    ]


def unready_reason(state: DemoNodeState) -> str:
    """Why the node is not synchronized; empty: it is."""
    reason = state.replies.node.reason if state.replies else "the daemon does not reply yet"
    return f"{state.name}: {reason}" if reason else ""


def demo_grandmaster_row(grandmaster: GrandmasterState) -> list[Text]:
    texts = "; ".join(alarm.text for alarm in grandmaster.alarms or []) or (
        "not provided" if grandmaster.alarms is None else "none"
    )
    alarms = texts if grandmaster.reachable else grandmaster.reason or ""
    clock_class = "unknown" if grandmaster.clock_class is None else str(grandmaster.clock_class)
    return [
        plain_text(grandmaster.name),
        clock_state_cell(grandmaster),
        Text(clock_class),
        plain_text(alarms, "yellow" if grandmaster.alarms else ""),
    ]


def demo_job(job: JobState) -> RenderableType:
    timed = f"timed: all ranks continue at one instant, slack {duration_text(job.plan.slack_ns)}"
    table = Table.grid(padding=(0, 2))
    table.add_row()
    table.add_row(
        plain_text(f"job {job.job}", "bold"),
        plain_text(f"{job.world_size} ranks, {job.steps_complete} synchronizations"),
    )
    table.add_row("straggler", plain_text(job.verdict, "" if job.straggler_rank is None else "yellow"))
    table.add_row("sync overhead", f"{percent(job.sync_overhead)} of the time is spent in barriers")
    table.add_row("clocks", plain_text(f"{agreement(job)}: {job.alignment_reason}"))
    table.add_row("barrier", plain_text(timed if job.plan.mode == "timed" else f"plain: {job.plan.reason}"))
    return table
