"""
The daemon's HTTP server, read-only but for operators' notes: JSON documents, server-sent events, metrics, health, and the status page.

Against DNS rebinding a server on a loopback address accepts only its own names in the Host header: a web site may
resolve its name to 127.0.0.1, and its scripts, in a browser on this host, could then read the server. On the network
every client needs credentials, whatever name it uses.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import ssl
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from importlib.resources import files
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from timesyncd import config
from timesyncd.config import is_loopback
from timesyncd.errors import ConfigError
from timesyncd.store.engine import StoreLocation
from timesyncd.web import api, auth, connections, notes, openapi, page_files, past, peers, stability, stream, tls
from timesyncd.web.auth import ACCESS, REQUIRED_ROLES, Access, AccessGuard, Handler, access_warnings
from timesyncd.web.responses import error_response
from timesyncd.web.shared import SHARED, SharedAnswers
from timesyncd.web.stream import EventStream
from timesyncd.web.view import View

log = logging.getLogger(__name__)

ROUTES = (
    *api.ROUTES,
    *api.HISTORY_ROUTES,
    *past.ROUTES,
    *stability.ROUTES,
    *notes.ROUTES,
    stream.ROUTE,
    openapi.route(),
)

#: What the log-in form needs, which is shown without credentials.
LOGIN_FILES = {"/style.css": ("style.css", "text/css")}

#: Under a stricter Referrer-Policy a browser sends no origin with the log-in form.
SAFETY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

#: Enough for a query with the names of 10,000 nodes.
MAX_REQUEST_LINE_BYTES = 262_144

#: How long responses in progress may take when the server closes.
SHUTDOWN_TIMEOUT_S = 2.0

LISTENING = web.AppKey("listening", str)
LIMITER = web.AppKey("limiter", connections.ConnectionLimiter)


def is_allowed_host(listening: str, host_header: str | None) -> bool:
    """`listening` is the configured address. A request without the header is not from a browser."""
    if host_header is None or not is_loopback(listening):
        return True
    try:
        name = urlsplit(f"//{host_header}").hostname
    except ValueError:
        return False
    return name is not None and (_is_address(name) or name in ("localhost", listening.lower()))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class WebServer:
    """A listening server; `url` is the address of the page."""

    def __init__(
        self,
        runner: web.AppRunner,
        listener: asyncio.Server,
        url: str,
        access: Access,
        certificate_reload: asyncio.Task[None] | None,
        limiter: connections.ConnectionLimiter,
    ) -> None:
        self._limiter = limiter
        self.url = url
        self._runner = runner
        self._listener = listener
        self._access = access
        self._certificate_reload = certificate_reload

    @property
    def wrong_credentials(self) -> int:
        """The number of requests with wrong credentials since the start."""
        return self._access.failures.total

    async def close(self) -> None:
        """Ends the viewers' streams, and finishes responses in progress."""
        if self._certificate_reload is not None:
            self._certificate_reload.cancel()
            with suppress(asyncio.CancelledError):
                await self._certificate_reload
        self._listener.close()
        self._limiter.close()
        await self._runner.cleanup()


async def serve(settings: config.WebSettings, view: View, store: StoreLocation | None = None) -> WebServer:
    """
    A server that listens; port 0 selects a free one. `store` is the location of the history, None without a store.

    Raises ConfigError if it cannot listen on the address, or cannot use a certificate or a secret.
    """
    access, context = Access(settings), tls.server_context(settings)
    for warning in access_warnings(settings):
        log.warning("web: %s", warning)
    app, limiter = application(view, settings.host, access, store), connections.ConnectionLimiter()
    app[LIMITER] = limiter
    app[stability.PEERS] = peers.configured_peers(settings)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        max_line_size=MAX_REQUEST_LINE_BYTES,
        auto_decompress=False,  # a body is unpacked before anything is checked, to a thousand times its size
        keepalive_timeout=connections.IDLE_TIMEOUT_S,
    )
    await runner.setup()
    assert runner.server is not None
    try:
        listener = await limiter.listen(runner.server, settings.host, settings.port, context)
    except OSError as error:
        await runner.cleanup()
        reason, advice = _listen_error(error, settings.port)
        raise ConfigError(f"web: cannot listen on {settings.host} port {settings.port}: {reason}; {advice}") from error
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http{'s' if context else ''}://{host}:{listener.sockets[0].getsockname()[1]}/"
    return WebServer(runner, listener, url, access, _start_certificate_reload(context, settings), limiter)


def _listen_error(error: OSError, port: int) -> tuple[str, str]:
    """Why no socket listens, and what to do. asyncio's own text repeats the address."""
    if error.errno == errno.EADDRINUSE:
        return "another process uses it", f"set [web] port, or end that process (ss -ltnp 'sport = {port}' names it)"
    if error.errno == errno.EACCES:
        return "permission denied", "set [web] port to one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "no interface has this address", "set [web] host to an address of this machine"
    return error.strerror or str(error), "set [web] host and port to an address of this machine"


def _start_certificate_reload(
    context: ssl.SSLContext | None, settings: config.WebSettings
) -> asyncio.Task[None] | None:
    return (
        None if context is None else asyncio.create_task(tls.reload_certificate(context, settings), name="certificate")
    )


def application(view: View, listening: str, access: Access, store: StoreLocation | None) -> web.Application:
    app = web.Application(
        middlewares=[_check_room, _check_host, _check_method, AccessGuard().check_role],
        client_max_size=auth.MAX_FORM_BYTES,
    )
    app[api.VIEW] = view
    if store is not None:
        app[api.STORE] = store
    app[LISTENING] = listening
    app[ACCESS] = access
    app[stability.KEPT] = OrderedDict()
    app[stream.STREAM] = EventStream(view)
    app[stream.VIEWER_TASKS] = set()
    app[SHARED] = SharedAnswers()
    app[openapi.OPENAPI_JSON] = _openapi_json()
    app.on_response_prepare.append(_add_safety_headers)
    app.on_shutdown.append(stream.close_viewers)
    app.on_shutdown.append(_close_shared)
    for route in ROUTES:
        if route.method == "POST":
            app.router.add_post(route.path, route.serve)
        else:
            app.router.add_get(route.path, route.serve)
    for path, (name, content_type) in LOGIN_FILES.items():
        app.router.add_get(path, _login_file(name, content_type))
    for path in page_files.VIEW_PATHS:
        app.router.add_get(path, page_files.document(path, access.has_tokens))
    assets = page_files.assets()
    for path, file in assets.items():
        app.router.add_get(path, file.serve)
    if access.has_tokens:
        auth.add_login(app)
    public = [*LOGIN_FILES, *assets, *auth.LOGIN_PATHS]
    app[REQUIRED_ROLES] = dict.fromkeys(public) | {
        f"POST {route.path}" if route.method == "POST" else route.path: route.role for route in ROUTES
    }
    return app


@cache
def _openapi_json() -> bytes:
    return json.dumps(openapi.document(ROUTES)).encode()


@web.middleware
async def _check_room(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A probe's answer is a few octets: slow browsers must not look like a daemon that failed."""
    limiter = request.app.get(LIMITER)
    if limiter is None or limiter.has_room or request.path == api.HEALTH_PATH:
        return await handler(request)
    return error_response(503, "clients do not read what they requested; retry in 5 s", {"Retry-After": "5"})


@web.middleware
async def _check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    listening, named = request.app[LISTENING], request.headers.get("Host")
    if is_allowed_host(listening, named):
        return await handler(request)
    return error_response(
        421, f"Host: {named!r} is not a name of this server; use {listening}, another IP address, or localhost"
    )


@web.middleware
async def _check_method(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Rejects methods other than GET and HEAD and compressed bodies, and turns aiohttp's errors into JSON."""
    writable = (notes.PATH, *(auth.LOGIN_PATHS if request.app[ACCESS].has_tokens else ()))
    if request.method not in ("GET", "HEAD") and request.path not in writable:
        return error_response(405, f"{request.method} is not allowed; use GET", {"Allow": "GET, HEAD"})
    if (encoding := request.headers.get("Content-Encoding", "identity")).lower() != "identity":
        return error_response(415, f"Content-Encoding: {encoding!r}: send it uncompressed")
    try:
        return await handler(request)
    except web.HTTPNotFound:
        paths = sorted({resource.canonical for resource in request.app.router.resources()})
        return error_response(404, f"unknown path {request.path}; the paths are: {', '.join(paths)}")
    except web.HTTPMethodNotAllowed as error:
        return error_response(
            405,
            f"{request.method} is not allowed for {request.path}",
            {"Allow": ", ".join(sorted(error.allowed_methods))},
        )
    except web.HTTPRequestEntityTooLarge:
        return error_response(413, f"the form is too large; at most {auth.MAX_FORM_BYTES} bytes are allowed")


async def _add_safety_headers(_request: web.Request, response: web.StreamResponse) -> None:
    kept = {"Cache-Control"} & response.headers.keys()
    response.headers.update({name: value for name, value in SAFETY_HEADERS.items() if name not in kept})


async def _close_shared(app: web.Application) -> None:
    app[SHARED].close()


def _login_file(name: str, content_type: str) -> Handler:
    body = (files("timesyncd.web") / "page" / name).read_bytes()

    async def login_file(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8")

    return login_file
