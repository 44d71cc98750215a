"""Writes the files of `timesyncd audit --from`: report.json, and report.html, which loads nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import jinja2

from timesyncd.audit.blame import BlameReport
from timesyncd.audit.group_transfers import transfer_lines
from timesyncd.audit.headline import percent, short_duration
from timesyncd.audit.html import write_whole


def blame_html(report: BlameReport) -> str:
    """The page of the report."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"duration": short_duration, "share": lambda ratio: percent(ratio, 1)}
    pages = files("timesyncd.audit")
    template = environment.from_string(pages.joinpath("blame.html").read_text(encoding="utf-8"))
    audit = pages.joinpath("report.html").read_text(encoding="utf-8")
    style = audit[audit.index("<style>") + len("<style>") : audit.index("</style>")]
    return template.render(report=report, transfer_lines=transfer_lines(report.transfers), style=style)


def write_blame(report: BlameReport, folder: Path) -> None:
    """Writes both files. Raises TimesyncdError if that fails."""
    write_whole(folder / "report.json", report.model_dump_json(indent=2) + "\n")
    write_whole(folder / "report.html", blame_html(report))
