"""
A TimeProvider 4100's web interface as far as it is known: form posts of the browser's pages, a cookie session, JSON and one
text file. What is not known of the real one was chosen: a request without a session gets the log-in page (200 before firmware
2.4.7, 401 since), the name of the cookie, and that the oldest of more than eight sessions ends.

Self-signed certificates, created at each start, as a grandmaster ships with one.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import secrets
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from timesyncd.simulation.grandmaster import channels
from timesyncd.simulation.grandmaster.channels import CHANNELS, METRICS, MeasuredChannel
from timesyncd.simulation.grandmaster.device import Device


@dataclass(frozen=True)
class Certificate:
    """`fingerprint` is the SHA-256 of the certificate in hexadecimal; `pem` holds no key."""

    pem: str
    fingerprint: str
    context: ssl.SSLContext


def self_signed(name: str, host: str) -> Certificate:
    """For a grandmaster called `name` that answers at the address `host`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3_650))
        .add_extension(x509.SubjectAlternativeName(_names(name, host)), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(pem.decode(), certificate.fingerprint(hashes.SHA256()).hex(), _context(pem + secret))


def _names(name: str, host: str) -> list[x509.GeneralName]:
    try:
        return [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(host))]
    except ValueError:
        return [x509.DNSName(name), x509.DNSName(host)]


def _context(pem_with_key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem_with_key)
        file.flush()
        context.load_cert_chain(file.name)
    return context


COOKIE = "SESSID"
MAX_SESSIONS, SESSION_S = 8, 1_800.0
#: How far apart the points of a chart are.
CHART_STEP_S = 10
HUGE_OCTETS = 100 * 1024 * 1024
ELSEWHERE = "https://192.0.2.1/login"

_LOGIN_PAGE = (
    "<!DOCTYPE html><html><head><title>{name}</title></head><body><form method='post' action='/login'>"
    "<input name='txtuname'><input type='password' name='txtpasswd'></form></body></html>"
)
_FILE_FIELDS = ("chart_metric", "chart_x_range", "ChannelName", "reference_id")


class WebInterface:
    """
    Serves `device` until stopped; `port` 0 takes a free one. `device.https_fault` may be set at any time. `recorded` holds
    bodies to answer with instead, by name: channels_thresholdValue, get_chart_data.gnss-1.max-te, perfmon_gnss_stat.1.max-te.
    """

    def __init__(
        self,
        device: Device,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        username: str,
        password: str,
        recorded: Mapping[str, bytes] | None = None,
    ) -> None:
        self.device = device
        self.host = host
        self.port = port
        self.certificate = self_signed(device.name, host)
        self._username = username
        self._password = password
        self._recorded = recorded
        self._sessions = LoginSessions()
        self._other: Certificate | None = None
        self._boots = device.engine_boots
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Raises OSError when the address cannot be bound."""
        app = web.Application(middlewares=[self._gate])
        app.router.add_post("/login", self._login)
        app.router.add_post("/channels_thresholdValue", self._channel_states)
        app.router.add_post("/get_chart_data", self._chart)
        app.router.add_post("/perfmon_{word}_stat", self._day_file)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        context = self.certificate.context
        context.sni_callback = self._choose_certificate
        site = web.TCPSite(self._runner, self.host, self.port, ssl_context=context)
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        self.port = self._runner.addresses[0][1]
        return self.port

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def lax(self) -> bool:
        """Firmware before 2.4.7: sessions that can be planted, and a chart without a log-in."""
        return tuple(int(part) for part in re.findall(r"\d+", self.device.firmware)) < (2, 4, 7)

    def _choose_certificate(self, tls: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext) -> None:
        if self.device.https_fault == "certificate":
            self._other = self._other or self_signed(self.device.name, self.host)
            tls.context = self._other.context

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Time passes; a grandmaster that boots answers no request and forgets its sessions; faults come before answers."""
        device = self.device
        for grandmaster in (device, device.peer):
            if grandmaster is not None:
                grandmaster.catch_up()
        if not device.answering and request.transport is not None:
            request.transport.abort()
        if self._boots != device.engine_boots:
            self._boots, self._sessions = device.engine_boots, LoginSessions()
        match device.https_fault:
            case "redirect":
                return web.Response(status=302, headers={"Location": ELSEWHERE})
            case "huge":
                return await _huge(request)
            case "html":
                return self._page()
        answer: web.StreamResponse = await handler(request)
        if device.https_fault == "drip" and isinstance(answer, web.Response):
            return await _drip(request, answer)
        return answer

    def _page(self, status: int = 200) -> web.Response:
        return web.Response(status=status, text=_LOGIN_PAGE.format(name=self.device.name), content_type="text/html")

    async def _login(self, request: web.Request) -> web.Response:
        form = await request.post()
        fields = (str(form.get("txtuname", "")), str(form.get("txtpasswd", "")))
        good = hmac.compare_digest(repr(fields), repr((self._username, self._password)))
        if form.get("action") != "applylogin" or not good:
            return self._page(200 if self.lax else 401)
        # The old firmware accepts any session that the browser sends; the new one creates its own.
        planted = request.cookies.get(COOKIE) if self.lax else None
        answer = web.Response(text="<html><body>Welcome</body></html>", content_type="text/html")
        session = self._sessions.begin(self._now_s(), planted)
        answer.set_cookie(COOKIE, session, secure=not self.lax, httponly=True, path="/")
        return answer

    def _refused(self, request: web.Request) -> web.Response | None:
        """The log-in page, for a request without a session or from a browser that loads a page."""
        if self._sessions.holds(request.cookies.get(COOKIE), self._now_s()) and _is_script(request):
            return None
        return self._page(200 if self.lax else 401)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _channel_states(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        if "tgrp" not in await request.post():
            raise web.HTTPBadRequest
        return self._recording("channels_thresholdValue") or _json([self._state(channel) for channel in CHANNELS])

    def _state(self, channel: MeasuredChannel) -> dict[str, Any]:
        return {
            "monitorChannelString": channel.name,
            "monitorChStatusString": channels.status(self.device, channel).capitalize(),
            "monitorChId": channel.id,
            "monitorChRefString": channel.reference,
            "teThresholdValue": channels.ALARM_THRESHOLD_NS,
        }

    async def _chart(self, request: web.Request) -> web.Response:
        if not self.lax and (refused := self._refused(request)):
            return refused
        form = await request.post()
        channel = _channel(form, "channelName", "channelId", lambda channel: channel.kind.lower())
        metric, back = str(form.get("metric")), str(form.get("xRange", ""))
        if channel is None or metric not in METRICS or not re.fullmatch(r"\d{1,5}", back) or "tStart" not in form:
            raise web.HTTPBadRequest
        name = f"get_chart_data.{channel.name.lower()}.{metric}"
        return self._recording(name) or _json(self._points(channel, metric, min(int(back), channels.DAY_S)))

    def _points(self, channel: MeasuredChannel, metric: str, back_s: int) -> dict[str, Any]:
        device = self.device
        points = channels.points(device, channel, metric, back_s, CHART_STEP_S)
        return {
            "chartData": [
                {"X": point.unix_s + device.tai_offset_s, "Y": round(point.value_ns, 1), "OFFSET": device.utc_offset_s}
                for point in points
            ],
            "alarm_thresh": channels.ALARM_THRESHOLD_NS,
            "channelStatus": channels.status(device, channel).capitalize(),
            "reference": channel.reference,
        }

    async def _day_file(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        form, word = await request.post(), request.match_info["word"]
        if all(channel.word != word for channel in CHANNELS):
            raise web.HTTPNotFound
        channel = _channel({"word": word, **form}, "word", f"{word}_id", lambda channel: channel.word)
        metric = {str(number): name for name, number in METRICS.items()}.get(str(form.get("down_metric")))
        wanted = (*_FILE_FIELDS, f"chart_{word}Id", f"{word}_ref", f"{word}_status")
        if channel is None or metric is None or form.get("action1") != "savefile" or any(n not in form for n in wanted):
            raise web.HTTPBadRequest
        body = channels.day_file(self.device, channel, metric, tai=form.get("file_type") == "1")
        name = f"{channel.name}_{metric}_{int(self.device.unix_s):010d}"
        answer = self._recording(f"perfmon_{word}_stat.{channel.id}.{metric}") or web.Response(text=body)
        answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return answer

    def _recording(self, name: str) -> web.Response | None:
        if self._recorded is None:
            return None
        if name not in self._recorded:
            raise web.HTTPNotFound
        return web.Response(body=self._recorded[name], content_type="application/octet-stream")


class LoginSessions:
    """The sessions, the oldest first, and when each was last used."""

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}

    def begin(self, now_s: float, name: str | None = None) -> str:
        """The session's name: a new one unless given. One too many ends the oldest."""
        session = name or secrets.token_hex(16)
        self._used_s.pop(session, None)
        self._used_s[session] = now_s
        while len(self._used_s) > MAX_SESSIONS:
            del self._used_s[next(iter(self._used_s))]
        return session

    def holds(self, session: str | None, now_s: float) -> bool:
        """Whether the session is valid; asking prolongs it."""
        if session not in self._used_s or now_s - self._used_s[session] > SESSION_S:
            return False
        self._used_s[session] = now_s
        return True


def _is_script(request: web.Request) -> bool:
    return request.headers.get("X-Requested-With") == "XMLHttpRequest"


def _channel(
    form: Mapping[str, Any], name: str, number: str, shown: Callable[[MeasuredChannel], str]
) -> MeasuredChannel | None:
    """The channel that two fields of a form name."""
    wanted = (form.get(name), form.get(number))
    return next((channel for channel in CHANNELS if (shown(channel), str(channel.id)) == wanted), None)


def _json(content: Any) -> web.Response:
    # As such interfaces do: JSON that calls itself a page.
    return web.Response(text=json.dumps(content), content_type="text/html")


async def _huge(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    piece = b"[" * 65_536
    for _ in range(HUGE_OCTETS // len(piece)):
        await answer.write(piece)
    return answer


async def _drip(request: web.Request, whole: web.Response) -> web.StreamResponse:
    """One octet a second."""
    answer = web.StreamResponse(status=whole.status)
    await answer.prepare(request)
    body = whole.body if isinstance(whole.body, bytes) else b""
    for octet in body:
        await answer.write(bytes([octet]))
        await asyncio.sleep(1)
    return answer
