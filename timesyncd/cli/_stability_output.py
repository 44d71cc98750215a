"""The table and the plot of `timesyncd stability`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from timesyncd.cli.render import plain_text
from timesyncd.errors import TimesyncdError
from timesyncd.stability.masks import MASKS, LimitVerdict, Quantity, Segment
from timesyncd.stability.report import StabilityReport
from timesyncd.units import duration_text, limit_text, span_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NS_PER_S = 1_000_000_000
_WIDTH = 150
#: Where the plot ends the masks that have no end.
_PLOT_END_S = 1e5
_SEGMENT_STEPS = 40

_LABORATORY = (
    "The masks are for a laboratory: an ideal input and, for G.8273.2, a constant temperature. "
    "In the field a fail is no verdict on a device."
)
_MASK_HEADINGS = ("mask", "verdict", "quantity", "worst", "limit", "margin", "at tau", "note")


def print_report(title: str, note: str, report: StabilityReport | None, problem: str | None) -> None:
    """`problem`: why there is no report."""
    console = Console(highlight=False, markup=False)
    console.width = max(console.width, _WIDTH)
    console.print(plain_text(title))
    console.print(plain_text(note))
    if report is None:
        console.print(plain_text(f"unknown: {problem}"))
        return
    for line in summary_lines(report):
        console.print(line)
    console.print()
    console.print(_deviations(report))
    console.print()
    console.print(_masks(report))
    for verdict in report.verdicts:
        for limit in verdict.not_compared:
            console.print(f"{verdict.mask}, not compared: {limit}")
    console.print(_LABORATORY)


def summary_lines(report: StabilityReport) -> list[str]:
    """The data, then the numbers that have no observation interval."""
    begin, end = (_time(at_ns) for at_ns in (report.begin_ns, report.end_ns))
    early = f", {report.early} more came too early and are not used" if report.early else ""
    blocks = f"worst of {report.constant_te_blocks} means over 1,000 s" if report.constant_te_blocks else ""
    reasons = report.reasons
    unbroken = span_text(report.longest_run_ns)
    return [
        f"{begin} to {end}: {report.samples} samples, one each {limit_text(report.interval_ns)}{early}",
        f"{report.gaps} gaps, {report.reference_changes} changes of the reference; longest run without either: {unbroken}",
        _number("constant time error (cTE), newest mean over 1,000 s", report.constant_te_ns, reasons.get("cTE")),
        *([_number(f"constant time error, {blocks}", report.worst_constant_te_ns, None)] if blocks else []),
        _number("max|TE|", report.max_abs_te_ns, None),
        _number("max|TE_L|, after the low-pass of 0.1 Hz", report.max_abs_te_low_ns, reasons.get("max|TE_L|")),
        _number("dTE_H, peak to peak in 1,000 s", report.range_high_ns, reasons.get("dTE_H peak to peak")),
    ]


def _number(name: str, value_ns: float | None, reason: str | None) -> str:
    return f"{name}: {ns_text(value_ns)}" + (f" ({reason})" if value_ns is None and reason else "")


def _time(at_ns: int | None) -> str:
    return "unknown" if at_ns is None else f"{datetime.fromtimestamp(at_ns // _NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"


def ns_text(value_ns: float | None) -> str:
    """Three digits and a unit, also below 1 ns."""
    if value_ns is None:
        return "unknown"
    return f"{value_ns:.3g} ns" if abs(value_ns) < 999.5 else duration_text(round(value_ns))


def tau_text(tau_ns: float) -> str:
    return limit_text(round(tau_ns)) if tau_ns < _NS_PER_S else f"{tau_ns / _NS_PER_S:g} s"


def _table(headings: tuple[str, ...], left: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        table.add_column(heading, justify=justify, no_wrap=heading != "note", overflow="fold")
    return table


def _deviations(report: StabilityReport) -> Table:
    table = _table(("tau", "ADEV", "TDEV", "MTIE", "dTE_L TDEV", "dTE_L MTIE", "windows"), ())
    for each in report.deviations:
        adev = "unknown" if each.adev is None else f"{each.adev:.3g}"
        values = (each.tdev_ns, each.mtie_ns, each.tdev_low_ns, each.mtie_low_ns)
        table.add_row(tau_text(each.tau_ns), adev, *map(ns_text, values), str(each.terms))
    return table


def _masks(report: StabilityReport) -> Table:
    table = _table(_MASK_HEADINGS, ("mask", "verdict", "quantity", "note"))
    for verdict in report.verdicts:
        table.add_row(verdict.mask, verdict.outcome.value)
        for limit in verdict.limits:
            table.add_row(*_limit_cells(limit))
    return table


def _limit_cells(limit: LimitVerdict) -> tuple[str, ...]:
    at = "" if limit.tau_s is None else tau_text(limit.tau_s * _NS_PER_S)
    numbers = ("", "", "") if limit.value_ns is None else (limit.value_ns, limit.limit_ns, limit.margin_ns)
    cells = (each if isinstance(each, str) else ns_text(each) for each in numbers)
    return ("", limit.outcome.value, limit.quantity.value, *cells, at, limit.reason or "")


def plot(path: Path, reports: list[tuple[str, StabilityReport]]) -> None:
    """ADEV, TDEV and MTIE on logarithmic axes, TDEV and MTIE with the masks. Raises TimesyncdError if `path` cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 11), layout="constrained")
    adev, tdev, mtie = figure.subplots(3, 1, sharex=True)
    for title, report in reports:
        for axes, attribute in ((adev, "adev"), (tdev, "tdev_ns"), (mtie, "mtie_ns")):
            points = [(each.tau_ns / _NS_PER_S, getattr(each, attribute)) for each in report.deviations]
            _line(axes, points, marker=".", label=title)
    _draw_masks(tdev, Quantity.TDEV)
    _draw_masks(mtie, Quantity.MTIE)
    for axes, name in ((adev, "ADEV"), (tdev, "TDEV in ns"), (mtie, "MTIE in ns")):
        varies = any(len(line.get_xdata()) for line in axes.lines)
        axes.set(xscale="log", yscale="log" if varies else "linear", ylabel=name)
        axes.grid(visible=True, which="both", alpha=0.2)
        axes.legend(fontsize="small")
    mtie.set_xlabel("observation interval tau in s")
    try:
        figure.savefig(path)
    except OSError as error:
        raise TimesyncdError(f"{path} cannot be written: {error.strerror or error}") from error


def _draw_masks(axes: Axes, quantity: Quantity) -> None:
    """Of the masks that limit this quantity, which is unfiltered."""
    for mask in MASKS:
        for limit in (each for each in mask.limits if each.quantity is quantity):
            taus_s = [tau_s for segment in limit.segments for tau_s in _taus_s(segment)]
            _line(axes, [(tau_s, limit.at(tau_s)) for tau_s in taus_s], linestyle="--", linewidth=1, label=mask.name)


def _taus_s(segment: Segment) -> list[float]:
    """Within the segment, near enough to one another that a limit that grows linearly looks as it is on logarithmic axes."""
    begin_s = segment.after_s * 1.0001
    ratio = (_PLOT_END_S if segment.until_s is None else segment.until_s) / begin_s
    return [begin_s * ratio ** (step / _SEGMENT_STEPS) for step in range(_SEGMENT_STEPS)] + [begin_s * ratio]


def _line(axes: Axes, points: Sequence[tuple[float, float | None]], **style: Any) -> None:
    """Without what is unknown, and without what is 0, which a logarithmic axis has not."""
    drawn = [(tau_s, value) for tau_s, value in points if value]
    axes.plot([tau_s for tau_s, _ in drawn], [value for _, value in drawn], **style)
