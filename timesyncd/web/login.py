"""The log-in page: a form that exchanges a token for a session cookie."""

from __future__ import annotations

import asyncio
import html
import time
from importlib.resources import files
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from timesyncd.web.auth import ACCESS, SESSION_COOKIE, SESSION_NS, Denial, retry_after_header
from timesyncd.web.responses import error_response

MAX_FORM_BYTES = 4_096
FORM_TIMEOUT_S = 10.0
LOGIN_PATHS = ("/login", "/logout")

_PAGE = (files("timesyncd.web") / "page" / "login.html").read_text()


def add_login(app: web.Application) -> None:
    app.router.add_get("/login", _form)
    app.router.add_post("/login", _log_in)
    app.router.add_post("/logout", _log_out)


async def _form(_request: web.Request) -> web.Response:
    return _page(200, "")


async def _log_in(request: web.Request) -> web.Response:
    if (refusal := _cross_site_refusal(request)) is not None:
        return refusal
    access = request.app[ACCESS]
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            secret = _parse_token(await request.read())
    except TimeoutError:
        return error_response(408, f"the form did not arrive within {FORM_TIMEOUT_S:g} s")
    decision = access.authorize_secret(secret, request.remote or "", time.monotonic_ns())
    if isinstance(decision, Denial):
        return _page(decision.status, decision.text, retry_after_header(decision))
    if not decision.covers("reader"):
        return _page(
            403, f"the token {decision.name} has the role {decision.role}; the page requires the role reader or admin"
        )
    session = access.sessions.open(decision, time.monotonic_ns())
    response = web.Response(status=303, headers={"Location": "./"})
    response.set_cookie(
        SESSION_COOKIE,
        session,
        max_age=SESSION_NS // 10**9,
        httponly=True,
        samesite="Strict",
        secure=request.secure,
        path="/",
    )
    return response


async def _log_out(request: web.Request) -> web.Response:
    if (refusal := _cross_site_refusal(request)) is not None:
        return refusal
    request.app[ACCESS].sessions.close(request.cookies.get(SESSION_COOKIE, ""))
    response = web.Response(status=303, headers={"Location": "login"})
    response.del_cookie(SESSION_COOKIE, httponly=True, samesite="Strict", secure=request.secure, path="/")
    return response


def _parse_token(form: bytes) -> str:
    try:
        return dict(parse_qsl(form.decode("utf-8", "replace"), max_num_fields=2)).get("token", "").strip()
    except ValueError:
        return ""


def _cross_site_refusal(request: web.Request) -> web.Response | None:
    """403 for a form that another site's page sent. A client that is not a browser sends no Origin."""
    origin = request.headers.get("Origin")
    try:
        if origin is None or urlsplit(origin).netloc == request.host:
            return None
    except ValueError:  # not an origin that a browser sends
        pass
    return error_response(403, "the form was sent from another site")


def _page(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    body = _PAGE.replace("{error}", html.escape(text))
    return web.Response(status=status, text=body, content_type="text/html", headers=headers)
