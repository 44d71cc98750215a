"""A node, the grandmasters, the jobs and what is wrong, on one screen of a terminal."""

from __future__ import annotations

import json
from datetime import datetime
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from timesyncd.errors import Unreachable
from timesyncd.messages import BoundMessage, FindingMessage, GrandmasterState, JobState, NodeState
from timesyncd.units import duration_text


def fetch(url: str) -> dict[str, Any]:
    """Node, grandmasters, jobs and findings as JSON. Raises Unreachable when no daemon answers there."""
    answer = {}
    for what in ("node", "nodes", "grandmasters", "jobs", "findings"):
        try:
            with urlopen(f"{url.rstrip('/')}/api/v1/{what}", timeout=5) as response:
                answer[what] = json.load(response)
        except (OSError, HTTPException, ValueError) as error:
            raise Unreachable(
                f"{url}: no timesyncd answers ({error}); is it running? systemctl status timesyncd"
            ) from error
    return answer


def screen(answer: dict[str, Any]) -> list[RenderableType]:
    """The one screen, from what a daemon's HTTP side answers to node, nodes, grandmasters, jobs and findings."""
    parts: list[RenderableType] = [node_panel(NodeState.model_validate(answer["node"]))]
    others = [NodeState.model_validate(each) for each in answer["nodes"] if each["node"] != answer["node"]["node"]]
    units = [GrandmasterState.model_validate(each) for each in answer["grandmasters"]]
    jobs = [JobState.model_validate(each) for each in answer["jobs"]]
    findings = [FindingMessage.model_validate(each) for each in answer["findings"]]
    parts += [other_node_line(each) for each in others]
    parts += [grandmaster_line(each) for each in units]
    parts += [job_line(each) for each in jobs]
    return parts + [finding_line(each) for each in findings if each.until_realtime_ns is None]


STYLES = {"SYNCHRONIZED": "bold green", "HOLDOVER": "bold yellow", "DISRUPTED": "bold red", "UNKNOWN": "bold red"}


def node_panel(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    since = f" since {_when(node.since_realtime_ns)}" if node.since_realtime_ns else ""
    table.add_row(node.node, f"[{STYLES[node.status]}]{node.status}[/]{since}{_because(node.reason)}")
    if node.grandmaster_identity:
        through = f" through {node.parent_identity}" if node.parent_identity != node.grandmaster_identity else ""
        table.add_row("to", f"grandmaster {node.grandmaster_identity}{through}")
    table.add_row(
        "bound", f"{bound_text(node.gm, node.age_ns)} to the grandmaster; UTC {bound_text(node.utc, node.age_ns)}"
    )
    if node.terms:
        terms = sorted(node.terms.items(), key=lambda term: -term[1])
        table.add_row("made of", ", ".join(f"{name} {duration_text(ns)}" for name, ns in terms if ns))
    for source in node.sources:
        offset = f"offset {duration_text(source.offset_ns)}, path delay {duration_text(source.path_delay_ns)}"
        state = source.port_state or "no sample yet"
        table.add_row(source.name, f"{state}, {offset}{_because(source.reason)}")
    return table


def bound_text(bound: BoundMessage | None, age_ns: int | None) -> str:
    if bound is None or bound.bound_ns is None or age_ns is None:
        return f"[red]unknown[/]{_because(bound.reason if bound else '')}"
    grown_ns = bound.bound_ns + bound.growth_ppb * age_ns // 1_000_000_000
    return f"[bold]+-{duration_text(grown_ns)}[/]"


def other_node_line(node: NodeState) -> str:
    return f"node {node.node}: [{STYLES[node.status]}]{node.status}[/], {bound_text(node.gm, node.age_ns)}{_because(node.reason)}"


def grandmaster_line(unit: GrandmasterState) -> str:
    if not unit.reachable:
        return f"grandmaster {unit.name}: [yellow]not reachable[/]{_because(unit.reason)}"
    told = [
        unit.clock_state,
        None if unit.clock_class is None else f"class {unit.clock_class}",
        None if unit.gnss_state is None else f"GNSS {unit.gnss_state}",
        None if unit.alarms is None else f"{len(unit.alarms)} alarms",
    ]
    return f"grandmaster {unit.name}: {', '.join(word for word in told if word) or 'tells nothing that is known'}"


def job_line(job: JobState) -> str:
    overhead = "unknown" if job.sync_overhead is None else f"{job.sync_overhead:.1%}"
    slow = "no straggler" if job.slow_rank is None else f"[yellow]slow rank {job.slow_rank}[/]"
    alignment = duration_text(job.alignment_ns) + _because(job.alignment_reason if job.alignment_ns is None else "")
    return (
        f"job {_plain(job.job)}: synchronization {overhead}, {slow}, {job.world_size} ranks aligned within {alignment}"
    )


def finding_line(finding: FindingMessage) -> str:
    return f"[yellow]{finding.id}[/] {_plain(finding.subject)}: {_plain(finding.evidence)}\n    {finding.cause}; {finding.remedy}"


def _because(reason: str | None) -> str:
    return f" ({_plain(reason)})" if reason else ""


def _plain(text: str) -> str:
    """What came over a wire is text, never markup."""
    return escape(text)


def _when(realtime_ns: int) -> str:
    return f"{datetime.fromtimestamp(realtime_ns // 1_000_000_000).astimezone():%Y-%m-%d %H:%M:%S %Z}"
