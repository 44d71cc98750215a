"""The routes of the history in the store. Reading blocks, so it runs in threads."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import cast

from aiohttp import web

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.ipc.wire_types import Int64
from timesyncd.messages.fleet import NODE_PATH, CloudEvent
from timesyncd.messages.node import Message
from timesyncd.store import history
from timesyncd.store.engine import StoreLocation
from timesyncd.web.api import VIEW
from timesyncd.web.query import (
    MAX_TIME_NS,
    NAME,
    EventsQuery,
    HistoryQuery,
    HistorySourcesQuery,
    TimeRangeQuery,
    decode_cursor,
    encode_cursor,
)
from timesyncd.web.responses import error_response, list_response
from timesyncd.web.routes import DocumentList, Route

STORE = web.AppKey("store", StoreLocation)

DAY_NS = 86_400 * NS_PER_S
TIME_ERROR_STEPS = 288


class TimeErrorStep(Message):
    """
    The lowest and the highest value of a metric of a grandmaster's channel, in one step that begins at `realtime_ns`.
    """

    channel: str
    metric: str
    realtime_ns: Int64
    lowest_ns: Int64
    highest_ns: Int64


class HistoryPoint(Message):
    """A roll-up of `count` samples over `span_s` that begins at `realtime_ns`; `span_s` 0: a single sample."""

    realtime_ns: Int64
    span_s: Int64
    count: Int64
    minimum: Int64
    maximum: Int64
    mean: Int64
    p50: Int64
    p99: Int64


class HistorySource(Message):
    """A source and one of its quantities with a history."""

    node: str
    source: str
    quantity: str


Page = tuple[Sequence[Message], str | None]


async def time_errors(request: web.Request, query: TimeRangeQuery) -> web.Response:
    """Includes grandmasters that the daemon no longer polls, so it accepts every valid name."""
    name, span = request.match_info["name"], query.span_ns(DAY_NS, time.time_ns())
    if not re.fullmatch(NAME, name, re.ASCII):
        return error_response(404, f"unknown grandmaster {name!r}: not a valid name")

    def read(place: StoreLocation) -> Page:
        steps = history.time_error_envelope(place, name, *span, TIME_ERROR_STEPS)
        return [TimeErrorStep.model_validate(step) for step in steps], None

    return await _read_list(request, read)


async def events(request: web.Request, query: EventsQuery) -> web.Response:
    after = None if query.cursor is None else cast(tuple[int, int, str], decode_cursor(query.cursor, (int, int, str)))
    since_ns = query.since or 0
    until_ns = MAX_TIME_NS if query.until is None else query.until

    def read(place: StoreLocation) -> Page:
        rows = history.cloud_events(place, query.node, since_ns, until_ns, after, query.limit + 1, query.type)
        page_rows = rows[: query.limit]
        next = (
            [page_rows[-1][name] for name in ("realtime_ns", "sequence", "node")]
            if len(rows) > len(page_rows)
            else None
        )
        return [_cloud_event(row) for row in page_rows], None if next is None else encode_cursor(tuple(next))

    return await _read_list(request, read)


def _cloud_event(row: history.Record) -> CloudEvent:
    fields = {name: row[name] for name in ("type", "subject", "time", "data")}
    return CloudEvent.model_validate(fields | {"id": row["event_id"], "source": NODE_PATH + row["node"]})


async def series(request: web.Request, query: HistoryQuery) -> web.Response:
    node, span = query.node or request.app[VIEW].node().node, query.span_ns(DAY_NS, time.time_ns())

    def read(place: StoreLocation) -> Page:
        points = history.series(place, node, query.source, query.quantity, *span)
        return [HistoryPoint.model_validate(point) for point in points], None

    return await _read_list(request, read)


async def sources(request: web.Request, query: HistorySourcesQuery) -> web.Response:
    node = query.node or request.app[VIEW].node().node

    def read(place: StoreLocation) -> Page:
        known = history.rollup_sources(place, node)
        return [
            HistorySource(node=node, source=source, quantity=quantity)
            for source, quantities in known.items()
            for quantity in quantities
        ], None

    return await _read_list(request, read)


async def _read_list(request: web.Request, read: Callable[[StoreLocation], Page]) -> web.Response:
    """A list that a thread reads from the store; empty without a store."""
    place = request.app.get(STORE)
    if place is None:
        return list_response(request, [])
    try:
        return list_response(request, *await asyncio.to_thread(read, place))
    except StoreError as error:
        return error_response(503, str(error))


ROUTES = (
    Route(
        "/api/v1/grandmasters/{name}/time-errors",
        "The time errors of a grandmaster over time.",
        "reader",
        time_errors,
        DocumentList(TimeErrorStep),
        TimeRangeQuery,
        (404, 503),
    ),
    Route(
        "/api/v1/events",
        "Events as CloudEvents, the newest first.",
        "reader",
        events,
        DocumentList(CloudEvent),
        EventsQuery,
        (503,),
    ),
    Route(
        "/api/v1/history",
        "The history of one quantity, for a chart.",
        "reader",
        series,
        DocumentList(HistoryPoint),
        HistoryQuery,
        (503,),
    ),
    Route(
        "/api/v1/history/sources",
        "The sources and quantities with a history.",
        "reader",
        sources,
        DocumentList(HistorySource),
        HistorySourcesQuery,
        (503,),
    ),
)
