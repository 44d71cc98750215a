"""
What is known at this moment, as documents.

The whole fleet in one small document: what a picture of it needs.
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
    wanted = NodeFilter(query.status, query.grandmaster, query.topology, query.q)
    names, next = paginate(view.node_names(wanted), lambda name: (name,), query)
    return list_response(request, view.nodes(names), next)


async def node_named(request: web.Request, _query: Query) -> web.Response:
    view, name = request.app[VIEW], request.match_info["name"]
    found = view.nodes([name])
    return message_response(request, found[0]) if found else _not_found("node", name, view.node_names())


async def fleet(request: web.Request, _query: Query) -> web.Response:
    return message_response(request, request.app[VIEW].fleet())


async def alignment(request: web.Request, query: AlignmentQuery) -> web.Response:
    """Of all nodes, and of a job of which only the name is known, to those alone who may list them."""
    view, grant = request.app[VIEW], GRANT.get()
    if query.nodes is None and not re.fullmatch(JOB_ID, query.job or "") and not grant.covers("reader"):
        return error_response(
            403, f"the role {grant.role} reads the alignment of nodes that it names, or of a job by its id"
        )
    names = None if query.nodes is None else list(dict.fromkeys(query.nodes.split(",")))
    job_id = None if query.job is None else _resolve_job_id(view.jobs(), query.job)
    found = None if query.job is not None and job_id is None else view.alignment(names, job_id)
    if found is None:
        return _not_found("job", query.job or "", [job.job_id for job in view.jobs()])
    return message_response(request, found)


def _resolve_job_id(jobs: Iterable[JobState], wanted: str) -> str | None:
    """An id is itself; of several jobs of one name the one that was told of last."""
    named = [job for job in jobs if wanted in (job.job_id, job.job)]
    newest = max(named, key=lambda job: (job.job_id == wanted, job.published_realtime_ns), default=None)
    return None if newest is None else newest.job_id


async def hubs(request: web.Request, _query: Query) -> web.Response:
    return list_response(request, request.app[VIEW].hubs())


async def grandmasters(request: web.Request, query: PageQuery) -> web.Response:
    return list_response(request, *paginate(request.app[VIEW].grandmasters(), lambda unit: (unit.name,), query))


async def grandmaster(request: web.Request, _query: Query) -> web.Response:
    units = {unit.name: unit for unit in request.app[VIEW].grandmasters()}
    name = request.match_info["name"]
    return message_response(request, units[name]) if name in units else _not_found("grandmaster", name, list(units))


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
    """Of a span of time what held at some moment of it."""
    until_ns = finding.until_realtime_ns
    return (
        (until_ns is None or query.standing == "false")
        and (query.since is None or until_ns is None or until_ns > query.since)
        and (query.until is None or finding.since_realtime_ns < query.until)
    )


async def config(request: web.Request, _query: Query) -> web.Response:
    return json_response(request, request.app[VIEW].config().encode())


async def metrics(request: web.Request, _query: Query) -> web.Response:
    return web.Response(body=request.app[VIEW].metrics(), headers={"Content-Type": METRICS_TYPE})


async def health(request: web.Request, _query: Query) -> web.Response:
    wrong = request.app[VIEW].health()
    return web.Response(status=200 if wrong is None else 503, text=f"{wrong or 'ok'}\n")


def _not_found(what: str, wanted: str, known: list[str]) -> web.Response:
    """Those that there are, to whom may list them."""
    if not GRANT.get().covers("reader"):
        return error_response(404, f"there is no {what} {wanted!r}")
    return not_found_response(what, wanted, known, len(known))


ROUTES = (
    Route("/api/v1/node", "This daemon's own node.", "job", node, Document(NodeState)),
    Route("/api/v1/nodes", "Every node known here, by name.", "reader", nodes, DocumentList(NodeState), NodesQuery),
    Route("/api/v1/nodes/{name}", "A node.", "job", node_named, Document(NodeState), fails=(404,)),
    Route("/api/v1/fleet", "The fleet in few numbers.", "reader", fleet, Document(FleetSummary)),
    Route(
        "/api/v1/alignment", "How far apart the clocks of nodes may be: of some, of a job's, or of all.", "job",
        alignment, Document(AlignmentState), AlignmentQuery, (404,),
    ),
    Route("/api/v1/hubs", "The hubs that are alive.", "job", hubs, DocumentList(HubState)),
    Route("/api/v1/grandmasters", "The grandmasters known here, by name.", "reader", grandmasters,
          DocumentList(GrandmasterState), PageQuery),
    Route("/api/v1/grandmasters/{name}", "A grandmaster.", "reader", grandmaster, Document(GrandmasterState), fails=(404,)),
    Route("/api/v1/jobs", "The training jobs, by id.", "reader", jobs, DocumentList(JobState), PageQuery),
    Route("/api/v1/jobs/{id}", "A training job.", "job", job, Document(JobState), fails=(404,)),
    Route("/api/v1/jobs/{id}/window", "What a hub joined of a job's newest steps, page by page.", "job", window, Document(RecordingMessage),
          WindowQuery, (404,)),
    Route("/api/v1/findings", "What is or was wrong, the newest first.", "reader", findings, DocumentList(FindingMessage),
          FindingsQuery),
    Route("/api/v1/config", "The configuration as it counts, secrets by where they stand.", "admin", config, Document(None)),
    Route("/metrics", "What Prometheus scrapes.", "reader", metrics, PlainText("text/plain")),
    Route("/healthz", "ok, or what is wrong.", None, health, PlainText("text/plain"), fails=(503,)),
)  # fmt: skip


async def fleet_map(request: web.Request, _query: Query) -> web.Response:
    return message_response(request, request.app[VIEW].map())


FLEET_MAP_ROUTE = Route(
    "/api/v1/fleet/map", "Every node in few words, by place.", "reader", fleet_map, Document(FleetMap)
)
