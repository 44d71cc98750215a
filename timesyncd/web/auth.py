"""
Access control of the HTTP server: which credentials have which role, the middleware that checks each request first, and
the log-in page, a form that exchanges a token for a session cookie.

`Access` is pure: time is an argument, and it stores only the SHA-256 of a secret. It counts wrong credentials by client
address, which limits guessing. From an address over the limit it rejects correct credentials too: a different response
would confirm a guess.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import IPv6Address, ip_address, ip_network
from urllib.parse import parse_qsl, urlencode, urlsplit

from aiohttp import web

from timesyncd.client.api import is_private
from timesyncd.clocks import NS_PER_S
from timesyncd.config import Role, TokenSettings, WebSettings
from timesyncd.errors import ConfigError
from timesyncd.web.responses import error_response
from timesyncd.web.tls import certificate_name

ROLE_RANKS: dict[Role, int] = {"job": 0, "reader": 1, "writer": 2, "admin": 3}

MIN_SECRET_LENGTH = 16
MAX_FAILURES_PER_MINUTE = 10
#: The number of client addresses with a count of their own; all others share one count.
MAX_ADDRESSES = 1_000
MINUTE_NS = 60 * NS_PER_S
SESSION_NS = 12 * 3_600 * NS_PER_S
#: Per token, so that the holder of one token cannot end the sessions of another.
MAX_SESSIONS = 20

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: The role that each path requires, and under "POST <path>" the role to write there; None: no credentials. A path that
#: does not exist requires a reader.
REQUIRED_ROLES = web.AppKey("roles", Mapping[str, Role | None])
#: The grant of the current request.
GRANT: ContextVar[Grant] = ContextVar("grant")
SESSION_COOKIE = "timesyncd-session"


@dataclass(frozen=True, slots=True)
class Grant:
    """The role that a request has, and the name of the token or certificate that gives it."""

    name: str
    role: Role

    def covers(self, role: Role) -> bool:
        return ROLE_RANKS[self.role] >= ROLE_RANKS[role]


@dataclass(frozen=True, slots=True)
class Denial:
    """
    Why a request is denied. 401: no valid credentials; 403: the role is too low; 429: too many wrong credentials, retry
    after `retry_after_s`.
    """

    status: int
    text: str
    retry_after_s: int = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """
    The credentials of one request. `certificate` is the common name in a certificate that the configured authority
    signed.
    """

    address: str
    authorization: str | None = None
    session: str | None = None
    certificate: str | None = None


class TokenSecrets:
    """
    The digests of the tokens' secrets, without surrounding spaces, which no header can carry.

    Raises ConfigError for a secret that cannot be read, is too short or belongs to two tokens, and for a name that two
    tokens have.
    """

    def __init__(self, tokens: Sequence[TokenSettings]) -> None:
        self._known: list[tuple[bytes, Grant]] = []
        for index, token in enumerate(tokens):
            secret = token.secret.reveal().get_secret_value().strip()
            if len(secret) < MIN_SECRET_LENGTH:
                raise ConfigError(
                    f"web.token[{index}].secret: the secret of {token.name} is shorter than {MIN_SECRET_LENGTH} "
                    "characters; create one with: openssl rand -hex 24"
                )
            for digest, grant in self._known:
                if grant.name == token.name:
                    raise ConfigError(
                        f"web.token[{index}].name = {token.name!r}: another token has this name; "
                        "give each token its own"
                    )
                if digest == _digest(secret):
                    raise ConfigError(
                        f"web.token[{index}].secret: {token.name} and {grant.name} have the same secret; "
                        "give each token its own"
                    )
            self._known.append((_digest(secret), Grant(token.name, token.role)))

    def match(self, secret: str) -> Grant | None:
        """
        The grant of this secret. Compares with every token in constant time, so that the response time reveals nothing.
        """
        digest_given, found = _digest(secret), None
        for digest, grant in self._known:
            if hmac.compare_digest(digest, digest_given):
                found = grant
        return found


class FailedAttempts:
    """
    The wrong credentials of the last minute per client address; a /64 of IPv6 counts as one address. `total` counts
    since the start.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def record(self, address: str, now_ns: int) -> None:
        self.total += 1
        self._expire(now_ns)
        key = self._key(address)
        began_ns, count = self._counts.get(key, (now_ns, 0))
        self._counts[key] = (began_ns, count + 1)

    def wait_s(self, address: str, now_ns: int) -> int | None:
        """Seconds until this address may try again; None: it may now."""
        self._expire(now_ns)
        began_ns, count = self._counts.get(self._key(address), (0, 0))
        return None if count < MAX_FAILURES_PER_MINUTE else -((now_ns - began_ns - MINUTE_NS) // NS_PER_S)

    def _key(self, address: str) -> str:
        network = network_key(address)
        return network if network in self._counts or len(self._counts) < MAX_ADDRESSES else "other addresses"

    def _expire(self, now_ns: int) -> None:
        """Removes counts older than a minute. They are stored in the order in which they began."""
        while self._counts and now_ns - next(iter(self._counts.values()))[0] >= MINUTE_NS:
            self._counts.popitem(last=False)


def network_key(address: str) -> str:
    """
    The key under which an address is counted: an IPv4 address, or the /64 network of an IPv6 address, which one host
    may own.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped or ip_network((int(ip), 64), strict=False))


class BrowserSessions:
    """
    Sessions of browsers that logged in: a random id maps to the grant of a token. Above the limit a token's oldest
    session ends.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[bytes, tuple[Grant, int]] = OrderedDict()

    def open(self, grant: Grant, now_ns: int) -> str:
        id = secrets.token_urlsafe(32)
        self._open[_digest(id)] = (grant, now_ns + SESSION_NS)
        own = [digest for digest, (opener, _) in self._open.items() if opener == grant]
        if len(own) > MAX_SESSIONS:
            del self._open[own[0]]
        return id

    def find(self, id: str, now_ns: int) -> Grant | None:
        grant, until_ns = self._open.get(_digest(id), (None, 0))
        return grant if now_ns < until_ns else None

    def close(self, id: str) -> None:
        self._open.pop(_digest(id), None)


class Access:
    """Decides which role a request has. Raises ConfigError for tokens that cannot be used."""

    def __init__(self, settings: WebSettings) -> None:
        self.failures = FailedAttempts()
        self.sessions = BrowserSessions()
        self.has_tokens = bool(settings.token)
        self.requires_credentials = self.has_tokens or settings.client_ca is not None or not settings.is_local
        self._secrets = TokenSecrets(settings.token)
        self._client_role = settings.client_role

    def authorize(self, credentials: Credentials, now_ns: int) -> Grant | Denial:
        """
        A token takes precedence over a session, and a session over a certificate. Where no credentials are required,
        those given are ignored: they may be for another daemon.
        """
        if not self.requires_credentials:
            return Grant("a client on this host", "reader")
        if credentials.authorization is not None:
            scheme, _, secret = credentials.authorization.partition(" ")
            return self.authorize_secret(
                secret.strip() if scheme.lower() == "bearer" else "", credentials.address, now_ns
            )
        session = None if credentials.session is None else self.sessions.find(credentials.session, now_ns)
        if session is not None:
            return session
        if credentials.certificate is not None:
            return Grant(credentials.certificate, self._client_role)
        return Denial(
            401, "credentials required: send Authorization: Bearer TOKEN or a client certificate, or log in at /login"
        )

    def authorize_secret(self, secret: str, address: str, now_ns: int) -> Grant | Denial:
        wait_s = self.failures.wait_s(address, now_ns)
        if wait_s is not None:
            return Denial(429, f"too many wrong credentials from this address: retry in {wait_s} s", wait_s)
        grant = self._secrets.match(secret)
        if grant is None:
            self.failures.record(address, now_ns)
            return Denial(401, "unknown credentials")
        return grant


def access_warnings(settings: WebSettings) -> list[str]:
    """The weaknesses of the configured access control, one sentence each."""
    found: list[str] = []
    if settings.token and settings.certificate is None and not settings.is_local:
        found.append(
            "tokens cross the network unencrypted: set certificate and key, or terminate TLS in a proxy on this host"
        )
    roles = [token.role for token in settings.token] + ([settings.client_role] if settings.client_ca else [])
    if roles and all(role == "job" for role in roles):
        found.append("no client can read the page, the metrics or timesyncd status: no token has the role reader")
    found += [
        f"the token of the peer {peer.name} crosses the network unencrypted: give it an https address"
        for peer in settings.peer
        if peer.token is not None and not is_private(peer.url)
    ]
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


ACCESS = web.AppKey("access", Access)


class AccessGuard:
    """The middleware that lets a request pass only with the role that its path requires."""

    def __init__(self) -> None:
        self._logged_ns = -MINUTE_NS
        self._logged_failures = 0

    @web.middleware
    async def check_role(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        roles, path = request.app[REQUIRED_ROLES], resource.canonical if resource is not None else ""
        required = roles.get(f"{request.method} {path}", roles.get(path, "reader"))
        access, now_ns = request.app[ACCESS], time.monotonic_ns()
        if required is None:
            response = await handler(request)
            self._log_failures(request, now_ns)
            return response
        decision = access.authorize(_credentials(request), now_ns)
        self._log_failures(request, now_ns)
        if isinstance(decision, Denial):
            return _denial_response(request, access, decision)
        if not decision.covers(required):
            text = f"{request.path} requires the role {required}; {decision.name} has the role {decision.role}"
            return _denial_response(request, access, Denial(403, text))
        GRANT.set(decision)
        return await handler(request)

    def _log_failures(self, request: web.Request, now_ns: int) -> None:
        """Logs the number of wrong credentials, at most once a minute."""
        total = request.app[ACCESS].failures.total
        if total > self._logged_failures and now_ns - self._logged_ns >= MINUTE_NS:
            new = total - self._logged_failures
            log.warning("web: %d requests with wrong credentials, the last from %s", new, request.remote)
            self._logged_failures, self._logged_ns = total, now_ns


def retry_after_header(denial: Denial) -> dict[str, str]:
    return {"Retry-After": str(denial.retry_after_s)} if denial.status == 429 else {}


def _credentials(request: web.Request) -> Credentials:
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    return Credentials(
        address=request.remote or "",
        authorization=request.headers.get("Authorization"),
        session=request.cookies.get(SESSION_COOKIE),
        certificate=certificate_name(certificate) if certificate else None,
    )


def _denial_response(request: web.Request, access: Access, denial: Denial) -> web.Response:
    """A browser that requests a view of the page is redirected to the log-in page, which leads back to that view."""
    if access.has_tokens and is_page_view(request.path) and "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": login_location(request.path_qs)})
    challenge = {"WWW-Authenticate": "Bearer"} if denial.status == 401 else {}
    return error_response(denial.status, denial.text, challenge | retry_after_header(denial))


#: The views of the page that have a URL of their own.
_PAGE_VIEW = re.compile(r"/(|fleet|timeline|(node|grandmaster|job)(/[^/]{1,255})?)", re.ASCII)

#: The path and query of a view, relative to the log-in page: neither another server nor a place outside the views.
_NEXT = re.compile(
    r"(fleet|timeline|(node|grandmaster|job)(/[A-Za-z0-9._~%-]{1,255})?)?(\?[A-Za-z0-9._~%&=:,+-]{0,1000})?", re.ASCII
)


def is_page_view(path: str) -> bool:
    return _PAGE_VIEW.fullmatch(path) is not None


def login_location(path_qs: str) -> str:
    """The log-in page, relative to this view, with the view to return to; a proxy may serve all of it below a prefix."""
    view = path_qs.removeprefix("/")
    up = "../" * view.partition("?")[0].count("/")
    query = f"?{urlencode({'next': view})}" if view and _NEXT.fullmatch(view) else ""
    return f"{up}login{query}"


def safe_next(text: str) -> str:
    """The view to return to, "" where the text is none: it may be from anywhere."""
    return text if _NEXT.fullmatch(text) else ""


MAX_FORM_BYTES = 4_096
FORM_TIMEOUT_S = 10.0
LOGIN_PATHS = ("/login", "/logout")

_PAGE = (files("timesyncd.web") / "page" / "login.html").read_text()


def add_login(app: web.Application) -> None:
    app.router.add_get("/login", _form)
    app.router.add_post("/login", _log_in)
    app.router.add_post("/logout", _log_out)


async def _form(request: web.Request) -> web.Response:
    return _page(200, "", safe_next(request.query.get("next", "")))


async def _log_in(request: web.Request) -> web.Response:
    if (refusal := cross_site_refusal(request)) is not None:
        return refusal
    access = request.app[ACCESS]
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            form = _parse_form(await request.read())
    except TimeoutError:
        return error_response(408, f"the form did not arrive within {FORM_TIMEOUT_S:g} s")
    secret, next = form.get("token", "").strip(), safe_next(form.get("next", ""))
    decision = access.authorize_secret(secret, request.remote or "", time.monotonic_ns())
    if isinstance(decision, Denial):
        return _page(decision.status, decision.text, next, retry_after_header(decision))
    if not decision.covers("reader"):
        return _page(
            403,
            f"the token {decision.name} has the role {decision.role}; the page requires the role reader, writer or admin",
            next,
        )
    session = access.sessions.open(decision, time.monotonic_ns())
    response = web.Response(status=303, headers={"Location": f"./{next}"})
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
    if (refusal := cross_site_refusal(request)) is not None:
        return refusal
    request.app[ACCESS].sessions.close(request.cookies.get(SESSION_COOKIE, ""))
    response = web.Response(status=303, headers={"Location": "login"})
    response.del_cookie(SESSION_COOKIE, httponly=True, samesite="Strict", secure=request.secure, path="/")
    return response


def _parse_form(form: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(form.decode("utf-8", "replace"), max_num_fields=2))
    except ValueError:
        return {}


def cross_site_refusal(request: web.Request) -> web.Response | None:
    """403 for a request that another site's page sent. A client that is not a browser sends no Origin."""
    origin = request.headers.get("Origin")
    try:
        if origin is None or urlsplit(origin).netloc == request.host:
            return None
    except ValueError:  # not an origin that a browser sends
        pass
    return error_response(403, "the form was sent from another site")


def _page(status: int, text: str, next: str = "", headers: dict[str, str] | None = None) -> web.Response:
    body = _PAGE.replace("{error}", html.escape(text)).replace("{next}", html.escape(next))
    return web.Response(status=status, text=body, content_type="text/html", headers=headers)
