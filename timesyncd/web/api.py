"""
The routes of the current state: nodes, grandmasters, jobs, findings, hubs and the fleet, configuration, metrics and
health.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aiohttp import web

from timesyncd.jobs.recording import RecordingMessage
from timesyncd.messages.fleet import AlignmentState, FleetMap, FleetSummary, HubState
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import FindingMessage, GrandmasterState, NodeState
from timesyncd.web.auth import GRANT
from timesyncd.web.query import JOB_ID, AlignmentQuery, FindingsQuery, NodesQuery, PageQuery, Query, WindowQuery
from timesyncd.web.responses import (
    error_response,
    json_response,
    list_response,
    message_response,
    not_found_response,
    paginate,
)
from timesyncd.web.routes import Document, DocumentList, PlainText, Route
from timesyncd.web.view import NodeFilter, View

VIEW = web.AppKey("view", View)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def node(request: web.Request, _query: Query) -> web.Response:
    return message_response(request, request.app[VIEW].node())


async def nodes(request: web.Request, query: NodesQuery) -> web.Response:
    view = request.app[VIEW]
    node_filter = NodeFilter(query.status, query.grandmaster, query.topology, query.q)
    names, next = paginate(view.node_names(node_filter), lambda name: (name,), query)
    return list_response(request, view.nodes(names), next)


async def node_named(request: web.Request, _query: Query) -> web.Response:
    view, name = request.app[VIEW], request.match_info["name"]
    found = view.nodes([name])
    return message_response(request, found[0]) if found else _not_found("node", name, view.node_names())


async def fleet(request: web.Request, _query: Query) -> web.Response:
    return message_response(request, request.app[VIEW].fleet())


async def alignment(request: web.Request, query: AlignmentQuery) -> web.Response:
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
        return _not_found("job", query.job or "", [job.job_id for job in view.jobs()])
    return message_response(request, found)


def _resolve_job_id(jobs: Iterable[JobState], wanted: str) -> str | None:
    """The id of the job with this id or name; of several jobs with one name, of the one that published last."""
    named = [job for job in jobs if wanted in (job.job_id, job.job)]
    newest = max(named, key=lambda job: (job.job_id == wanted, job.published_realtime_ns), default=None)
    return None if newest is None else newest.job_id


async def hubs(request: web.Request, _query: Query) -> web.Response:
    return list_response(request, request.app[VIEW].hubs())


async def grandmasters(request: web.Request, query: PageQuery) -> web.Response:
    return list_response(
        request, *paginate(request.app[VIEW].grandmasters(), lambda grandmaster: (grandmaster.name,), query)
    )


async def grandmaster(request: web.Request, _query: Query) -> web.Response:
    known = {each.name: each for each in request.app[VIEW].grandmasters()}
    name = request.match_info["name"]
    return message_response(request, known[name]) if name in known else _not_found("grandmaster", name, list(known))


async def jobs(request: web.Request, query: PageQuery) -> web.Response:
    return list_response(request, *paginate(request.app[VIEW].jobs(), lambda job: (job.job_id,), query))


async def job(request: web.Request, _query: Query) -> web.Response:
    known = {job.job_id: job for job in request.app[VIEW].jobs()}
    id = request.match_info["id"]
    return message_response(request, known[id]) if id in known else _not_found("job", id, list(known))


async def window(request: web.Request, query: WindowQuery) -> web.Response:
    view, id = request.app[VIEW], request.match_info["id"]
    found = view.window(id, query.from_step, query.limit)
    return (
        message_response(request, found)
        if found is not None
        else _not_found("job", id, [job.job_id for job in view.jobs()])
    )


async def findings(request: web.Request, query: FindingsQuery) -> web.Response:
    found = [finding for finding in request.app[VIEW].findings() if _matches(finding, query)]
    return list_response(
        request, *paginate(found, lambda each: (-each.since_realtime_ns, each.id, each.subject), query)
    )


def _matches(finding: FindingMessage, query: FindingsQuery) -> bool:
    """Whether the finding is active at some moment of the query's time range."""
    until_ns = finding.until_realtime_ns
    return (
        (until_ns is None or query.active == "false")
        and (query.since is None or until_ns is None or until_ns > query.since)
        and (query.until is None or finding.since_realtime_ns < query.until)
    )


async def config(request: web.Request, _query: Query) -> web.Response:
    return json_response(request, request.app[VIEW].config().encode())


async def metrics(request: web.Request, _query: Query) -> web.Response:
    return web.Response(body=request.app[VIEW].metrics(), headers={"Content-Type": METRICS_TYPE})


async def health(request: web.Request, _query: Query) -> web.Response:
    fault = request.app[VIEW].health()
    return web.Response(status=200 if fault is None else 503, text=f"{fault or 'ok'}\n")


def _not_found(what: str, wanted: str, known: list[str]) -> web.Response:
    """Status 404; the existing names are for clients that may list them."""
    if not GRANT.get().covers("reader"):
        return error_response(404, f"unknown {what} {wanted!r}")
    return not_found_response(what, wanted, known, len(known))


async def fleet_map(request: web.Request, _query: Query) -> web.Response:
    return message_response(request, request.app[VIEW].map())


ROUTES = (
    Route("/api/v1/node", "This daemon's own node.", "job", node, Document(NodeState)),
    Route("/api/v1/nodes", "Every known node, sorted by name.", "reader", nodes, DocumentList(NodeState), NodesQuery),
    Route("/api/v1/nodes/{name}", "One node.", "job", node_named, Document(NodeState), errors=(404,)),
    Route("/api/v1/fleet", "The fleet's summary.", "reader", fleet, Document(FleetSummary)),
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
        "/api/v1/config",
        "The effective configuration, with the location of each secret in place of its value.",
        "admin",
        config,
        Document(None),
    ),
    Route("/metrics", "Metrics for Prometheus.", "reader", metrics, PlainText("text/plain")),
    Route("/healthz", "ok, or the daemon's fault in one line.", None, health, PlainText("text/plain"), errors=(503,)),
)
