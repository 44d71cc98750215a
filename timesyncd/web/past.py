"""
The routes of the past for charts: any time range, at most as many steps as the client asks for, and one `as_of_realtime_ns` with the
lag in every answer. A step of which nothing is known is null.

Reading the store blocks, so it runs in threads.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Annotated, Literal

from aiohttp import web
from pydantic import BeforeValidator, Field

from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.messages.node import Message
from timesyncd.messages.series import (
    LatenessMatrix,
    QuantitySeries,
    RacksAnswer,
    SeriesAnswer,
    SkyAnswer,
    StatesAnswer,
    StateSpan,
)
from timesyncd.store import grids
from timesyncd.store.engine import StoreLocation
from timesyncd.store.grids import NS_PER_MS, Envelope, Grid, envelope
from timesyncd.store.hub_sources import FLEET_SOURCE, job_source, rack_source
from timesyncd.store.series import Record, rollup_quantities, rollup_sources, series
from timesyncd.web.api import STORE, VIEW, not_found
from timesyncd.web.query import JOB_ID, NAME, Query, TimeRangeQuery, require_integer
from timesyncd.web.responses import Answer, error_response, message_answer, no_grandmaster
from timesyncd.web.routes import Document, Route

HOUR_NS = 3_600 * NS_PER_S
MAX_POINTS = 5_000
MAX_QUANTITIES = 32
#: More records than steps: minutes are read where hours would be enough.
RECORDS_PER_POINT = 3

#: More racks than a chart has rows.
MAX_RACKS = 1_000
RACK_QUANTITIES = ("widest_bound_ns", "without_bound")

TERM = "term:"
#: The PTP clients of a grandmaster, on all its ports.
CLIENTS = "ptp_clients"
GRANDMASTER_COLUMNS = ("utc_bound_ns", "phase_offset_ns", "clock_class", "uptime_s")


class PointsQuery(TimeRangeQuery):
    points: Annotated[
        int, Field(ge=2, le=MAX_POINTS, description="The maximum number of steps."), BeforeValidator(require_integer)
    ] = 500


class SeriesQuery(PointsQuery):
    subject: Annotated[
        Literal["fleet", "node", "job", "grandmaster"], Field(description="What the quantities are of.")
    ] = "fleet"
    name: Annotated[
        str | None,
        Field(pattern=f"^({NAME})$", description="The node's or the grandmaster's name, or the job's id."),
    ] = None
    source: Annotated[
        str | None, Field(pattern=f"^{NAME}$", description="Of a node: the clock source; by default its first one.")
    ] = None
    quantities: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9_:]{1,64}(,[a-z0-9_:]{1,64})*$",
            max_length=1_024,
            description="Names, separated by commas; by default all that are stored.",
        ),
    ] = None

    @property
    def problem(self) -> str | None:
        """What is missing to know the subject; None: nothing."""
        if self.subject == "job" and not re.fullmatch(JOB_ID, self.name or "", re.ASCII):
            return "name: of a job give its id, 16 hexadecimal digits"
        return "name: give the grandmaster's name" if self.subject == "grandmaster" and self.name is None else None

    @property
    def wanted(self) -> list[str] | None:
        """The names, each once; None: all."""
        return None if self.quantities is None else list(dict.fromkeys(self.quantities.split(",")))[:MAX_QUANTITIES]


class StepsQuery(Query):
    steps: Annotated[
        int, Field(ge=1, le=2_000, description="The maximum number of steps."), BeforeValidator(require_integer)
    ] = 500


async def quantities(request: web.Request, query: SeriesQuery) -> Answer:
    if query.problem is not None:
        return error_response(404, query.problem)
    now_ns, own = time.time_ns(), request.app[VIEW].node().node
    grid = Grid.of(*query.span_ns(HOUR_NS, now_ns), query.points)
    return await _read(
        request, lambda place: _series_answer(place, query, own, grid, now_ns), _series({}, grid, now_ns)
    )


def _series_answer(place: StoreLocation | None, query: SeriesQuery, own: str, grid: Grid, now_ns: int) -> SeriesAnswer:
    assert place is not None
    records = _records(place, query, own, grid)
    return _series({name: envelope(found, grid) for name, found in records.items() if found}, grid, now_ns)


def _series(found: dict[str, Envelope], grid: Grid, now_ns: int) -> SeriesAnswer:
    newest = [each.newest_ns for each in found.values() if each.newest_ns is not None]
    return SeriesAnswer(
        as_of_realtime_ns=now_ns,
        lag_ns=max(0, now_ns - max(newest)) if newest else None,
        begin_ms=grid.begin_ns // NS_PER_MS,
        step_ms=grid.step_ns // NS_PER_MS,
        steps=grid.steps,
        quantities={
            name: QuantitySeries(minimum=each.minimum, median=each.median, maximum=each.maximum)
            for name, each in found.items()
        },
    )


def _records(place: StoreLocation, query: SeriesQuery, own: str, grid: Grid) -> dict[str, list[Record]]:
    if query.subject == "grandmaster":
        names = [name for name in query.wanted or GRANDMASTER_COLUMNS if name in GRANDMASTER_COLUMNS]
        found = grids.grandmaster_values(place, query.name or "", names, grid)
        if query.wanted is None or CLIENTS in query.wanted:
            found[CLIENTS] = grids.client_counts(place, query.name or "", grid)
        return found
    node = query.name or own if query.subject == "node" else own
    source = {"fleet": FLEET_SOURCE, "job": job_source(query.name or "")}.get(query.subject) or query.source
    if source is None:
        source = _first_source(place, node)
    wanted = query.wanted or rollup_quantities(place, node, source)
    rows = max(2_000, RECORDS_PER_POINT * grid.steps)
    found = {
        name: series(place, node, source, name, grid.begin_ns, grid.end_ns, rows)
        for name in wanted
        if not name.startswith(TERM)
    }
    wants_terms = query.quantities is None or any(name.startswith(TERM) for name in wanted)
    return found | (_terms(place, source, grid) if wants_terms and node == own and query.subject == "node" else {})


def _first_source(place: StoreLocation, node: str) -> str:
    """The first one of a clock; empty: the node has none."""
    known = rollup_sources(place, node)
    return next((name for name, stored in known.items() if "path_delay_ns" in stored), next(iter(known), ""))


def _terms(place: StoreLocation, source: str, grid: Grid) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for at, terms in grids.newest_terms(place, source, grid):
        for name, value in terms.items():
            found.setdefault(TERM + name, []).append(grids.point(at, value))
    return found


async def racks(request: web.Request, query: PointsQuery) -> Answer:
    """Of the places that nodes have now."""
    view, now_ns = request.app[VIEW], time.time_ns()
    grid = grids.rack_grid(*query.span_ns(HOUR_NS, now_ns), query.points)
    node, places = view.node().node, sorted(view.map().places)[:MAX_RACKS]

    def read(place: StoreLocation) -> RacksAnswer:
        sources = [rack_source(each) for each in places]
        return _racks(*grids.largest_values(place, node, sources, RACK_QUANTITIES, grid), places, grid, now_ns)

    return await _read(request, read, _racks({}, None, [], grid, now_ns))


def _racks(
    found: dict[tuple[str, str], dict[int, int]], newest_ns: int | None, places: list[str], grid: Grid, now_ns: int
) -> RacksAnswer:
    known = [place for place in places if any((rack_source(place), name) in found for name in RACK_QUANTITIES)]
    widest, without = (
        [[found.get((rack_source(place), name), {}).get(step) for step in range(grid.steps)] for place in known]
        for name in RACK_QUANTITIES
    )
    return RacksAnswer(
        as_of_realtime_ns=now_ns,
        lag_ns=None if newest_ns is None else max(0, now_ns - newest_ns),
        begin_ms=grid.begin_ns // NS_PER_MS,
        step_ms=grid.step_ns // NS_PER_MS,
        steps=grid.steps,
        racks=known,
        widest_bound_ns=widest,
        without_bound=without,
    )


async def states(request: web.Request, query: TimeRangeQuery) -> Answer:
    """Includes grandmasters that the daemon no longer polls, so it accepts every valid name."""
    now_ns, name = time.time_ns(), request.match_info["name"]
    if not re.fullmatch(NAME, name, re.ASCII):
        return no_grandmaster(name)
    since_ns, until_ns = query.span_ns(24 * HOUR_NS, now_ns)
    until_ns = min(until_ns, max(now_ns, since_ns + 1))

    def read(place: StoreLocation) -> StatesAnswer:
        return _states(grids.grandmaster_spans(place, name, since_ns, until_ns), now_ns)

    return await _read(request, read, _states([(since_ns, until_ns, grids.NOT_POLLED)], now_ns))


def _states(spans: list[tuple[int, int, grids.State]], now_ns: int) -> StatesAnswer:
    known = [end_ns for _, end_ns, state in spans if state != grids.NOT_POLLED]
    return StatesAnswer(
        as_of_realtime_ns=now_ns,
        lag_ns=max(0, now_ns - known[-1]) if known else None,
        spans=[
            StateSpan(
                begin_ms=begin_ns // NS_PER_MS,
                end_ms=end_ns // NS_PER_MS,
                **dict(zip(grids.STATE_COLUMNS, state, strict=True)),
            )
            for begin_ns, end_ns, state in spans
        ],
    )


async def sky(request: web.Request, query: PointsQuery) -> Answer:
    now_ns, name = time.time_ns(), request.match_info["name"]
    if not re.fullmatch(NAME, name, re.ASCII):
        return no_grandmaster(name)
    grid = Grid.of(*query.span_ns(24 * HOUR_NS, now_ns), query.points)
    return await _read(
        request,
        lambda place: _sky(*grids.satellite_levels(place, name, grid), grid, now_ns),
        _sky({}, None, grid, now_ns),
    )


def _sky(levels: dict[int, dict[int, int]], newest_ns: int | None, grid: Grid, now_ns: int) -> SkyAnswer:
    numbers = sorted(levels)
    return SkyAnswer(
        as_of_realtime_ns=now_ns,
        lag_ns=None if newest_ns is None else max(0, now_ns - newest_ns),
        begin_ms=grid.begin_ns // NS_PER_MS,
        step_ms=grid.step_ns // NS_PER_MS,
        steps=grid.steps,
        satellites=numbers,
        cn0_db_hz=[[levels[number].get(step) for step in range(grid.steps)] for number in numbers],
    )


async def lateness(request: web.Request, query: StepsQuery) -> Answer:
    view, id = request.app[VIEW], request.match_info["id"]
    found = view.lateness(id, query.steps)
    if found is None:
        return not_found("job", id, [job.job_id for job in view.jobs()])
    return message_answer(found)


async def _read(request: web.Request, read: Callable[[StoreLocation], Message], empty: Message) -> Answer:
    """What a thread reads from the store; `empty` without a store."""
    place = request.app.get(STORE)
    if place is None:
        return message_answer(empty)
    try:
        return message_answer(await asyncio.to_thread(read, place))
    except StoreError as error:
        return error_response(503, str(error))


ROUTES = (
    Route(
        "/api/v1/series",
        "Quantities over time for charts: of the fleet, a node, a job or a grandmaster.",
        "reader",
        quantities,
        Document(SeriesAnswer),
        SeriesQuery,
        (404, 503),
    ),
    Route(
        "/api/v1/fleet/racks",
        "The widest bound and the nodes without one of each rack over time.",
        "reader",
        racks,
        Document(RacksAnswer),
        PointsQuery,
        (503,),
    ),
    Route(
        "/api/v1/grandmasters/{name}/states",
        "The states of a grandmaster over time.",
        "reader",
        states,
        Document(StatesAnswer),
        TimeRangeQuery,
        (404, 503),
    ),
    Route(
        "/api/v1/grandmasters/{name}/sky",
        "The C/N0 of a grandmaster's satellites over time.",
        "reader",
        sky,
        Document(SkyAnswer),
        PointsQuery,
        (404, 503),
    ),
    Route(
        "/api/v1/jobs/{id}/lateness",
        "Each rank's lateness in a job's newest steps, as one compact matrix.",
        "reader",
        lateness,
        Document(LatenessMatrix),
        StepsQuery,
        (404,),
    ),
)
