"""The daemon's HTTP side, read-only: JSON, server-sent events, metrics, health, and the status page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from aiohttp import web

from timesyncd import config
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import ConfigError, StoreError
from timesyncd.feed import Feed
from timesyncd.messages import FindingMessage, GrandmasterState, JobState, Message, NodeState
from timesyncd.store import history
from timesyncd.web.events import Event, frames
from timesyncd.web.hosts import is_answered

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_FILES = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/dom.js": ("dom.js", "text/javascript"),
    "/model.js": ("model.js", "text/javascript"),
    "/chart.js": ("chart.js", "text/javascript"),
    "/units.js": ("units.js", "text/javascript"),
}

#: The course of a unit's time errors: a day, in steps of five minutes.
COURSE_NS = 86_400 * NS_PER_S
COURSE_STEPS = 288

SAFETY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class View(Protocol):
    """
    What is shown. Every `age_ns` is as of the call (a hub adds the time since a node's message came), and none of these
    waits or raises. What a grandmaster reports by itself comes as an event alone.
    """

    def node(self) -> NodeState:
        """This daemon's own node."""

    def nodes(self) -> list[NodeState]:
        """Every node known here, the own one among them."""

    def grandmasters(self) -> list[GrandmasterState]: ...

    def jobs(self) -> list[JobState]: ...

    def findings(self) -> list[FindingMessage]: ...

    def metrics(self) -> bytes:
        """The Prometheus text format, version 0.0.4."""

    def health(self) -> str | None:
        """None while all is well, else what is wrong, in one line."""

    @property
    def events(self) -> Feed[Event]:
        """What changes, as it changes."""


class Server:
    """A listening server; `url` is where the page is."""

    def __init__(self, runner: web.AppRunner, url: str) -> None:
        self.url = url
        self._runner = runner

    async def close(self) -> None:
        """Viewers are cut off; answers under way are finished."""
        await self._runner.cleanup()


async def serve(settings: config.Web, view: View, store: Path | None = None) -> Server:
    """
    Listen; port 0 takes a free one. `store` is the history's file, where one is kept. Raises ConfigError when the address
    cannot be had.
    """
    runner = web.AppRunner(
        application(view, settings.host, store), handler_cancellation=True, access_log=None, shutdown_timeout=2.0
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"web: cannot listen on {settings.host} port {settings.port}: {error.strerror}") from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return Server(runner, f"http://{host}:{runner.addresses[0][1]}/")


VIEW = web.AppKey("view", View)
STORE = web.AppKey("store", Path)
LISTENING = web.AppKey("listening", str)
VIEWERS = web.AppKey("viewers", set[asyncio.Task[None]])


def application(view: View, listening: str, store: Path | None) -> web.Application:
    app = web.Application(middlewares=[_only_own_names, _only_reading])
    app[VIEW] = view
    if store is not None:
        app[STORE] = store
    app[LISTENING] = listening
    app[VIEWERS] = set()
    app.on_response_prepare.append(_add_safety_headers)
    app.on_shutdown.append(_cut_viewers)
    app.router.add_get("/api/v1/node", _node)
    app.router.add_get("/api/v1/nodes", _nodes)
    app.router.add_get("/api/v1/grandmasters", _grandmasters)
    app.router.add_get("/api/v1/grandmasters/{name}", _grandmaster)
    app.router.add_get("/api/v1/grandmasters/{name}/time-errors", _time_errors)
    app.router.add_get("/api/v1/jobs", _jobs)
    app.router.add_get("/api/v1/jobs/{id}", _job)
    app.router.add_get("/api/v1/findings", _findings)
    app.router.add_get("/events", _events, allow_head=False)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/healthz", _health)
    for path, (name, content_type) in PAGE_FILES.items():
        app.router.add_get(path, _page_file(name, content_type))
    return app


@web.middleware
async def _only_own_names(request: web.Request, handler: Handler) -> web.StreamResponse:
    listening, named = request.app[LISTENING], request.headers.get("Host")
    if is_answered(listening, named):
        return await handler(request)
    return _refusal(421, f"{named!r} is not served here: ask {listening}, another IP address, or localhost")


@web.middleware
async def _only_reading(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What is refused is refused in JSON, with a line that helps."""
    if request.method not in ("GET", "HEAD"):
        return _refusal(
            405, f"{request.method} is not served: everything here is read with GET", {"Allow": "GET, HEAD"}
        )
    try:
        return await handler(request)
    except web.HTTPNotFound:
        paths = sorted({resource.canonical for resource in request.app.router.resources()})
        return _refusal(404, f"there is no {request.path}; there are: {', '.join(paths)}")
    except web.HTTPMethodNotAllowed as error:
        return _refusal(
            405, f"{request.method} is not served here", {"Allow": ", ".join(sorted(error.allowed_methods))}
        )


async def _add_safety_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SAFETY_HEADERS)


async def _cut_viewers(app: web.Application) -> None:
    for task in app[VIEWERS]:
        task.cancel()


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps({"error": text}).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _one(message: Message) -> web.Response:
    return web.Response(text=message.model_dump_json(), content_type="application/json")


def _many(messages: Sequence[Message]) -> web.Response:
    text = "[" + ",".join(message.model_dump_json() for message in messages) + "]"
    return web.Response(text=text, content_type="application/json")


async def _node(request: web.Request) -> web.Response:
    return _one(request.app[VIEW].node())


async def _nodes(request: web.Request) -> web.Response:
    return _many(request.app[VIEW].nodes())


async def _grandmasters(request: web.Request) -> web.Response:
    return _many(request.app[VIEW].grandmasters())


async def _grandmaster(request: web.Request) -> web.Response:
    units = request.app[VIEW].grandmasters()
    return _found("grandmaster", request.match_info["name"], {unit.name: unit for unit in units})


async def _time_errors(request: web.Request) -> web.Response:
    """The last day of what the store holds, each step with its lowest and highest value; nothing without a store."""
    path = request.app.get(STORE)
    if path is None:
        return web.json_response([])
    until_ns = time.time_ns()
    span = (until_ns - COURSE_NS, until_ns)
    try:
        course = await asyncio.to_thread(
            history.time_error_course, path, request.match_info["name"], *span, COURSE_STEPS
        )
    except StoreError as error:
        return _refusal(503, str(error))
    return web.json_response(course)


async def _jobs(request: web.Request) -> web.Response:
    return _many(request.app[VIEW].jobs())


async def _job(request: web.Request) -> web.Response:
    return _found("job", request.match_info["id"], {job.job_id: job for job in request.app[VIEW].jobs()})


def _found(what: str, wanted: str, known: Mapping[str, Message]) -> web.Response:
    if wanted in known:
        return _one(known[wanted])
    return _refusal(404, f"there is no {what} {wanted!r}; {what}s known here: {', '.join(known) or 'none'}")


async def _findings(request: web.Request) -> web.Response:
    return _many(request.app[VIEW].findings())


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[VIEW].metrics(), headers={"Content-Type": METRICS_TYPE})


async def _health(request: web.Request) -> web.Response:
    wrong = request.app[VIEW].health()
    return web.Response(status=200 if wrong is None else 503, text=f"{wrong or 'ok'}\n")


async def _events(request: web.Request) -> web.StreamResponse:
    view = request.app[VIEW]
    viewers = request.app[VIEWERS]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    task = asyncio.current_task()
    assert task is not None
    viewers.add(task)
    try:
        async with aclosing(frames(view.events, lambda: current(view))) as stream:
            async for frame in stream:
                await response.write(frame)
    except ConnectionResetError:
        pass  # the viewer went away: that is how a stream ends
    finally:
        viewers.discard(task)
    return response


def current(view: View) -> list[Event]:
    """Everything as it stands, as events; the first is this daemon's own node."""
    own = view.node()
    nodes = [own, *(node for node in view.nodes() if node.node != own.node)]
    return [
        *(Event("node", node) for node in nodes),
        *(Event("grandmaster", grandmaster) for grandmaster in view.grandmasters()),
        *(Event("job", job) for job in view.jobs()),
        *(Event("finding", finding) for finding in view.findings()),
    ]


def _page_file(name: str, content_type: str) -> Handler:
    body = (files("timesyncd.web") / name).read_bytes()

    async def page_file(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return page_file
