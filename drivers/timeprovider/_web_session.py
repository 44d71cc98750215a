"""
The one session with a unit's web interface: every request passes one gate, and every answer one sieve.

How a unit proves who it is, and what is said when it cannot.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from pydantic import SecretStr
from yarl import URL

from timesyncd.drivers.timeprovider._web_codec import NotData, login_token
from timesyncd.drivers.timeprovider._web_requests import LOGIN_PATH, AllowedRequest, WebOptions, login
from timesyncd.errors import ConfigError, Malformed, Refused, SourceError, Unreachable


def tls_verification(options: WebOptions) -> ssl.SSLContext | aiohttp.Fingerprint:
    """
    What is checked of the certificate before the first octet of a request is sent. Python's contexts speak TLS 1.2 or later,
    also the one that goes with a pinned fingerprint. Raises Unreachable when `ca` cannot be read any more.
    """
    if options.fingerprint is not None:
        return aiohttp.Fingerprint(bytes.fromhex(options.fingerprint))
    if options.insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=options.ca)
    except OSError as error:
        raise Unreachable(f"{options.ca}: no certificates can be read there: {error.strerror or error}") from error


def source_error(error: aiohttp.ClientError) -> SourceError:
    """
    The same in our words. The client library's own text is not used where the unit wrote a part of it: it has heard the
    password, and could say it again.
    """
    match error:
        case aiohttp.ServerFingerprintMismatch():
            return Refused(
                f"its certificate is not the pinned one: one with fingerprint {error.got.hex()} came, and nothing was sent to it."
                " If the unit's certificate was renewed, look at it on the unit itself and set fingerprint anew"
            )
        case aiohttp.ClientConnectorCertificateError():
            reason = getattr(error.certificate_error, "verify_message", "it is not for this host")
            return Refused(
                f"its certificate cannot be trusted: {reason}; nothing was sent to it."
                " Set ca to what signed the unit's certificate for this host, or pin it with fingerprint"
            )
        case aiohttp.ClientConnectorSSLError():
            reason = getattr(error.os_error, "reason", None) or "the handshake broke off"
            return Refused(f"no TLS 1.2 or later: {reason}")
        case aiohttp.ClientConnectorDNSError():
            return Unreachable("no such host name")
        case aiohttp.ClientConnectorError():
            # The event loop's own error for a handshake that the other end closed bears no number.
            return Unreachable(error.os_error.strerror or "the handshake broke off: does it speak TLS 1.2 or later?")
        case aiohttp.ClientPayloadError():
            return Malformed("the answer broke off half-way")
        case aiohttp.ClientConnectionError():
            return Unreachable("the connection broke off")
        case _:
            return Malformed("the answer is not HTTP")


T = TypeVar("T")

MAX_RESPONSE_BYTES = 1 << 20

#: After a refused log-in none is tried for so long: units lock an account after a few, and how many is not published.
LOGIN_HELD_S = 600

_READ_AT_ONCE = 65_536
_NOT_YOU = (401, 403)
_HEADERS = {"X-Requested-With": "XMLHttpRequest", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class WebResponse:
    """`redirected`: it points to another page of the same unit."""

    status: int
    redirected: bool
    body: bytes


class WebSession:
    """
    Kept for the reader's life, also while closed: a session that still stands on the unit needs no new log-in, and a refused
    log-in stays known. Its errors name unit, object and what came.
    """

    def __init__(self, host: str, options: WebOptions, password: SecretStr) -> None:
        """Raises ConfigError."""
        self.device = f"{host}:{options.port}"
        self.asked = ""
        try:
            self._origin = URL.build(scheme="https", host=host, port=options.port).origin()
        except ValueError as error:
            raise ConfigError(f"host = {host!r}: a host name or an address is wanted") from error
        self._options = options
        self._password = password
        self._client: aiohttp.ClientSession | None = None
        self._cookies: aiohttp.CookieJar | None = None
        self._now_ns = 0
        self._no_login_before_ns = 0
        self._logged_in = self._proven = False
        self._token: tuple[str, str] | None = None

    def open(self) -> None:
        """Raises Unreachable. No connection is made yet."""
        # Units are often named by their address, whose cookies aiohttp drops unless told; and it would put quotes around some values.
        self._cookies = self._cookies or aiohttp.CookieJar(unsafe=True, quote_cookie=False)
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls_verification(self._options), limit=1),
            cookie_jar=self._cookies,
            headers=_HEADERS,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(),  # none of its own: who asks sets one around
        )

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def begin(self, boottime_ns: int) -> None:
        """A new poll, which may log in once."""
        self._now_ns = boottime_ns
        self._logged_in = self._proven = False
        self._token = None

    async def ask(self, request: AllowedRequest, parse: Callable[[bytes], T]) -> T:
        """
        What the unit answers. An answer that is no data means that there is no session (any more): once a poll it logs in and
        asks again. Raises SourceError.
        """
        try:
            data = await self.read(request, parse)
        except NotData:
            if self._logged_in:
                raise
            await self._log_in()
            data = await self._read_after_login(request, parse)
        self._proven = True
        return data

    async def read(self, request: AllowedRequest, parse: Callable[[bytes], T], largest: int = MAX_RESPONSE_BYTES) -> T:
        """The same without a log-in. Raises SourceError, NotData among them."""
        with self._naming(request):
            answer = await self._send(request, largest)
            try:
                _check_status(answer)
                return await _parsed(answer.body, parse)
            except NotData:
                self._token = login_token(answer.body)
                raise

    async def _read_after_login(self, request: AllowedRequest, parse: Callable[[bytes], T]) -> T:
        try:
            return await self.read(request, parse)
        except NotData as error:
            if self._proven:
                raise
            raise self._login_refused(f"the log-in was answered, and yet no session followed ({error})") from error

    async def _log_in(self) -> None:
        """What the unit answers proves nothing but a plain no: see what a following read gives."""
        if self._now_ns < self._no_login_before_ns:
            rest_s = (self._no_login_before_ns - self._now_ns) // 1_000_000_000
            raise Refused(
                f"{self.device}: {LOGIN_PATH}: an earlier log-in was refused; the next is tried in {rest_s} s"
            )
        self._logged_in = True
        request = login(self._options.username, self._password.get_secret_value(), self._token)
        with self._naming(request):
            answer = await self._send(request, MAX_RESPONSE_BYTES)
            if answer.status < 400:
                return
            if answer.status not in _NOT_YOU:
                raise Refused(f"HTTP status {answer.status} came")
        raise self._login_refused(f"{request.label}: HTTP status {answer.status} came")

    def _login_refused(self, what: str) -> Refused:
        self._no_login_before_ns = self._now_ns + LOGIN_HELD_S * 1_000_000_000
        return Refused(
            f"{self.device}: {what}; see whether username and password are right and the account is not locked."
            f" Not tried again for {LOGIN_HELD_S} s"
        )

    async def _send(self, request: AllowedRequest, largest: int) -> WebResponse:
        """The only way out. Raises SourceError."""
        if self._client is None:
            raise Unreachable("not open")
        self.asked = request.label
        try:
            async with self._client.post(
                self._origin.with_path(request.path), data=list(request.fields), allow_redirects=False
            ) as response:
                return WebResponse(response.status, self._redirected(response), await _body(response, largest))
        except aiohttp.ClientError as error:
            told = source_error(error)
        # Raised out here so that the library's error, which holds headers and cookies, is not chained to ours.
        raise told

    def _redirected(self, response: aiohttp.ClientResponse) -> bool:
        if not 300 <= response.status < 400:
            return False
        try:
            target = self._origin.join(URL(response.headers.get("Location", ""))).origin()
        except ValueError as error:
            raise Malformed("a redirect to something that is no address came") from error
        if target != self._origin:
            raise Malformed(f"a redirect to {str(target)[:100]} came, which is not followed")
        return True

    @contextmanager
    def _naming(self, request: AllowedRequest) -> Iterator[None]:
        """Errors leave with the names of unit and object."""
        try:
            yield
        except SourceError as error:
            raise type(error)(f"{self.device}: {request.label}: {error}") from error


def _check_status(answer: WebResponse) -> None:
    """Raises NotData where the unit points to its log-in, Refused where it cannot."""
    if answer.redirected:
        raise NotData("a redirect to another page came")
    if answer.status in _NOT_YOU:
        raise NotData(f"HTTP status {answer.status} came")
    if answer.status != 200:
        raise Refused(f"HTTP status {answer.status} came")


async def _parsed(body: bytes, parse: Callable[[bytes], T]) -> T:
    """A day's file takes a third of a second: not in the event loop."""
    if len(body) > _READ_AT_ONCE:
        return await asyncio.to_thread(parse, body)
    return parse(body)


async def _body(response: aiohttp.ClientResponse, largest: int) -> bytes:
    """Raises Malformed when it is compressed, which nobody asked for, or too large: the connection is closed on it."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Malformed("a compressed answer came")
    body = bytearray()
    async for chunk in response.content.iter_chunked(_READ_AT_ONCE):
        body += chunk
        if len(body) > largest:
            raise Malformed(f"more than {largest} octets came")
    return bytes(body)
