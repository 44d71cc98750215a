"""report.html: one file that needs nothing else, with the sentence that matters on top."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import jinja2
from markupsafe import Markup

from timesyncd.audit import charts
from timesyncd.audit.headline import bucket_lines, cause, percent, span
from timesyncd.audit.measured import Measured
from timesyncd.audit.report import Estimate, Report

_METHODS = {
    "one_clock": "all ranks read one clock",
    "clocks": "by the nodes' clocks and their bounds",
    "ends": "by the ends of the collectives (an estimate, no bound)",
    None: "not comparable",
}


#: So many stages are shown, the costliest; report.json has all.
_MOST_STAGES = 12


def html(report: Report, now: Measured, before: Measured | None = None) -> str:
    """The page of a report that was made of these."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "span": span,
        "percent": _percent,
        "interval": _interval,
        "cause": cause,
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
        stages=sorted(report.stages, key=lambda stage: -stage.cost_ns)[:_MOST_STAGES],
    )


def shown_ranks(report: Report) -> list[int]:
    """All, or of many the ones that are named and as many more as are drawn."""
    named = [straggler.rank for straggler in report.stragglers][: charts.MOST_RANKS]
    others = [rank for rank in range(report.world_size) if rank not in named]
    return sorted([*named, *others[: charts.MOST_RANKS - len(named)]])


def _plots(report: Report, now: Measured, before: Measured | None, ranks: Sequence[int]) -> dict[str, Markup | None]:
    drawn = {
        "step": charts.typical_step(now, ranks) if report.world_size > 1 else None,
        "lateness": charts.lateness(now, ranks) if report.world_size > 1 else None,
        "course": charts.course(now.samples),
        "remedies": charts.remedies(report.remedies),
        "before_after": charts.before_after(before.samples, now.samples, report.before_after)
        if before is not None and report.before_after is not None
        else None,
    }
    # matplotlib escapes what is written into an SVG.
    return {name: None if svg is None else Markup(svg) for name, svg in drawn.items()}


def _percent(ratio: float | None) -> str:
    return "not known" if ratio is None else percent(ratio)


def _interval(estimate: Estimate, kind: str) -> str:
    """The 95 % interval, as spans of time or in percent."""
    if estimate.low is None or estimate.high is None:
        return "no interval: too few steps"
    shown = span if kind == "span" else _percent
    return f"{shown(estimate.low)} to {shown(estimate.high)}"
