"""
Renders report.html, one file that loads nothing, writes both report files, and summarizes a report for a terminal.

The report's plots are SVG that takes its colours from the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from timesyncd.audit.bootstrap import StepSample
from timesyncd.audit.build import report
from timesyncd.audit.headline import (
    bucket_lines,
    cause_text,
    exposed_part_lines,
    late_share_text,
    limit_text,
    percent,
    rare_text,
    short_duration,
    span_text,
    step_label,
)
from timesyncd.audit.measured import Measured, measured, median_length_ns
from timesyncd.audit.report import AuditReport, BeforeAfter, EstimateReport, RemedyReport
from timesyncd.errors import TimesyncdError
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs.arrivals import Sync, widest_skew_sync
from timesyncd.jobs.recording import Recording, positions, same_step
from timesyncd.units import percentile

_METHODS = {
    Method.ONE_CLOCK: "all ranks read one clock",
    Method.CLOCK_BOUNDS: "by the nodes' clocks and their bounds",
    Method.COLLECTIVE_ENDS: "by the ends of the collectives (an estimate, not a bound)",
    None: "not comparable",
}

#: Of a job that synchronizes in groups.
_OWN_TIME = "by each rank's own time, on its own clock"


#: The number of stages on the page, the costliest ones; report.json has all.
_MAX_STAGES = 12


def html(report: AuditReport, now: Measured, before: Measured | None = None) -> str:
    """The page of `report`, which was built from `now` and `before`."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "duration": short_duration,
        "percent": _percent,
        "interval": _interval,
        "cause": cause_text,
        "step": step_label,
        "share": lambda ratio: percent(ratio, 0),
    }
    template = environment.from_string(files("timesyncd.audit").joinpath("report.html").read_text(encoding="utf-8"))
    ranks = shown_ranks(report)
    return template.render(
        report=report,
        method=_OWN_TIME if report.groups or report.messages else _METHODS[report.method],
        plots=_plots(report, now, before, ranks),
        ranks=ranks,
        findings_lines=findings_lines(report),
        bucket_lines=[] if report.buckets is None else bucket_lines(report.buckets),
        exposed_part_lines=exposed_part_lines(report),
        in_groups=now.own_times is not None or now.own_waits is not None,
        stages=sorted(report.stages, key=lambda stage: -stage.cost_ns)[:_MAX_STAGES],
    )


def shown_ranks(report: AuditReport) -> list[int]:
    """All ranks, or of many ranks the stragglers and the first others, MAX_RANKS in total."""
    named = [straggler.rank for straggler in report.stragglers][:MAX_RANKS]
    others = [rank for rank in range(report.world_size) if rank not in named]
    return sorted([*named, *others[: MAX_RANKS - len(named)]])


def _plots(
    report: AuditReport, now: Measured, before: Measured | None, ranks: Sequence[int]
) -> dict[str, Markup | None]:
    drawn = {
        "step": typical_step(now, ranks) if report.world_size > 1 else None,
        "lateness": lateness(now, ranks) if report.world_size > 1 else None,
        "over_steps": over_steps(now.samples),
        "remedies": remedies(report.remedies),
        "before_after": before_after(before.samples, now.samples, report.before_after)
        if before is not None and report.before_after is not None
        else None,
    }
    # matplotlib escapes what is written into an SVG.
    return {name: None if svg is None else Markup(svg) for name, svg in drawn.items()}


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else percent(ratio)


def _interval(estimate: EstimateReport, kind: str) -> str:
    """The 95 % interval as durations or in percent."""
    if estimate.low is None or estimate.high is None:
        return "no interval: too few steps"
    shown = short_duration if kind == "duration" else _percent
    return f"{shown(estimate.low)} to {shown(estimate.high)}"


def write(recording: Recording, folder: Path, before: Recording | None = None) -> AuditReport:
    """Writes report.json and report.html. Raises TimesyncdError if that fails."""
    now, then = measured(recording), None if before is None else measured(before)
    found = report(now, then)
    write_whole(folder / "report.json", found.model_dump_json(indent=2) + "\n")
    write_whole(folder / "report.html", html(found, now, then))
    return found


def write_whole(path: Path, text: str) -> None:
    """Writes the file atomically: a reader meanwhile sees the former one. Raises TimesyncdError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise TimesyncdError(f"{path}: cannot be written: {error.strerror or error}") from error


def summary(found: AuditReport, folder: Path) -> list[str]:
    """Lines for a terminal: the headline, the stragglers, the best remedy, the limits of all that, and the page's path."""
    lines = [found.headline]
    lines += [f"  {line}" for line in findings_lines(found) if line not in found.headline]
    lines += [
        f"  rank {one.rank} on {one.node}: {short_duration(one.lateness_p50_ns)} late{late_share_text(one)} {one.place}, last in {percent(one.last_share, 0)} of the "
        f"steps; the others waited {short_duration(one.exposed_ns)} in total ({one.verdict})"
        for one in found.stragglers[:5]
    ]
    if found.before_after is not None:
        lines.append(found.before_after.sentence)
        lines += [one.sentence for one in found.before_after.learning]
    if (limit := limit_text(found)) is not None:
        lines.append(limit)
    best = next((remedy for remedy in found.remedies if remedy.gain is not None and remedy.gain >= 0.001), None)
    if best is not None:
        lines.append(
            f"Best remedy: {best.title}, which would save {percent(best.gain or 0)} of the time. Assumption: {best.assumption}"
        )
    lines += [f"Note: {note}" for note in found.notes]
    return [*lines, f"Report: {folder / 'report.html'}"]


def findings_lines(found: AuditReport) -> list[str]:
    """Sentences about ranks that are late in a part of the steps, and about the few steps that hold most of the waiting."""
    lines = [span_text(span) for span in found.late_spans]
    if found.rare is not None:
        text = rare_text(found.rare)
        lines.append(f"{text[0].upper()}{text[1:]}.")
    return lines


#: Placeholder colours, which are replaced by the page's variables, so that a dark page has dark plots.
_INK, _QUIET, _RULE = "#010101", "#020202", "#030303"
_COMPUTE, _TRANSFER, _WAIT, _GOOD = "#040404", "#050505", "#060606", "#070707"
_VARIABLES = {
    _INK: "ink", _QUIET: "quiet", _RULE: "rule", _COMPUTE: "compute", _TRANSFER: "accent", _WAIT: "warn", _GOOD: "good",
}  # fmt: skip

_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "timesyncd", "font.family": "sans-serif", "font.size": 9,
    "text.color": _INK, "axes.labelcolor": _QUIET, "axes.edgecolor": _RULE, "xtick.color": _QUIET, "ytick.color": _QUIET,
    "xtick.labelcolor": _QUIET, "ytick.labelcolor": _INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.spines.left": False, "ytick.major.size": 0, "legend.frameon": False, "legend.labelcolor": _QUIET,
}  # fmt: skip

#: The largest number of ranks in a plot: the stragglers and the first others.
MAX_RANKS = 16

#: The largest number of points in a plot over the steps.
_MAX_POINTS = 400


def typical_step(now: Measured, ranks: Sequence[int]) -> str | None:
    """The activity of every rank in a step of about the median skew; None: no step is comparable."""
    steps = [(key, step) for key, step in same_step(now.attribution.syncs) if all(sync.comparison for sync in step)]
    if not steps or not now.samples:
        return None
    typical_ns = percentile([_skew_ns(step) for _, step in steps], 50)
    key, step = min(steps, key=lambda one: abs(_skew_ns(one[1]) - typical_ns))
    ranks = [rank for rank in ranks if all(rank in sync.arrivals for sync in step)]
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(1.1 + 0.34 * len(ranks))
        _draw_step(axes, now, key, step, ranks)
        return _svg(figure)


def _skew_ns(step: Sequence[Sync]) -> int:
    comparison = widest_skew_sync(step).comparison
    return comparison.skew_ns if comparison else 0


def _draw_step(axes: Axes, now: Measured, key: int, step: Sequence[Sync], ranks: Sequence[int]) -> None:
    marks = {rank: now.aligned.step_mark(rank, key) for rank in ranks}
    begins = {rank: mark.arrival_ns for rank, mark in marks.items() if mark is not None}
    ends = {rank: mark.end_ns for rank, mark in marks.items() if mark is not None}
    first_ns = min([*begins.values(), *(arrival.arrival_ns for sync in step for arrival in sync.arrivals.values())])
    for row, rank in enumerate(ranks):
        covered_ns = 0
        mine = [sync.arrivals[rank] for sync in step]
        begin_ns = begins.get(rank, first_ns)
        end_ns = ends.get(rank, max(arrival.end_ns for arrival in mine))
        _bar(axes, row, begin_ns - first_ns, end_ns - first_ns, _COMPUTE)
        for sync in sorted(step, key=lambda sync: sync.arrivals[rank].end_ns):
            arrival = sync.arrivals[rank]
            last_ns = max(other.arrival_ns for other in sync.arrivals.values())
            start_ns = max(arrival.begin_ns, covered_ns)
            _bar(axes, row, start_ns - first_ns, min(last_ns, arrival.end_ns) - first_ns, _WAIT)
            _bar(axes, row, max(start_ns, last_ns) - first_ns, arrival.end_ns - first_ns, _TRANSFER)
            covered_ns = max(covered_ns, arrival.end_ns)
        for arrival, name in zip(mine, positions(step), strict=True):
            at_ms = (arrival.arrival_ns - first_ns) / 1e6
            axes.plot([at_ms, at_ms], [row - 0.4, row + 0.4], color=_INK, linewidth=1)
            if row == 0 and len(step) <= 6:
                axes.annotate(name, (at_ms, -0.5), fontsize=7, color=_QUIET, rotation=30, ha="left", va="bottom")
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.set_ylim(len(ranks) - 0.4, -1.7)
    axes.set_xlabel("ms since the step began")
    colours = ((_COMPUTE, "computing"), (_WAIT, "waiting for the last rank"), (_TRANSFER, "exposed transfer"))
    _legend(axes, colours)


def _bar(axes: Axes, row: int, begin_ns: int, end_ns: int, colour: str) -> None:
    if end_ns > begin_ns:
        axes.barh(row, (end_ns - begin_ns) / 1e6, left=begin_ns / 1e6, height=0.6, color=colour)


def lateness(now: Measured, ranks: Sequence[int]) -> str | None:
    """Lateness of each rank against the median rank: median, quartiles, 5th and 95th percentile of the steps."""
    late_ns: dict[int, list[int]] = {rank: [] for rank in ranks}
    for _, step in same_step(now.attribution.syncs):
        comparison = widest_skew_sync(step).comparison
        for rank, ns in comparison.lateness_ns.items() if comparison else ():
            late_ns.get(rank, []).append(ns)
    ranks = [rank for rank in ranks if late_ns[rank]]
    if not ranks:
        return None
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(0.6 + 0.3 * len(ranks))
        for row, rank in enumerate(ranks):
            low, lower, middle, upper, high = (percentile(late_ns[rank], p) / 1e6 for p in (5, 25, 50, 75, 95))
            axes.plot([low, high], [row, row], color=_QUIET, linewidth=1)
            axes.barh(row, upper - lower, left=lower, height=0.5, color=_WAIT)
            axes.plot([middle, middle], [row - 0.32, row + 0.32], color=_INK, linewidth=2)
        axes.axvline(0, color=_RULE, linewidth=1, zorder=0)
        axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
        axes.set_ylim(len(ranks) - 0.4, -0.6)
        axes.set_xlabel(
            "ms after the median rank at the widest skew of a step: median, half and nine tenths of the steps"
        )
        return _svg(figure)


def over_steps(samples: Sequence[StepSample]) -> str | None:
    """Step time and exposed synchronization over the steps."""
    if len(samples) < 2:
        return None
    width = -(-len(samples) // _MAX_POINTS)
    groups = [samples[at : at + width] for at in range(0, len(samples), width)]
    at_step = [at * width for at in range(len(groups))]
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(2.0)
        total = [sum(sample.length_ns for sample in group) / len(group) / 1e6 for group in groups]
        exposed = [sum(sample.exposed_ns for sample in group) / len(group) / 1e6 for group in groups]
        axes.fill_between(at_step, total, color=_COMPUTE, linewidth=0)
        axes.fill_between(at_step, exposed, color=_WAIT, linewidth=0)
        axes.set_ylim(
            0, 1.3 * max(median_length_ns(samples) / 1e6, percentile([round(ms * 1000) for ms in total], 99) / 1000)
        )
        axes.set_xlim(0, at_step[-1])
        axes.set_xlabel("step" + (f" (means of {width})" if width > 1 else ""))
        axes.set_ylabel("ms")
        _legend(axes, ((_COMPUTE, "step"), (_WAIT, "exposed synchronization")))
        return _svg(figure)


def remedies(found: Sequence[RemedyReport]) -> str | None:
    """The gain of each remedy that applies."""
    shown = [remedy for remedy in found if remedy.gain is not None]
    if not shown:
        return None
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(0.5 + 0.28 * len(shown))
        for row, remedy in enumerate(shown):
            gain = 100 * (remedy.gain or 0)
            axes.barh(row, gain, height=0.6, color=_GOOD if gain >= 0 else _WAIT)
            axes.annotate(f" {gain:.1f} %", (max(gain, 0), row), va="center", fontsize=8, color=_INK)
        axes.set_yticks(range(len(shown)), [remedy.title for remedy in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.margins(x=0.12)
        axes.set_xlabel("saved time in %")
        return _svg(figure)


def before_after(before: Sequence[StepSample], after: Sequence[StepSample], found: BeforeAfter) -> str:
    """The distributions of step times before and after, with their means and intervals."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _figure(1.9)
        values = [[sample.length_ns / 1e6 for sample in samples] for samples in (before, after)]
        limit = max(percentile([round(v * 1e6) for v in group], 98) for group in values) / 1e6
        least = min(min(group) for group in values)
        bins = [least + (limit - least) * at / 50 for at in range(51)] if limit > least else 10
        for group, colour in zip(values, (_QUIET, _GOOD), strict=True):
            weights = [100 / len(group)] * len(group)
            axes.hist(group, bins=bins, weights=weights, color=colour, alpha=0.55)
        top = axes.get_ylim()[1]
        for estimate, colour, at in ((found.step_ns_before, _QUIET, 1.08), (found.step_ns_after, _GOOD, 1.16)):
            axes.plot([estimate.value / 1e6], [at * top], "o", color=colour, markersize=4)
            if estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low / 1e6, estimate.high / 1e6], [at * top] * 2, color=colour, linewidth=2)
        axes.set_xlabel("step time in ms; points: means with their 95 % intervals")
        axes.set_ylabel("% of the steps")
        _legend(axes, ((_QUIET, "before"), (_GOOD, "after")))
        return _svg(figure)


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure, axes


def _legend(axes: Axes, colours: Sequence[tuple[str, str]]) -> None:
    patches = [Patch(color=colour, label=label) for colour, label in colours]
    axes.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(patches), fontsize=8, borderpad=0)


def _svg(figure: Figure) -> str:
    """The figure as SVG without date and creator, with ids that no other plot of the page has."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return re.sub(r"font: ([^;\"]*?)'sans-serif'[^;\"]*", r"font: \1system-ui, sans-serif", svg)
