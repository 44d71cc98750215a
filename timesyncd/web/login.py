"""For browsers: a form that takes a token and gives a session."""

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
    if (stranger := _cross_site_refusal(request)) is not None:
        return stranger
    access = request.app[ACCESS]
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            secret = _parse_token(await request.read())
    except TimeoutError:
        return error_response(408, f"the form did not come within {FORM_TIMEOUT_S:g} s")
    judged = access.judge_secret(secret, request.remote or "", time.monotonic_ns())
    if isinstance(judged, Denial):
        return _page(judged.status, judged.text, retry_after_header(judged))
    if not judged.covers("reader"):
        return _page(
            403, f"the token {judged.name} has the role {judged.role}: the page is for a reader's or an admin's"
        )
    session = access.sessions.open(judged, time.monotonic_ns())
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
    if (stranger := _cross_site_refusal(request)) is not None:
        return stranger
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
    """A form of another site. What is no browser tells no origin."""
    origin = request.headers.get("Origin")
    try:
        if origin is None or urlsplit(origin).netloc == request.host:
            return None
    except ValueError:  # no origin that a browser would tell
        pass
    return error_response(403, "this form was sent by another site")


def _page(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    body = _PAGE.replace("{error}", html.escape(text))
    return web.Response(status=status, text=body, content_type="text/html", headers=headers)
