"""What `timesyncd top` shows: a daemon's replies of one round, and the rows of each view. The rows are pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich.text import Text

from timesyncd.cli.render import SEVERITIES, STYLES, plain_text
from timesyncd.cli.render_job import percent
from timesyncd.client.api import fetch_part
from timesyncd.messages.fleet import FleetMap
from timesyncd.messages.overview import Overview
from timesyncd.units import duration_text, rounded_up_text, span_text

View = Literal["fleet", "nodes", "jobs", "grandmasters"]
VIEWS: tuple[View, ...] = ("fleet", "nodes", "jobs", "grandmasters")

#: A daemon that gave no reply for so long is silent: nothing of it is shown as present.
SILENT_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """The replies of one round. `truths_ns` are the nodes' true offsets, where they are known: in the demo."""

    overview: Overview
    map: FleetMap
    truths_ns: Mapping[str, int] = field(default_factory=dict)


class DaemonFeed:
    """Asks one daemon. `truths_ns` and `story` are the demo's: true offsets, and the newest announcement."""

    def __init__(
        self, page: str, truths_ns: Mapping[str, int] | None = None, story: Callable[[], str] = lambda: ""
    ) -> None:
        self.page = page
        self.story = story
        self._truths_ns = truths_ns or {}

    def round(self) -> Round:
        """One round. Blocks; raises Unreachable."""
        overview = Overview.model_validate(fetch_part(self.page, "fleet/overview"))
        return Round(overview, FleetMap.model_validate(fetch_part(self.page, "fleet/map")), self._truths_ns)

    def detail(self, view: View, name: str) -> Any:
        """All of one node, grandmaster or job as JSON. Blocks; raises Unreachable."""
        return fetch_part(self.page, f"{view}/{name}")


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One line of a view: the `name` that a drill-down asks for, its cells, and the values behind them."""

    name: str
    cells: tuple[Text, ...]
    values: tuple[Any, ...]

    def matches(self, part: str) -> bool:
        """Whether any cell has this text."""
        return part.lower() in " ".join(cell.plain for cell in self.cells).lower()


TITLES: dict[View, tuple[str, ...]] = {
    "fleet": ("place", "nodes", "no bound", "widest", "grandmaster", "parent clock"),
    "nodes": ("node", "status", "bound", "place", "true offset"),
    "jobs": ("job", "ranks", "clocks", "overhead", "verdict"),
    "grandmasters": ("grandmaster", "state", "GNSS", "UTC error", "holdover left", "alarms", "followers"),
}

_STATUS_ORDER = {name: at for at, name in enumerate(reversed(STYLES))}
#: Wider than any bound: what is unknown comes first where the widest does.
_UNKNOWN = 1 << 70


def rows(view: View, round: Round) -> list[ViewRow]:
    """The view's rows, in the order of urgency."""
    return {"fleet": _places, "nodes": _nodes, "jobs": _jobs, "grandmasters": _grandmasters}[view](round)


def visible(all_rows: Sequence[ViewRow], column: int | None, descending: bool, part: str) -> list[ViewRow]:
    """The rows that match, sorted by a column (None: by urgency, as they come)."""
    matching = [row for row in all_rows if row.matches(part)]
    if column is None:
        return matching
    return sorted(matching, key=lambda row: row.values[column], reverse=descending)


def _places(round: Round) -> list[ViewRow]:
    found = []
    for group in round.overview.chain:
        parent = "" if group.parent_identity == group.grandmaster_identity else group.parent_identity
        names = (group.place or "-", group.grandmaster or "none", parent)
        cells = (
            plain_text(names[0]),
            Text(f"{group.nodes:,}"),
            Text(f"{group.without_bound:,}", "bold red" if group.without_bound else "dim"),
            _bound(group.bound_ns),
            plain_text(names[1]),
            plain_text(names[2]),
        )
        values = (names[0], group.nodes, group.without_bound, _wide(group.bound_ns), *names[1:])
        found.append(ViewRow(group.place, cells, values))
    return sorted(found, key=lambda row: (-row.values[2], -row.values[3], row.values[0]))


def _nodes(round: Round) -> list[ViewRow]:
    found = []
    for place, nodes in round.map.places.items():
        for name, status, bound_ns in nodes:
            truth_ns = round.truths_ns.get(name)
            cells = (
                plain_text(name),
                Text(status, STYLES[status]),
                _bound(bound_ns),
                plain_text(place or "-"),
                truth_text(truth_ns, bound_ns),
            )
            values = (name, _STATUS_ORDER[status], _wide(bound_ns), place, 0 if truth_ns is None else truth_ns)
            found.append(ViewRow(name, cells, values))
    return sorted(found, key=lambda row: (row.values[1], -row.values[2], row.name))


def truth_text(truth_ns: int | None, bound_ns: int | None) -> Text:
    """The true offset, where it is known, and whether the bound has it."""
    if truth_ns is None:
        return Text("")
    if bound_ns is None:
        return Text(duration_text(truth_ns), "dim")
    inside = abs(truth_ns) <= bound_ns
    where = "inside" if inside else "OUTSIDE"
    return Text(f"{duration_text(truth_ns)}, {where}", "green" if inside else "bold red")


def _jobs(round: Round) -> list[ViewRow]:
    found = []
    for job in round.overview.jobs:
        limit_style = "bold red" if job.alignment_verdict in ("exceeded", "unknown") else ""
        agree = "not comparable" if job.alignment_ns is None else f"agree within {rounded_up_text(job.alignment_ns)}"
        cells = (
            plain_text(f"{job.job} #{job.attempt}"),
            Text(f"{job.world_size:,}"),
            Text(agree, limit_style),
            Text(percent(job.sync_overhead)),
            plain_text(job.verdict, "" if job.straggler_rank is None else "yellow"),
        )
        overhead = -1.0 if job.sync_overhead is None else job.sync_overhead
        found.append(
            ViewRow(job.job_id, cells, (job.job, job.world_size, _wide(job.alignment_ns), overhead, job.verdict))
        )
    return sorted(found, key=lambda row: (-row.values[2], row.name))


def _grandmasters(round: Round) -> list[ViewRow]:
    found = []
    for each in round.overview.grandmasters:
        locked = each.reachable and each.clock_state == "locked"
        state = (each.clock_state or "not provided") if each.reachable else "not reachable"
        left_ns = each.holdover_left_ns
        cells = (
            plain_text(each.name),
            plain_text(state, "green" if locked else "bold yellow"),
            plain_text(each.gnss_state or "-"),
            _bound(each.utc_bound_ns),
            Text("-" if left_ns is None else span_text(left_ns)),
            Text("-" if each.alarms is None else f"{each.alarms}", "yellow" if each.alarms else ""),
            Text(f"{each.followers:,}"),
        )
        values = (
            each.name, (locked, state), each.gnss_state or "", _wide(each.utc_bound_ns),
            _UNKNOWN if left_ns is None else left_ns, each.alarms or 0, each.followers,
        )  # fmt: skip
        found.append(ViewRow(each.name, cells, values))
    return sorted(found, key=lambda row: (row.values[1][0], row.name))


def _bound(ns: int | None) -> Text:
    return Text("no bound", "bold red") if ns is None else Text(f"+-{rounded_up_text(ns)}")


def _wide(ns: int | None) -> int:
    return _UNKNOWN if ns is None else ns


def banner(round: Round | None, received_s: float | None, error: str, now_s: float) -> tuple[str, bool]:
    """
    The line above all views, and whether the daemon is silent: then nothing below it is of now. `received_s` is when
    `round` came, on the clock of `now_s`.
    """
    if round is None or received_s is None:
        return (f"no reply: {error}" if error else "asking the daemon"), True
    age_s = now_s - received_s
    as_of = time.strftime("%H:%M:%S UTC", time.gmtime(round.overview.as_of_realtime_ns // 10**9))
    if error and age_s >= SILENT_AFTER_S:
        return f"NO REPLY: everything is as of {as_of}, {age_s:.0f} s ago: {error}", True
    limits = round.overview.headline.limits.fleet_alignment_ns
    limit = "" if limits is None else f" (limit {rounded_up_text(limits)})"
    return f"{round.overview.headline.text}{limit}, as of {as_of}", False


def finding_lines(round: Round, most: int = 3) -> list[Text]:
    """The most severe active findings, each with its remedy, which wraps."""
    lines = []
    for finding in round.overview.findings[:most]:
        lines.append(plain_text(f"{finding.id} {finding.subject}: {finding.evidence}", SEVERITIES[finding.severity]))
        lines.append(plain_text(f"  {finding.remedy}", "dim"))
    return lines
