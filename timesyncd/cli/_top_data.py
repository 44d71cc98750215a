"""What `timesyncd top` shows: a daemon's replies of one round, and the rows of each view. The rows are pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel
from rich.console import Group, RenderableType
from rich.text import Text

from timesyncd.cli._common import parsed_reply
from timesyncd.cli.render import SEVERITIES, STYLES, plain_text, table_with_headings
from timesyncd.cli.render_job import percent
from timesyncd.client.api import fetch_part
from timesyncd.messages.fleet import FleetMap
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, NodeState
from timesyncd.messages.overview import GrandmasterBrief, JobBrief, Overview
from timesyncd.messages.series import LatenessMatrix
from timesyncd.messages.simulation import TrueOffset
from timesyncd.units import duration_text, limit_text, rounded_up_text, span_text

View = Literal["fleet", "nodes", "jobs", "grandmasters"]
M = TypeVar("M", bound=BaseModel)
_DETAILS: Mapping[View, type[BaseModel]] = {"grandmasters": GrandmasterState, "jobs": JobState}
VIEWS: tuple[View, ...] = ("fleet", "nodes", "jobs", "grandmasters")

#: Of so many newest steps a job's view shows the lateness.
HEAT_STEPS = 500

#: A table shows so many rows at most, the first in its order: more are found by the filter.
MOST_ROWS = 500

#: A daemon that gave no reply for so long is silent: nothing of it is shown as present.
SILENT_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """The replies of one round."""

    overview: Overview
    map: FleetMap

    @property
    def truths(self) -> dict[str, TrueOffset]:
        """By node, where they are known: in a simulation."""
        simulation = self.overview.simulation
        return {} if simulation is None else {each.node: each for each in simulation.true_offsets}


class DaemonFeed:
    """Asks one daemon."""

    def __init__(self, page: str) -> None:
        self.page = page

    def round(self) -> Round:
        """One round. Blocks; raises Unreachable and Malformed."""
        return Round(self._fetched("fleet/overview", Overview), self._fetched("fleet/map", FleetMap))

    def detail(self, view: View, name: str) -> Any:
        """All of one node, grandmaster or job as JSON. Blocks; raises Unreachable and Malformed."""
        path = f"{view}/{quote(name, safe='')}"
        reply = fetch_part(self.page, path)
        parsed_reply(lambda: _DETAILS.get(view, NodeState).model_validate(reply), self.page, path)
        return reply

    def lateness(self, job_id: str) -> LatenessMatrix:
        """A job's newest steps. Blocks; raises Unreachable, also where another daemon joins the job, and Malformed."""
        return self._fetched(f"jobs/{quote(job_id, safe='')}/lateness?steps={HEAT_STEPS}", LatenessMatrix)

    def _fetched(self, path: str, model: type[M]) -> M:
        reply = fetch_part(self.page, path)
        return parsed_reply(lambda: model.model_validate(reply), self.page, path)


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


#: Blanks of a column beside its cells.
_PADDING = 2


def fitted(found: Sequence[ViewRow], titles: Sequence[str], width: int) -> list[ViewRow]:
    """The rows with their widest cells cut, and marked as cut, so that every column is on a screen of this width."""
    widths = [max(map(len, column)) for column in zip(titles, *(row.cells for row in found), strict=True)]
    while (excess := sum(widths) + _PADDING * len(widths) - width) > 0:
        at = max(range(len(widths)), key=lambda column: widths[column] - len(titles[column]))
        if widths[at] == len(titles[at]):
            break
        widths[at] = max(len(titles[at]), widths[at] - excess)
    return [replace(row, cells=tuple(map(_cut, row.cells, widths))) for row in found]


def _cut(cell: Text, width: int) -> Text:
    found = cell.copy()
    found.truncate(width, overflow="ellipsis")
    return found


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
    found, truths = [], round.truths
    for place, nodes in round.map.places.items():
        for name, status, bound_ns in nodes:
            truth = truths.get(name)
            cells = (
                plain_text(name),
                Text(status, STYLES[status]),
                _bound(bound_ns),
                plain_text(place or "-"),
                truth_text(truth),
            )
            values = (name, _STATUS_ORDER[status], _wide(bound_ns), place, 0 if truth is None else truth.offset_ns)
            found.append(ViewRow(name, cells, values))
    return sorted(found, key=lambda row: (row.values[1], -row.values[2], row.name))


def truth_text(truth: TrueOffset | None) -> Text:
    """The true offset, where it is known, and whether the bound of the same moment has it."""
    if truth is None:
        return Text("")
    if truth.is_inside is None:
        return Text(duration_text(truth.offset_ns), "dim")
    where = "inside the bound" if truth.is_inside else "OUTSIDE the bound"
    return Text(f"{duration_text(truth.offset_ns)}, {where}", "green" if truth.is_inside else "bold red")


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
        return staleness("", None, error)
    as_of = time.strftime("%H:%M:%S UTC", time.gmtime(round.overview.as_of_realtime_ns // 10**9))
    text, is_silent = staleness(as_of, now_s - received_s, error)
    if is_silent:
        return text, True
    headline = round.overview.headline
    limit_ns = headline.limits.fleet_alignment_ns
    # The text of one that is exceeded names the limit.
    limit = "" if limit_ns is None or headline.verdict == "exceeded" else f" (limit {limit_text(limit_ns)})"
    return f"{headline.text}{limit}, {text}", False


def staleness(as_of: str, age_s: float | None, error: str) -> tuple[str, bool]:
    """How old the newest answer is (`age_s` None: there is none), and whether the daemon is silent."""
    if age_s is None:
        return (f"no reply: {error}" if error else "asking the daemon"), True
    if error and age_s >= SILENT_AFTER_S:
        return f"NO REPLY: everything is as of {as_of}, {age_s:.0f} s ago: {error}", True
    return f"as of {as_of}", False


def finding_lines(round: Round, width: int, height: int, most: int = 3) -> list[Text]:
    """
    The most severe active findings, each with its chain of causes or its evidence, and its remedy; both wrap. The first in any
    case, and those after it that fit whole.
    """
    lines: list[Text] = []
    for finding in round.overview.findings[:most]:
        what = " -> ".join(step.text for step in finding.chain) or finding.evidence
        more = [
            plain_text(f"{finding.id} {finding.subject}: {what}", SEVERITIES[finding.severity]),
            plain_text(f"  {finding.remedy}", "dim"),
        ]
        if lines and sum(len(wrap(line.plain, width)) for line in (*lines, *more)) > height:
            break
        lines += more
    return lines


#: What the summary of a fleet has of each view.
_SUMMARY: tuple[tuple[View, int], ...] = (("nodes", 6), ("grandmasters", 4), ("jobs", 4))


def summary(round: Round, made: Mapping[View, Sequence[ViewRow]]) -> RenderableType:
    """The timing chain, and the most urgent nodes, grandmasters and jobs, as the first look at a fleet needs them."""
    parts: list[RenderableType] = [*chain_lines(round), Text()]
    for view, most in _SUMMARY:
        found = made[view]
        if found:
            left_out = f"... {most} of {len(found):,}, the most urgent first\n" if len(found) > most else ""
            parts.append(table_with_headings(TITLES[view], (row.cells for row in found[:most])))
            parts.append(Text(left_out, "dim"))
    return Group(*parts)


def chain_lines(round: Round, most: int = 4) -> list[Text]:
    """The timing chain, from GNSS to the jobs, a line for each group of nodes behind one clock; the widest first."""
    masters = {each.name: each for each in round.overview.grandmasters}
    groups = sorted(round.overview.chain, key=lambda group: (-group.without_bound, -_wide(group.bound_ns)))
    lines = []
    for group in groups[:most]:
        master = masters.get(group.grandmaster)
        jobs = [job for job in round.overview.jobs if group.place in job.places]
        links = [
            *([] if master is None else _master_links(master)),
            *([] if master is not None else [plain_text(group.grandmaster or "no grandmaster", "bold yellow")]),
            Text.assemble(f"{group.nodes:,} node{'' if group.nodes == 1 else 's'} ", plain_text(group.place), " ")
            + _bound(group.bound_ns),
            *(_job_link(job) for job in jobs),
        ]
        lines.append(Text(" -> ", "dim").join(links))
    return lines


def _master_links(master: GrandmasterBrief) -> list[Text]:
    has_antenna = master.antenna in (None, "ok")
    gnss = f"GNSS {(master.gnss_state or 'not known').replace('_', ' ')}"
    is_locked = master.reachable and master.clock_state == "locked"
    state = (master.clock_state or "state not known") if master.reachable else "not reachable"
    return [
        plain_text(gnss if has_antenna else f"antenna {master.antenna}", "" if has_antenna else "bold yellow"),
        plain_text(f"{master.name} {state.replace('_', ' ')}", "green" if is_locked else "bold yellow"),
    ]


def _job_link(job: JobBrief) -> Text:
    ranks = f"job {job.job}, {job.world_size:,} ranks"
    return (
        plain_text(ranks) if job.straggler_rank is None else plain_text(f"{ranks}: rank {job.straggler_rank}", "yellow")
    )


def story_lines(round: Round) -> list[Text]:
    """In a simulation: what is simulated, and the newest line of its story."""
    simulation = round.overview.simulation
    if simulation is None:
        return []
    return [plain_text(simulation.simulated, "dim"), plain_text(f"story: {simulation.story}", "bold cyan")]


def counted(shown: int, matching: int) -> str:
    """What a table says of rows that it leaves out."""
    return "" if shown == matching else f"{shown:,} of {matching:,} rows; / filters"
