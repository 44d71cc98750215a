"""The middleware that asks who asks, before any answer is made."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar

from aiohttp import web

from timesyncd.sections import Role
from timesyncd.web.auth import MINUTE_NS, Access, Denial, Grant, Shown
from timesyncd.web.refusals import refusal
from timesyncd.web.tls import certificate_name

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ACCESS = web.AppKey("access", Access)
#: What each path needs; None: nothing. A path that is not there needs a reader.
ROLES = web.AppKey("roles", Mapping[str, Role | None])
#: Of the request that is being answered.
GRANT: ContextVar[Grant] = ContextVar("grant")
COOKIE = "timesyncd-session"


class Guard:
    def __init__(self) -> None:
        self._told_ns = -MINUTE_NS
        self._told = 0

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        needed = request.app[ROLES].get(resource.canonical, "reader") if resource is not None else "reader"
        access, now_ns = request.app[ACCESS], time.monotonic_ns()
        if needed is None:
            response = await handler(request)
            self._tell(request, now_ns)
            return response
        judged = access.judge(_shown(request), now_ns)
        self._tell(request, now_ns)
        if isinstance(judged, Denial):
            return _denied(request, access, judged)
        if not judged.covers(needed):
            said = f"{request.path} needs the role {needed}; {judged.name} has {judged.role}"
            return _denied(request, access, Denial(403, said))
        GRANT.set(judged)
        return await handler(request)

    def _tell(self, request: web.Request, now_ns: int) -> None:
        """Of wrong credentials, at most once a minute."""
        total = request.app[ACCESS].failures.total
        if total > self._told and now_ns - self._told_ns >= MINUTE_NS:
            log.warning("web: wrong credentials: %d times, the last from %s", total - self._told, request.remote)
            self._told, self._told_ns = total, now_ns


def retry_after(denial: Denial) -> dict[str, str]:
    return {"Retry-After": str(denial.retry_after_s)} if denial.status == 429 else {}


def _shown(request: web.Request) -> Shown:
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    return Shown(
        address=request.remote or "",
        authorization=request.headers.get("Authorization"),
        session=request.cookies.get(COOKIE),
        certificate=certificate_name(certificate) if certificate else None,
    )


def _denied(request: web.Request, access: Access, denial: Denial) -> web.Response:
    """A browser that comes for the page is led to the log-in."""
    if access.has_tokens and request.path == "/" and "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": "login"})
    asks = {"WWW-Authenticate": "Bearer"} if denial.status == 401 else {}
    return refusal(denial.status, denial.text, asks | retry_after(denial))
