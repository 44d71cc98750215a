"""Operators' notes in the store. A note that is stored already stays: a hub may receive it twice."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, exists, or_, select

from timesyncd.messages.notes import OperatorNote
from timesyncd.store.engine import StoreLocation, reading
from timesyncd.store.intact import intact
from timesyncd.store.rows import RowEntry
from timesyncd.store.tables import finding, operator_note

NOTE_FIELDS = ("node", "kind", "author", "text", "subject", "finding", "realtime_ns", "until_realtime_ns")

#: Most notes that one answer has.
MAX_NOTES = 1_000


def note_entry(note: OperatorNote, queued_ns: int) -> RowEntry:
    row = {"note_id": note.id} | {name: getattr(note, name) for name in NOTE_FIELDS}
    return RowEntry(operator_note, row, note.author, note.realtime_ns, queued_ns)


def notes(location: StoreLocation, since_realtime_ns: int, until_realtime_ns: int) -> list[dict[str, Any]]:
    """The notes that apply in [since, until), the newest first, at most MAX_NOTES. Raises StoreError."""
    at = operator_note.c.realtime_ns
    return _read(location, at >= since_realtime_ns, at < until_realtime_ns)


def undecided(location: StoreLocation, started_realtime_ns: int) -> list[dict[str, Any]]:
    """
    For a daemon that started then: the silences that are not over, and the acknowledgements of findings that were active
    when it stopped, which its store ends at the start. Raises StoreError.
    """
    columns = operator_note.c
    silent = columns.until_realtime_ns > started_realtime_ns
    ended_ns = finding.c.until_realtime_ns
    was_active = exists().where(
        finding.c.finding_id == columns.finding,
        finding.c.subject == columns.subject,
        finding.c.since_realtime_ns <= columns.realtime_ns,
        or_(ended_ns.is_(None), ended_ns >= started_realtime_ns),
    )
    taken = and_(columns.kind == "acknowledge", was_active)
    return _read(location, columns.finding.is_not(None), or_(taken, silent))


def _read(location: StoreLocation, *where: ColumnElement[bool]) -> list[dict[str, Any]]:
    columns = operator_note.c
    rows = select(operator_note).where(*where, intact(*columns))
    newest = rows.order_by(columns.realtime_ns.desc(), columns.note_id.desc()).limit(MAX_NOTES)
    with reading(location) as connection:
        return [dict(row) for row in connection.execute(newest).mappings()]


def note_message(row: dict[str, Any]) -> OperatorNote:
    """A stored note as it was published. Raises ValidationError for a damaged row."""
    fields = {name: row[name] for name in NOTE_FIELDS}
    order = {"incarnation": 0, "sequence": 0, "published_realtime_ns": row["realtime_ns"]}
    return OperatorNote.model_validate(fields | order | {"id": row["note_id"]})
