"""
The routes of the HTTP API: the states that a daemon knows, and the history in its store.

Reading the store blocks, so it runs in threads.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from aiohttp import web

from timesyncd.build import this_build
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import StoreError
from timesyncd.ipc.wire_types import Int64
from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.cost import DaemonCost
from timesyncd.messages.fleet import NODE_PATH, AlignmentState, CloudEvent, FleetMap, FleetSummary, HubState
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, GrandmasterState, Message, NodeState
from timesyncd.messages.overview import BuildInfo, Headline, Overview
from timesyncd.store import history
from timesyncd.store import series as store_series
from timesyncd.store.engine import StoreLocation
from timesyncd.store.intact import readable
from timesyncd.web.auth import GRANT
from timesyncd.web.query import (
    JOB_ID,
    MAX_TIME_NS,
    NAME,
    AlignmentQuery,
    EventsQuery,
    FindingsQuery,
    HistoryQuery,
    HistorySourcesQuery,
    NodesQuery,
    OverviewQuery,
    PageQuery,
    Query,
    TimeRangeQuery,
    WindowQuery,
    decode_cursor,
    encode_cursor,
)
from timesyncd.web.responses import (
    Answer,
    error_response,
    json_answer,
    list_answer,
    message_answer,
    no_grandmaster,
    not_found_response,
    paginate,
)
from timesyncd.web.routes import Document, DocumentList, PlainText, Route
from timesyncd.web.view import NodeFilter, View

HEALTH_PATH = "/healthz"
VIEW = web.AppKey("view", View)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def node(request: web.Request, _query: Query) -> Answer:
    return message_answer(request.app[VIEW].node())


async def build(request: web.Request, _query: Query) -> Answer:
    this = this_build()
    own = request.app[VIEW].node().node
    return message_answer(BuildInfo(version=this.version, commit=this.commit, python=this.python, node=own))


async def nodes(request: web.Request, query: NodesQuery) -> Answer:
    view = request.app[VIEW]
    node_filter = NodeFilter(query.status, query.grandmaster, query.topology, query.q)
    names, next = paginate(view.node_names(node_filter), lambda name: (name,), query)
    return list_answer(request, view.nodes(names), next)


async def node_named(request: web.Request, _query: Query) -> Answer:
    view, name = request.app[VIEW], request.match_info["name"]
    found = view.nodes([name])
    return message_answer(found[0]) if found else not_found("node", name, view.node_names())


async def fleet(request: web.Request, _query: Query) -> Answer:
    return message_answer(request.app[VIEW].fleet())


async def overview(request: web.Request, query: OverviewQuery) -> Answer:
    found = request.app[VIEW].overview()
    if query.findings < len(found.findings):
        found = found.model_copy(update={"findings": found.findings[: query.findings]})
    return message_answer(found)


async def headline(request: web.Request, _query: Query) -> Answer:
    return message_answer(request.app[VIEW].overview().headline)


async def alignment(request: web.Request, query: AlignmentQuery) -> Answer:
    """
    The alignment of some nodes, of a job or of all nodes. Only a reader may list all nodes or find a job by its name.
    """
    view, grant = request.app[VIEW], GRANT.get()
    if query.nodes is None and not re.fullmatch(JOB_ID, query.job or "") and not grant.covers("reader"):
        return error_response(
            403,
            f"the role {grant.role} may request the alignment of named nodes or of a job by its id; "
            "others need the role reader",
        )
    names = None if query.nodes is None else list(dict.fromkeys(query.nodes.split(",")))
    job_id = None if query.job is None else _resolve_job_id(view.jobs(), query.job)
    found = None if query.job is not None and job_id is None else view.alignment(names, job_id)
    if found is None:
        return not_found("job", query.job or "", sorted({job.job for job in view.jobs()}))
    return message_answer(found)


def _resolve_job_id(jobs: Iterable[JobState], wanted: str) -> str | None:
    """The id of the job with this id or name; of several jobs with one name, of the one that published last."""
    named = [job for job in jobs if wanted in (job.job_id, job.job)]
    newest = max(named, key=lambda job: (job.job_id == wanted, job.published_realtime_ns), default=None)
    return None if newest is None else newest.job_id


async def hubs(request: web.Request, _query: Query) -> Answer:
    return list_answer(request, request.app[VIEW].hubs())


async def grandmasters(request: web.Request, query: PageQuery) -> Answer:
    return list_answer(
        request, *paginate(request.app[VIEW].grandmasters(), lambda grandmaster: (grandmaster.name,), query)
    )


async def grandmaster(request: web.Request, _query: Query) -> Answer:
    known = {each.name: each for each in request.app[VIEW].grandmasters()}
    name = request.match_info["name"]
    return message_answer(known[name]) if name in known else not_found("grandmaster", name, list(known))


async def jobs(request: web.Request, query: PageQuery) -> Answer:
    return list_answer(request, *paginate(request.app[VIEW].jobs(), lambda job: (job.job_id,), query))


async def job(request: web.Request, _query: Query) -> Answer:
    known = {job.job_id: job for job in request.app[VIEW].jobs()}
    id = request.match_info["id"]
    return message_answer(known[id]) if id in known else not_found("job", id, list(known))


async def window(request: web.Request, query: WindowQuery) -> Answer:
    view, id = request.app[VIEW], request.match_info["id"]
    found = view.window(id, query.from_step, query.limit)
    return message_answer(found) if found is not None else not_found("job", id, [job.job_id for job in view.jobs()])


async def findings(request: web.Request, query: FindingsQuery) -> Answer:
    found = [finding for finding in request.app[VIEW].findings() if _matches(finding, query)]
    return list_answer(request, *paginate(found, lambda each: (-each.since_realtime_ns, each.id, each.subject), query))


def _matches(finding: FindingMessage, query: FindingsQuery) -> bool:
    """Whether the finding is active at some moment of the query's time range."""
    until_ns = finding.until_realtime_ns
    return (
        (until_ns is None or query.active == "false")
        and (query.since is None or until_ns is None or until_ns > query.since)
        and (query.until is None or finding.since_realtime_ns < query.until)
    )


async def cost(request: web.Request, _query: Query) -> Answer:
    found = request.app[VIEW].cost()
    return error_response(404, "this daemon does not measure its cost") if found is None else message_answer(found)


async def config(request: web.Request, _query: Query) -> Answer:
    return json_answer(request.app[VIEW].config().encode())


async def metrics(request: web.Request, _query: Query) -> Answer:
    return web.Response(body=request.app[VIEW].metrics(), headers={"Content-Type": METRICS_TYPE})


async def health(request: web.Request, _query: Query) -> Answer:
    fault = request.app[VIEW].health()
    return web.Response(status=200 if fault is None else 503, text=f"{fault or 'ok'}\n")


def not_found(what: str, wanted: str, known: list[str]) -> Answer:
    """Status 404; the existing names are for clients that may list them."""
    if not GRANT.get().covers("reader"):
        return error_response(404, f"unknown {what} {wanted!r}")
    return not_found_response(what, wanted, known, len(known))


async def fleet_map(request: web.Request, _query: Query) -> Answer:
    return message_answer(request.app[VIEW].map())


ROUTES = (
    Route("/api/v1/node", "This daemon's own node.", "job", node, Document(NodeState)),
    Route("/api/v1/build", "Which timesyncd this daemon is.", "job", build, Document(BuildInfo)),
    Route("/api/v1/nodes", "Every known node, sorted by name.", "reader", nodes, DocumentList(NodeState), NodesQuery),
    Route("/api/v1/nodes/{name}", "One node.", "job", node_named, Document(NodeState), errors=(404,)),
    Route("/api/v1/fleet", "The fleet's summary.", "reader", fleet, Document(FleetSummary)),
    Route(
        "/api/v1/fleet/overview",
        "All that a first look needs, at one moment.",
        "reader",
        overview,
        Document(Overview),
        OverviewQuery,
    ),
    Route("/api/v1/headline", "The fleet's clocks in one sentence.", "reader", headline, Document(Headline)),
    Route("/api/v1/fleet/map", "Status and bound of every node, by place.", "reader", fleet_map, Document(FleetMap)),
    Route(
        "/api/v1/alignment",
        "How far apart the clocks may be: of named nodes, of a job's nodes, or of all nodes.",
        "job",
        alignment,
        Document(AlignmentState),
        AlignmentQuery,
        (404,),
    ),
    Route("/api/v1/hubs", "The live hubs.", "job", hubs, DocumentList(HubState)),
    Route(
        "/api/v1/grandmasters",
        "The known grandmasters, sorted by name.",
        "reader",
        grandmasters,
        DocumentList(GrandmasterState),
        PageQuery,
    ),
    Route(
        "/api/v1/grandmasters/{name}",
        "One grandmaster.",
        "reader",
        grandmaster,
        Document(GrandmasterState),
        errors=(404,),
    ),
    Route("/api/v1/jobs", "The training jobs, sorted by id.", "reader", jobs, DocumentList(JobState), PageQuery),
    Route("/api/v1/jobs/{id}", "One training job.", "job", job, Document(JobState), errors=(404,)),
    Route(
        "/api/v1/jobs/{id}/window",
        "The arrivals of a job's newest steps, as the hub aggregated them, in pages.",
        "job",
        window,
        Document(RecordingMessage),
        WindowQuery,
        (404,),
    ),
    Route(
        "/api/v1/findings",
        "Active and ended findings, the newest first.",
        "reader",
        findings,
        DocumentList(FindingMessage),
        FindingsQuery,
    ),
    Route(
        "/api/v1/cost",
        "What this daemon costs its node: CPU, memory, and polls, packets and bytes by source.",
        "reader",
        cost,
        Document(DaemonCost),
        errors=(404,),
    ),
    Route(
        "/api/v1/config",
        "The effective configuration, with the location of each secret in place of its value.",
        "admin",
        config,
        Document(None),
    ),
    Route("/metrics", "Metrics for Prometheus.", "reader", metrics, PlainText("text/plain")),
    Route(HEALTH_PATH, "ok, or the daemon's fault in one line.", None, health, PlainText("text/plain"), errors=(503,)),
)


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


async def time_errors(request: web.Request, query: TimeRangeQuery) -> Answer:
    """Includes grandmasters that the daemon no longer polls, so it accepts every valid name."""
    name, span = request.match_info["name"], query.span_ns(DAY_NS, time.time_ns())
    if not re.fullmatch(NAME, name, re.ASCII):
        return no_grandmaster(name)

    def read(place: StoreLocation) -> Page:
        steps = history.time_error_envelope(place, name, *span, TIME_ERROR_STEPS)
        return readable(TimeErrorStep.model_validate, steps), None

    return await _read_list(request, read)


async def events(request: web.Request, query: EventsQuery) -> Answer:
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
        return readable(_cloud_event, page_rows), None if next is None else encode_cursor(tuple(next))

    return await _read_list(request, read)


def _cloud_event(row: history.Record) -> CloudEvent:
    fields = {name: row[name] for name in ("type", "subject", "time", "data")}
    return CloudEvent.model_validate(fields | {"id": row["event_id"], "source": NODE_PATH + row["node"]})


async def series(request: web.Request, query: HistoryQuery) -> Answer:
    node, span = query.node or request.app[VIEW].node().node, query.span_ns(DAY_NS, time.time_ns())

    def read(place: StoreLocation) -> Page:
        points = store_series.series(place, node, query.source, query.quantity, *span)
        return readable(HistoryPoint.model_validate, points), None

    return await _read_list(request, read)


async def sources(request: web.Request, query: HistorySourcesQuery) -> Answer:
    node = query.node or request.app[VIEW].node().node

    def read(place: StoreLocation) -> Page:
        known = store_series.rollup_sources(place, node)
        return [
            HistorySource(node=node, source=source, quantity=quantity)
            for source, quantities in known.items()
            for quantity in quantities
        ], None

    return await _read_list(request, read)


async def _read_list(request: web.Request, read: Callable[[StoreLocation], Page]) -> Answer:
    """A list that a thread reads from the store; empty without a store."""
    place = request.app.get(STORE)
    if place is None:
        return list_answer(request, [])
    try:
        return list_answer(request, *await asyncio.to_thread(read, place))
    except StoreError as error:
        return error_response(503, str(error))


HISTORY_ROUTES = (
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
