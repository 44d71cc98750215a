"""
The routes of a clock's stability: what `timesyncd stability` computes, from this daemon's store, and the readings that it
needs of another node.

They read in a thread, one answer at a time and of a bounded number of readings, since it costs the daemon's own time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, TypeVar

from aiohttp import web
from pydantic import Field

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.messages.node import Message
from timesyncd.messages.stability import (
    StabilityAnswer,
    StabilityReportMessage,
    StabilitySeries,
    TimeErrorReadings,
)
from timesyncd.stability.readings import Reading
from timesyncd.stability.report import stability_of
from timesyncd.store.engine import StoreLocation
from timesyncd.store.history import sources
from timesyncd.store.time_errors import channel_readings, offset_readings, time_error_channels
from timesyncd.web.api import STORE, VIEW, not_found
from timesyncd.web.query import NAME, TimeRangeQuery
from timesyncd.web.responses import error_response, message_response
from timesyncd.web.routes import Document, Route

#: An hour at 8 readings a second is 28,800. A reading takes some 30 us.
MAX_READINGS = 40_000
DEFAULT_SPAN_NS = 3_600 * NS_PER_S

_computing = threading.Lock()

_Answer = TypeVar("_Answer", bound=Message)


class StabilityQuery(TimeRangeQuery):
    source: Annotated[
        str, Field(pattern=f"^{NAME}$", description="A clock source of this daemon, or a grandmaster that it polls.")
    ]


async def stability(request: web.Request, query: StabilityQuery) -> web.Response:
    now_ns, place = time.time_ns(), request.app.get(STORE)
    since_ns, until_ns = query.span_ns(DEFAULT_SPAN_NS, now_ns)
    answer = StabilityAnswer(
        as_of_realtime_ns=now_ns,
        source=query.source,
        begin_realtime_ns=since_ns,
        end_realtime_ns=until_ns,
        series=[],
    )

    def computed(place: StoreLocation, kind: str) -> StabilityAnswer:
        return answer.model_copy(update={"series": _all_series(place, query.source, kind, since_ns, until_ns)})

    return message_response(request, answer) if place is None else await _answer(request, place, query.source, computed)


async def readings(request: web.Request, query: StabilityQuery) -> web.Response:
    now_ns, place = time.time_ns(), request.app.get(STORE)
    since_ns, until_ns = query.span_ns(DEFAULT_SPAN_NS, now_ns)
    answer = TimeErrorReadings(
        as_of_realtime_ns=now_ns,
        node=request.app[VIEW].node().node,
        source=query.source,
        begin_realtime_ns=since_ns,
        end_realtime_ns=until_ns,
        at_ns=[],
        te_ns=[],
        reference=[],
        problem="this daemon has no [store]",
    )

    def read(place: StoreLocation, kind: str) -> TimeErrorReadings:
        return answer.model_copy(update=_columns(place, query.source, kind, since_ns, until_ns))

    return message_response(request, answer) if place is None else await _answer(request, place, query.source, read)


async def _answer(
    request: web.Request, place: StoreLocation, source: str, answer: Callable[[StoreLocation, str], _Answer]
) -> web.Response:
    """`answer` gets the store and the source's kind, in a thread."""
    if not _computing.acquire(blocking=False):
        return error_response(503, "another answer about stability is being computed: try again")
    try:
        known = await asyncio.to_thread(sources, place)
        if source not in known:
            return not_found("source", source, list(known))
        return message_response(request, await asyncio.to_thread(answer, place, known[source]))
    except StoreError as error:
        return error_response(503, str(error))
    finally:
        _computing.release()


def _columns(place: StoreLocation, source: str, kind: str, since_ns: int, until_ns: int) -> dict[str, object]:
    """The fields of TimeErrorReadings that depend on the store. Raises StoreError."""
    found = offset_readings(place, source, since_ns, until_ns)
    if found is None:
        return {"problem": f"a source of kind {kind} measures no offset from a reference"}
    used = list(islice(found, MAX_READINGS + 1))
    if len(used) > MAX_READINGS:
        return {"problem": f"more than {MAX_READINGS:,} readings: ask for a shorter span"}
    at_ns, te_ns, reference = zip(*used, strict=True) if used else ((), (), ())
    return {"at_ns": list(at_ns), "te_ns": list(te_ns), "reference": list(reference), "problem": None}


def _all_series(place: StoreLocation, source: str, kind: str, since_ns: int, until_ns: int) -> list[StabilitySeries]:
    """Raises StoreError."""
    span = since_ns, until_ns
    if kind == "grandmaster":
        channels = time_error_channels(place, source, *span)
        left = MAX_READINGS // max(1, len(channels))
        return [_series(channel, channel_readings(place, source, channel, *span), left, span) for channel in channels]
    readings = offset_readings(place, source, *span)
    if readings is None:
        problem = f"a source of kind {kind} measures no offset from a reference"
        return [StabilitySeries(channel=None, report=None, problem=problem)]
    return [_series(None, readings, MAX_READINGS, span)]


def _series(channel: str | None, readings: Iterator[Reading], most: int, span: tuple[int, int]) -> StabilitySeries:
    used = list(islice(readings, most + 1))
    if len(used) > most:
        problem = f"more than {most:,} readings: ask for a shorter span, or use `timesyncd stability`"
        return StabilitySeries(channel=channel, report=None, problem=problem)
    report = stability_of(used, max(span[1] - span[0], 1))
    if report is None:
        return StabilitySeries(channel=channel, report=None, problem="fewer than two readings in this span")
    return StabilitySeries(channel=channel, report=StabilityReportMessage.model_validate(asdict(report)), problem=None)


ROUTES = (
    Route(
        "/api/v1/stability",
        "MTIE, TDEV, ADEV and time error of a source, and how they compare with the masks of ITU-T.",
        "reader",
        stability,
        Document(StabilityAnswer),
        StabilityQuery,
        (404, 503),
    ),
    Route(
        "/api/v1/stability/readings",
        "The measured offsets of a source, which `timesyncd stability --against` subtracts from another node's.",
        "reader",
        readings,
        Document(TimeErrorReadings),
        StabilityQuery,
        (404, 503),
    ),
)
