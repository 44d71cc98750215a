"""
A span of time as a post-mortem in Markdown: what the store has of findings, changes of state, operators' notes and the fleet's
alignment. Pure.

Text that came over a network is escaped, so that it is text in every renderer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from timesyncd.messages.events import ALARM, BEGAN, CHANGED, ENDED, NOTE, rfc3339
from timesyncd.messages.node import FindingMessage
from timesyncd.messages.notes import OperatorNote
from timesyncd.store.grids import Envelope
from timesyncd.store.intact import checked
from timesyncd.units import rounded_up_text, span_text

#: Most rows of the timeline.
MAX_ROWS = 2_000

_FINDING_EVENTS = (BEGAN, CHANGED, ENDED)
_FINDING, _VALUES = TypeAdapter(FindingMessage), TypeAdapter(list[dict[str, Any]])


@dataclass(frozen=True, slots=True)
class Incident:
    """
    What is known of [since, until). `events` are rows of the store's `event`, the newest first; `more`: there were more
    than are here. `alignment` is the fleet's by step, `without_bound` its count of clocks without a bound; None: not
    kept.
    """

    since_ns: int
    until_ns: int
    as_of_ns: int
    node: str
    events: Sequence[dict[str, Any]] = ()
    notes: Sequence[OperatorNote] = ()
    more: bool = False
    alignment: Envelope | None = None
    without_bound: Envelope | None = field(default=None)


def postmortem(incident: Incident) -> str:
    """The document. It begins with what was worst, and ends with what is not known."""
    lines = [
        f"# Post-mortem {_time(incident.since_ns)} to {_time(incident.until_ns)}",
        "",
        f"Made by timesyncd on {escaped(incident.node)} at {_time(incident.as_of_ns)}. All times are UTC.",
        "",
        "## Summary",
        "",
        *(f"- {line}" for line in _summary(incident)),
        "",
        "## Timeline",
        "",
        "| time | subject | what |",
        "| --- | --- | --- |",
        *_timeline(incident),
        "",
        "## Findings",
        "",
        *_findings(incident.events),
        "## What is not known",
        "",
        *(f"- {line}" for line in _unknown(incident)),
        "",
    ]
    return "\n".join(lines)


def _summary(incident: Incident) -> Iterator[str]:
    yield f"The span lasts {span_text(incident.until_ns - incident.since_ns)}."
    findings = _known_findings(incident.events)
    began = sum(incident.since_ns <= each.since_realtime_ns < incident.until_ns for each in findings)
    ended = sum(
        each.until_realtime_ns is not None and incident.since_ns <= each.until_realtime_ns < incident.until_ns
        for each in findings
    )
    yield f"Findings: {began} began, {ended} ended."
    worst = [ns for ns in incident.alignment.maximum if ns is not None] if incident.alignment else []
    if worst:
        yield f"The clocks that had a bound agreed within {rounded_up_text(max(worst))} at worst."
    lost = [count for count in incident.without_bound.maximum if count is not None] if incident.without_bound else []
    if lost:
        yield f"At most {max(lost):,} clocks had no bound."
    deploys = sum(note.kind == "deploy" for note in incident.notes)
    yield f"Operators wrote {len(incident.notes)} notes, {deploys} of them deploys."


def _timeline(incident: Incident) -> Iterator[str]:
    """Events and notes in their order; a note's own event is left out, since the note is there."""
    rows = [(event["realtime_ns"], event["subject"] or event["node"], _event_text(event)) for event in incident.events
            if not event["type"].startswith(f"{NOTE}.")]  # fmt: skip
    rows += [(note.realtime_ns, note.subject or "fleet", _note_text(note)) for note in incident.notes]
    for at, subject, text in sorted(rows)[:MAX_ROWS]:
        yield f"| {_time(at)} | {escaped(subject)} | {text} |"
    if not rows:
        yield "| | | nothing is stored of this span |"


def _event_text(event: dict[str, Any]) -> str:
    """Data that is not of its type is left out."""
    data, what = event["data"] or {}, event["type"].rpartition(".")[2]
    if (finding := _finding(event)) is not None:
        return f"finding **{escaped(finding.id)}** {what}: {escaped(finding.evidence)}"
    if event["type"] == ALARM:
        return f"alarm {escaped(data.get('action', ''))}: {escaped(data.get('text', ''))}"
    values = checked(_VALUES, data.get("values")) or []
    return escaped(f"{what}: {', '.join(str(each.get('value', '')) for each in values)}")


def _note_text(note: OperatorNote) -> str:
    about = f" {escaped(note.finding)}" if note.finding else ""
    until = "" if note.until_realtime_ns is None else f" until {_time(note.until_realtime_ns)}"
    return f"{note.kind}{about}{until} by **{escaped(note.author)}**: {escaped(note.text)}"


def _finding(event: dict[str, Any]) -> FindingMessage | None:
    """None: it is another event, or its data is damaged or another program's."""
    return checked(_FINDING, event["data"]) if event["type"] in _FINDING_EVENTS else None


def _known_findings(events: Iterable[dict[str, Any]]) -> list[FindingMessage]:
    """Each finding of the span once, as its last event has it, the oldest first."""
    found = [finding for event in reversed(list(events)) if (finding := _finding(event)) is not None]
    return list({(each.id, each.subject, each.since_realtime_ns): each for each in found}.values())


def _findings(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    known = _known_findings(events)
    for finding in known:
        yield f"### {escaped(finding.id)}: {escaped(finding.subject)}"
        yield ""
        yield f"- Severity {escaped(finding.severity)}, {_lasted(finding)}."
        for name in ("evidence", "cause", "remedy"):
            yield f"- {name.capitalize()}: {escaped(getattr(finding, name))}"
        chain = " -> ".join(escaped(step.text) for step in finding.chain)
        if chain:
            yield f"- Chain: {chain}"
        yield ""
    if not known:
        yield "None began, changed or ended in this span."
        yield ""


def _lasted(finding: FindingMessage) -> str:
    since_ns, until_ns = finding.since_realtime_ns, finding.until_realtime_ns
    if until_ns == since_ns:
        return f"at {_time(since_ns)}"
    return f"since {_time(since_ns)}, {'active' if until_ns is None else f'ended {_time(until_ns)}'}"


def _unknown(incident: Incident) -> Iterator[str]:
    if incident.more:
        yield "There were more events than this document has: ask for a shorter span."
    if incident.alignment is None or incident.alignment.newest_ns is None:
        yield "This daemon kept no alignment of the fleet in this span."
    else:
        holes = sum(ns is None for ns in incident.alignment.maximum)
        yield f"In {holes} of {len(incident.alignment.maximum)} steps no alignment is known."
    if incident.until_ns > incident.as_of_ns:
        yield "The span ends after this document was made."
    yield "Findings that began before the span and did not change in it are not listed."


def escaped(text: object) -> str:
    """Text of any origin in a cell: no markup, no table border, no line end."""
    plain = "".join(each if each.isprintable() else " " for each in str(text))
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", plain)


def _time(realtime_ns: int) -> str:
    return f"{rfc3339(max(0, realtime_ns))[:19]}Z"
