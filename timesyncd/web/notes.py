"""
The routes of operators' notes, the one thing that a client can write, and the export of a span as a post-mortem.

A note is signed with the name of the token or certificate that was shown, never with a name from the request. Against forged
requests of other sites a browser, which shows its session or certificate by itself, must send the header X-Timesyncd-Write, which no
other site's page can.
"""

from __future__ import annotations

import asyncio
import re
import time

from aiohttp import web
from pydantic import ValidationError

from timesyncd.clocks import NS_PER_S
from timesyncd.config import validation_text
from timesyncd.errors import StoreError
from timesyncd.messages.notes import HandledFinding, NoteRequest, OperatorNote
from timesyncd.store import history, notes
from timesyncd.store.engine import StoreLocation
from timesyncd.store.grids import Envelope, Grid, envelope
from timesyncd.store.hub_sources import FLEET_SOURCE
from timesyncd.store.intact import readable
from timesyncd.store.series import series
from timesyncd.web.api import STORE, VIEW
from timesyncd.web.auth import FORM_TIMEOUT_S, GRANT, cross_site_refusal
from timesyncd.web.postmortem import MAX_ROWS, Incident, postmortem
from timesyncd.web.query import NAME, PageQuery, Query, TimeRangeQuery
from timesyncd.web.responses import Answer, error_response, json_answer, list_answer, paginate
from timesyncd.web.routes import Document, DocumentList, PlainText, Route

PATH = "/api/v1/notes"
WRITE_HEADER = "X-Timesyncd-Write"
DAY_NS = 86_400 * NS_PER_S
MARKDOWN = "text/markdown"

#: Steps of the fleet's alignment in a post-mortem.
STEPS = 500


async def list_notes(request: web.Request, query: TimeRangeQuery) -> Answer:
    place, span = request.app.get(STORE), query.span_ns(DAY_NS, time.time_ns())
    if place is None:
        return list_answer(request, [])
    try:
        return list_answer(request, await asyncio.to_thread(_notes, place, span))
    except StoreError as error:
        return error_response(503, str(error))


def _notes(place: StoreLocation, span: tuple[int, int]) -> list[OperatorNote]:
    return readable(notes.note_message, notes.notes(place, *span))


async def handled(request: web.Request, query: PageQuery) -> Answer:
    return list_answer(
        request, *paginate(request.app[VIEW].handled(), lambda each: (each.finding, each.subject), query)
    )


async def write(request: web.Request, _query: Query) -> Answer:
    if (refusal := _forged(request)) is not None:
        return refusal
    author = GRANT.get().name
    if not re.fullmatch(NAME, author, re.ASCII):
        return error_response(403, f"{author!r} cannot sign a note: use a [[web.token]], whose name is one")
    if request.content_type != "application/json":
        return error_response(415, f"Content-Type: {request.content_type!r}: send application/json")
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            note = NoteRequest.model_validate_json(await request.read())
    except TimeoutError:
        return error_response(408, f"the note did not arrive within {FORM_TIMEOUT_S:g} s")
    except ValidationError as error:
        return error_response(400, validation_text(error, model=NoteRequest, with_value=False))
    written = request.app[VIEW].write_note(note, author)
    if isinstance(written, str):
        return error_response(409, written)
    return json_answer(written.model_dump_json().encode())


def _forged(request: web.Request) -> web.Response | None:
    """403 for a request that another site's page could have sent. An Authorization header is never sent by itself."""
    if "Authorization" in request.headers:
        return None
    if WRITE_HEADER not in request.headers:
        return error_response(403, f"send the header {WRITE_HEADER}: 1, or Authorization: Bearer TOKEN")
    return cross_site_refusal(request)


async def export(request: web.Request, query: TimeRangeQuery) -> Answer:
    place, now_ns = request.app.get(STORE), time.time_ns()
    since_ns, until_ns = query.span_ns(DAY_NS, now_ns)
    node = request.app[VIEW].node().node
    if since_ns >= until_ns:
        return error_response(409, "since must be before until")
    try:
        incident = (
            Incident(since_ns, until_ns, now_ns, node)
            if place is None
            else await asyncio.to_thread(read_incident, place, node, (since_ns, until_ns), now_ns)
        )
    except StoreError as error:
        return error_response(503, str(error))
    return web.Response(text=postmortem(incident), content_type=MARKDOWN, charset="utf-8")


def read_incident(place: StoreLocation, node: str, span: tuple[int, int], now_ns: int) -> Incident:
    """What the store has of this span. Raises StoreError."""
    rows = history.cloud_events(place, None, *span, limit=MAX_ROWS + 1)
    grid = Grid.of(*span, STEPS)
    return Incident(
        *span,
        now_ns,
        node,
        rows[:MAX_ROWS],
        _notes(place, span),
        len(rows) > MAX_ROWS,
        _fleet(place, node, "alignment_ns", grid),
        _fleet(place, node, "without_bound", grid),
    )


def _fleet(place: StoreLocation, node: str, quantity: str, grid: Grid) -> Envelope:
    return envelope(series(place, node, FLEET_SOURCE, quantity, grid.begin_ns, grid.end_ns), grid)


ROUTES = (
    Route(PATH, "Operators' notes, the newest first.", "reader", list_notes, DocumentList(OperatorNote), TimeRangeQuery, (503,)),
    Route(
        PATH, "Write a note, signed with the name of the token.", "writer", write, Document(OperatorNote),
        errors=(408, 409, 413, 415), body=NoteRequest,
    ),
    Route(
        "/api/v1/findings/handled", "The active findings that somebody acknowledged or silenced.", "reader", handled,
        DocumentList(HandledFinding), PageQuery,
    ),
    Route(
        "/api/v1/postmortem", "A span of time as a post-mortem in Markdown.", "reader", export, PlainText(MARKDOWN),
        TimeRangeQuery, (409, 503),
    ),
)  # fmt: skip
