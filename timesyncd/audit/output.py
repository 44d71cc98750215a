"""Writes a report where it is asked for, and says in a few lines what is in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from timesyncd.audit.build import report
from timesyncd.audit.headline import percent, span
from timesyncd.audit.html import html
from timesyncd.audit.measured import measured
from timesyncd.audit.report import Report
from timesyncd.errors import TimesyncdError
from timesyncd.jobs.recorded import Recording


def write(recording: Recording, folder: Path, before: Recording | None = None) -> Report:
    """report.json and report.html. Raises TimesyncdError when they cannot be written."""
    now, then = measured(recording), None if before is None else measured(before)
    found = report(now, then)
    put(folder / "report.json", found.model_dump_json(indent=2) + "\n")
    put(folder / "report.html", html(found, now, then))
    return found


def put(path: Path, text: str) -> None:
    """Whole or not at all: who reads meanwhile sees the former one. Raises TimesyncdError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise TimesyncdError(f"{path}: cannot be written: {error.strerror or error}") from error


def summary(found: Report, folder: Path) -> list[str]:
    """For a terminal: what matters first, then where the rest is."""
    lines = [found.headline]
    lines += [
        f"  rank {one.rank} on {one.node}: {span(one.lateness_p50_ns)} late at {one.where}, last in {percent(one.last_share, 0)} of the "
        f"steps; the others waited {span(one.exposed_ns)} in all ({one.verdict})"
        for one in found.stragglers[:5]
    ]
    if found.before_after is not None:
        lines.append(found.before_after.sentence)
    best = next((remedy for remedy in found.remedies if remedy.gain is not None and remedy.gain >= 0.001), None)
    if best is not None:
        lines.append(f"Largest gain of the remedies replayed: {best.title}, {percent(best.gain or 0)} less time.")
    return [*lines, f"Report: {folder / 'report.html'}"]
