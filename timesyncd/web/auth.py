"""
Who may ask for what. Pure: time is an argument, and secrets are kept as their SHA-256 alone.

Wrong credentials are counted by address, so that nobody can go on guessing; from an address that guessed too often the right
ones are refused as well, since else the answer would tell them.

The middleware that asks who asks, before any answer is made.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from aiohttp import web

from timesyncd.clocks import NS_PER_S
from timesyncd.config import Role, TokenSettings, WebSettings
from timesyncd.errors import ConfigError
from timesyncd.web.responses import error_response
from timesyncd.web.tls import certificate_name

ROLE_RANKS: dict[Role, int] = {"job": 0, "reader": 1, "admin": 2}

MIN_SECRET_LENGTH = 16
MAX_FAILURES_PER_MINUTE = 10
#: So many addresses are counted apart; all others share one count.
MAX_ADDRESSES = 1_000
MINUTE_NS = 60 * NS_PER_S
SESSION_NS = 12 * 3_600 * NS_PER_S
#: Of one token: who has a job's cannot log out everybody else.
MAX_SESSIONS = 20


@dataclass(frozen=True, slots=True)
class Grant:
    """What somebody may do, and by which token or certificate."""

    name: str
    role: Role

    def covers(self, role: Role) -> bool:
        return ROLE_RANKS[self.role] >= ROLE_RANKS[role]


@dataclass(frozen=True, slots=True)
class Denial:
    """401: nothing was shown that counts; 429: too many wrong credentials, come back after `retry_after_s`."""

    status: int
    text: str
    retry_after_s: int = 0


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request brought. `certificate` is the name in one that the configured authority signed."""

    address: str
    authorization: str | None = None
    session: str | None = None
    certificate: str | None = None


class TokenSecrets:
    """
    The tokens' secrets, without spaces around, which no header can hold. Raises ConfigError for one that cannot be read, is too
    short to be one, or is another token's too, and for a name that two have.
    """

    def __init__(self, tokens: Sequence[TokenSettings]) -> None:
        self._known: list[tuple[bytes, Grant]] = []
        for index, token in enumerate(tokens):
            secret = token.secret.reveal().get_secret_value().strip()
            if len(secret) < MIN_SECRET_LENGTH:
                raise ConfigError(
                    f"web.token[{index}].secret: of {token.name}: shorter than {MIN_SECRET_LENGTH} characters; "
                    "openssl rand -hex 24 makes a good one"
                )
            for digest, grant in self._known:
                if grant.name == token.name:
                    raise ConfigError(f"web.token[{index}].name = {token.name!r}: another token is called so")
                if digest == _digest(secret):
                    raise ConfigError(f"web.token[{index}].secret: of {token.name}: it is that of {grant.name} too")
            self._known.append((_digest(secret), Grant(token.name, token.role)))

    def match(self, secret: str) -> Grant | None:
        """Takes as long whichever fits."""
        shown, found = _digest(secret), None
        for digest, grant in self._known:
            if hmac.compare_digest(digest, shown):
                found = grant
        return found


class FailedAttempts:
    """Wrong credentials of the last minute, of each address, an IPv6 network of 64 bits counting as one."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def note(self, address: str, now_ns: int) -> None:
        self.total += 1
        self._forget(now_ns)
        who = self._who(address)
        began_ns, count = self._counts.get(who, (now_ns, 0))
        self._counts[who] = (began_ns, count + 1)

    def wait_s(self, address: str, now_ns: int) -> int | None:
        """How long until this address may try again; None: it may now."""
        self._forget(now_ns)
        began_ns, count = self._counts.get(self._who(address), (0, 0))
        return None if count < MAX_FAILURES_PER_MINUTE else -((now_ns - began_ns - MINUTE_NS) // NS_PER_S)

    def _who(self, address: str) -> str:
        network = network_key(address)
        return network if network in self._counts or len(self._counts) < MAX_ADDRESSES else "all others"

    def _forget(self, now_ns: int) -> None:
        """Counts begin in the order that they are kept in."""
        while self._counts and now_ns - next(iter(self._counts.values()))[0] >= MINUTE_NS:
            self._counts.popitem(last=False)


def network_key(address: str) -> str:
    """An IPv4 address, or the 64 bits of an IPv6 network."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return "unknown"
    if not isinstance(ip, IPv6Address):
        return str(ip)
    return str(ip.ipv4_mapped or ip_network((int(ip), 64), strict=False))


class BrowserSessions:
    """Browsers that logged in: a random id stands for the token's grant. The token's oldest goes when it has too many."""

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
    """Raises ConfigError for tokens that cannot be used."""

    def __init__(self, settings: WebSettings) -> None:
        self.failures = FailedAttempts()
        self.sessions = BrowserSessions()
        self.has_tokens = bool(settings.token)
        self.is_guarded = self.has_tokens or settings.client_ca is not None or not settings.is_local
        self._keys = TokenSecrets(settings.token)
        self._client_role = settings.client_role

    def judge(self, shown: Credentials, now_ns: int) -> Grant | Denial:
        """
        A token goes before a session, and that before a certificate. Where nothing guards, what is shown does not count: it may be
        meant for another daemon.
        """
        if not self.is_guarded:
            return Grant("whoever is on this machine", "reader")
        if shown.authorization is not None:
            scheme, _, secret = shown.authorization.partition(" ")
            return self.judge_secret(secret.strip() if scheme.lower() == "bearer" else "", shown.address, now_ns)
        session = None if shown.session is None else self.sessions.find(shown.session, now_ns)
        if session is not None:
            return session
        if shown.certificate is not None:
            return Grant(shown.certificate, self._client_role)
        return Denial(401, "show who you are: Authorization: Bearer TOKEN, a client certificate, or log in at /login")

    def judge_secret(self, secret: str, address: str, now_ns: int) -> Grant | Denial:
        wait_s = self.failures.wait_s(address, now_ns)
        if wait_s is not None:
            return Denial(429, f"too many wrong credentials from this address: again in {wait_s} s", wait_s)
        grant = self._keys.match(secret)
        if grant is None:
            self.failures.note(address, now_ns)
            return Denial(401, "these credentials are not known")
        return grant


def access_warnings(settings: WebSettings) -> list[str]:
    """What is unwise in how the page is guarded."""
    found = []
    if settings.token and settings.certificate is None and not settings.is_local:
        found.append(
            "tokens go over the network in clear: give certificate and key, or have a proxy speak TLS before it"
        )
    roles = [token.role for token in settings.token] + ([settings.client_role] if settings.client_ca else [])
    if roles and all(role == "job" for role in roles):
        found.append("nobody can see the page, the metrics or timesyncd status: no token has the role reader")
    return found


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ACCESS = web.AppKey("access", Access)
#: What each path needs; None: nothing. A path that is not there needs a reader.
REQUIRED_ROLES = web.AppKey("roles", Mapping[str, Role | None])
#: Of the request that is being answered.
GRANT: ContextVar[Grant] = ContextVar("grant")
SESSION_COOKIE = "timesyncd-session"


class AccessGuard:
    def __init__(self) -> None:
        self._told_ns = -MINUTE_NS
        self._told = 0

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        needed = request.app[REQUIRED_ROLES].get(resource.canonical, "reader") if resource is not None else "reader"
        access, now_ns = request.app[ACCESS], time.monotonic_ns()
        if needed is None:
            response = await handler(request)
            self._tell(request, now_ns)
            return response
        judged = access.judge(_credentials(request), now_ns)
        self._tell(request, now_ns)
        if isinstance(judged, Denial):
            return _denial_response(request, access, judged)
        if not judged.covers(needed):
            said = f"{request.path} needs the role {needed}; {judged.name} has {judged.role}"
            return _denial_response(request, access, Denial(403, said))
        GRANT.set(judged)
        return await handler(request)

    def _tell(self, request: web.Request, now_ns: int) -> None:
        """Of wrong credentials, at most once a minute."""
        total = request.app[ACCESS].failures.total
        if total > self._told and now_ns - self._told_ns >= MINUTE_NS:
            log.warning("web: wrong credentials: %d times, the last from %s", total - self._told, request.remote)
            self._told, self._told_ns = total, now_ns


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
    """A browser that comes for the page is led to the log-in."""
    if access.has_tokens and request.path == "/" and "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=303, headers={"Location": "login"})
    asks = {"WWW-Authenticate": "Bearer"} if denial.status == 401 else {}
    return error_response(denial.status, denial.text, asks | retry_after_header(denial))
