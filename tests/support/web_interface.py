"""An honest TimeProvider web interface over real TLS for tests, and answers that lie."""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from timesyncd.drivers.timeprovider._web import WebReader
from timesyncd.drivers.timeprovider._web_requests import WebOptions
from timesyncd.errors import SourceError
from timesyncd.sample import TimeError, TimeErrorSeries

USERNAME = "watcher"
PASSWORD = "p&ss=wörd 7"
COOKIE = "4d1f0c2a77aa"
TOKEN = "Zk9+/tok="
S = 1_000_000_000
UNIX_S = 1_785_542_400

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Certificate:
    """Self-signed for 127.0.0.1, as a grandmaster ships it."""

    pem: Path
    key: Path
    fingerprint: str


def certificate(folder: Path, name: str) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return Certificate(pem, key_file, hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest())


def server_context(own: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.pem, own.key)
    return context


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it arrived."""

    method: str
    path: str
    fields: tuple[tuple[str, str], ...]
    cookies: dict[str, str]


@dataclass
class ScriptedWebInterface:
    """An honest grandmaster; a test replaces what it answers on a path, or what ends its sessions."""

    received: list[ReceivedRequest] = field(default_factory=list)
    answers: dict[str, Handler] = field(default_factory=dict)
    password: str = PASSWORD
    with_token: bool = False
    session: str | None = None
    no_session: Callable[[], web.Response] = lambda: web.Response(text="<html>log in</html>", content_type="text/html")
    logins: int = 0
    port: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        fields = tuple((name, str(value)) for name, value in (await request.post()).items())
        self.received.append(ReceivedRequest(request.method, request.path_qs, fields, dict(request.cookies)))
        if request.method != "POST":
            return web.Response(status=405)
        if request.path in self.answers:
            with suppress(ConnectionResetError):  # the reader hung up, as it should on some lies
                return await self.answers[request.path](request)
            return web.Response()
        return self.log_in(dict(fields)) if request.path == "/login" else self.read(request, dict(fields))

    def log_in(self, fields: dict[str, str]) -> web.Response:
        """It states 200, whatever came; only a right log-in gets a cookie that counts."""
        self.logins += 1
        right = (fields["txtuname"], fields["txtpasswd"]) == (USERNAME, self.password)
        if self.with_token:
            right = right and fields.get("csrf_token") == TOKEN
        answer = web.Response(text="<html>welcome</html>", content_type="text/html")
        self.session = f"{COOKIE}{self.logins}" if right else None
        answer.set_cookie("sid", self.session or "none", secure=True, httponly=True)
        return answer

    def read(self, request: web.Request, fields: dict[str, str]) -> web.Response:
        if self.session is None or request.cookies.get("sid") != self.session:
            if self.with_token:
                page = f'<form><input type="hidden" name="csrf_token" value="{TOKEN}"></form>'
                return web.Response(text=page, content_type="text/html")
            return self.no_session()
        if request.path == "/channels_thresholdValue":
            return web.json_response(CHANNELS)
        if request.path == "/get_chart_data":
            return web.json_response(chart_data(fields["metric"]))
        if request.path == "/perfmon_gnss_stat":
            return web.Response(
                text=HISTORY.format(value=fields["down_metric"]), content_type="application/octet-stream"
            )
        return web.Response(status=404)


CHANNELS = [
    {"monitorChannelString": "GNSS-1", "monitorChStatusString": "Monitoring"},
    {"monitorChannelString": "PTP-1", "monitorChStatusString": "Disabled"},
]
VALUES = {"te": -12, "cte": 3, "max-te": 41}
HISTORY = "# Title: TP(time-error (ns)):Channel = GNSS-1\n2026-07-31,23:59:58, {value}\n2026-07-31,23:59:59, 8\n"


def chart_data(metric: str) -> dict[str, Any]:
    newest = {"X": UNIX_S + 37, "Y": VALUES[metric], "OFFSET": 37}
    older = newest | {"X": UNIX_S + 36, "Y": 999}
    return {"chartData": [older, newest], "alarm_thresh": 100, "channelStatus": "Monitoring", "reference": "GNSS"}


GOOD = (
    TimeError("GNSS-1", "te", -12, UNIX_S * S, "GNSS", "Monitoring", 100),
    TimeError("GNSS-1", "cte", 3, UNIX_S * S, "GNSS", "Monitoring", 100),
    TimeError("GNSS-1", "max_te", 41, UNIX_S * S, "GNSS", "Monitoring", 100),
)


def one_file(metric: str, value: int) -> TimeErrorSeries:
    return TimeErrorSeries("gm-a", "GNSS-1", metric, (((UNIX_S - 2) * S, value), ((UNIX_S - 1) * S, 8)))


@dataclass
class Lab:
    """Makes grandmasters and readers, and takes them away."""

    folder: Path
    stack: AsyncExitStack
    own: Certificate

    async def serve(
        self, grandmaster: ScriptedWebInterface, own: Certificate | None = None, port: int = 0
    ) -> ScriptedWebInterface:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", grandmaster.handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        self.stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=server_context(own or self.own))
        await site.start()
        grandmaster.port = runner.addresses[0][1]
        return grandmaster

    async def reader(self, port: int, **given: Any) -> WebReader:
        proof = {} if {"ca", "insecure", "fingerprint"} & set(given) else {"fingerprint": self.own.fingerprint}
        account = {"username": USERNAME, "password": {"env": "GM_WEB_PASSWORD"}, "port": port, "fill_history": False}
        reader = WebReader("gm-a", "127.0.0.1", WebOptions.model_validate(account | proof | given))
        self.stack.push_async_callback(reader.close)
        await reader.open()
        return reader


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """What a traceback of it would print."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def polled_error(reader: WebReader, expected: type[SourceError], boottime_ns: int = 0) -> str:
    """The one error of a poll: it names the grandmaster, has one line, and holds no secret."""
    with pytest.raises(SourceError) as raised:
        await reader.poll(boottime_ns)
    text = str(raised.value)

    assert isinstance(raised.value, expected)
    assert text.startswith("127.0.0.1:") and "\n" not in text
    assert not [secret for secret in (PASSWORD, COOKIE, TOKEN) if secret in text]
    assert not [cause for cause in causes(raised.value) if isinstance(cause, aiohttp.ClientError)]
    return text
