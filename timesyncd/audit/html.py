"""
Renders report.html, one file that loads nothing, writes both report files, and summarizes a report for a terminal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from timesyncd.audit import charts
from timesyncd.audit.build import report
from timesyncd.audit.headline import bucket_lines, cause_text, percent, short_duration
from timesyncd.audit.measured import Measured, measured
from timesyncd.audit.report import AuditReport, EstimateReport
from timesyncd.errors import TimesyncdError
from timesyncd.ipc.job_segment import Method
from timesyncd.jobs.recording import Recording

_METHODS = {
    Method.ONE_CLOCK: "all ranks read one clock",
    Method.CLOCK_BOUNDS: "by the nodes' clocks and their bounds",
    Method.COLLECTIVE_ENDS: "by the ends of the collectives (an estimate, not a bound)",
    None: "not comparable",
}


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
        "share": lambda ratio: percent(ratio, 0),
    }
    template = environment.from_string(files("timesyncd.audit").joinpath("report.html").read_text(encoding="utf-8"))
    ranks = shown_ranks(report)
    return template.render(
        report=report,
        method=_METHODS[report.method],
        plots=_plots(report, now, before, ranks),
        ranks=ranks,
        bucket_lines=[] if report.buckets is None else bucket_lines(report.buckets),
        stages=sorted(report.stages, key=lambda stage: -stage.cost_ns)[:_MAX_STAGES],
    )


def shown_ranks(report: AuditReport) -> list[int]:
    """All ranks, or of many ranks the stragglers and the first others, MAX_RANKS in total."""
    named = [straggler.rank for straggler in report.stragglers][: charts.MAX_RANKS]
    others = [rank for rank in range(report.world_size) if rank not in named]
    return sorted([*named, *others[: charts.MAX_RANKS - len(named)]])


def _plots(
    report: AuditReport, now: Measured, before: Measured | None, ranks: Sequence[int]
) -> dict[str, Markup | None]:
    drawn = {
        "step": charts.typical_step(now, ranks) if report.world_size > 1 else None,
        "lateness": charts.lateness(now, ranks) if report.world_size > 1 else None,
        "over_steps": charts.over_steps(now.samples),
        "remedies": charts.remedies(report.remedies),
        "before_after": charts.before_after(before.samples, now.samples, report.before_after)
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
    """Lines for a terminal: the headline, the stragglers, the best remedy, and the path of the page."""
    lines = [found.headline]
    lines += [
        f"  rank {one.rank} on {one.node}: {short_duration(one.lateness_p50_ns)} late at {one.where}, last in {percent(one.last_share, 0)} of the "
        f"steps; the others waited {short_duration(one.exposed_ns)} in total ({one.verdict})"
        for one in found.stragglers[:5]
    ]
    if found.before_after is not None:
        lines.append(found.before_after.sentence)
    best = next((remedy for remedy in found.remedies if remedy.gain is not None and remedy.gain >= 0.001), None)
    if best is not None:
        lines.append(f"Best remedy: {best.title}, which would save {percent(best.gain or 0)} of the time.")
    return [*lines, f"Report: {folder / 'report.html'}"]
