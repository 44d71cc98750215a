"""
Grandmasters whose web interface answers wrongly: one clear typed error each, nothing kept, and nothing sent but reads.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import socket
import struct
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from web_interface import (
    COOKIE,
    GOOD,
    PASSWORD,
    TOKEN,
    UNIX_S,
    USERNAME,
    Handler,
    Lab,
    S,
    ScriptedWebInterface,
    polled_error,
    server_context,
)

from timesyncd.drivers.timeprovider._web import MAX_FILE_BYTES
from timesyncd.drivers.timeprovider._web_requests import READS
from timesyncd.drivers.timeprovider._web_session import MAX_RESPONSE_BYTES
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]


async def broken_json(request: web.Request) -> web.StreamResponse:
    return web.Response(text='{"chartData": [{"X": 1', content_type="application/json")


async def wrong_type(request: web.Request) -> web.StreamResponse:
    return web.json_response({"chartData": [{"X": UNIX_S, "Y": "much", "OFFSET": 37}]})


async def not_a_number(request: web.Request) -> web.StreamResponse:
    return web.Response(text='{"chartData": [{"X": NaN, "Y": 1, "OFFSET": 37}]}', content_type="application/json")


async def huge_number(request: web.Request) -> web.StreamResponse:
    return web.json_response({"chartData": [{"X": UNIX_S, "Y": 10**300, "OFFSET": 37}]})


async def html(request: web.Request) -> web.StreamResponse:
    return web.Response(text=f"<html>you are {PASSWORD}</html>", content_type="text/html")


async def hundred_megabytes(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(1600):
        await response.write(b"[" * 65_536)
        await asyncio.sleep(0)  # the server notices that the client is gone
    return response


async def gzip_bomb(request: web.Request) -> web.StreamResponse:
    bomb = gzip.compress(bytes(50_000_000))
    return web.Response(body=bomb, headers={"Content-Encoding": "gzip"}, content_type="application/json")


async def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()
    return web.Response()


async def cut_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"chartData": [')
    assert request.transport is not None
    request.transport.close()
    return response


async def redirect_elsewhere(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": f"https://192.0.2.66:8443/get?sid={COOKIE}"})


async def redirect_to_http(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": f"http://127.0.0.1:{request.url.port}/get_chart_data"})


async def drip(request: web.Request) -> web.StreamResponse:
    """An octet every tenth of a second: a steady stream, and no answer for hours."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(36_000):
        await response.write(b"[")
        await asyncio.sleep(0.1)
    return response


async def gone(request: web.Request) -> web.StreamResponse:
    return web.Response(status=404)


LIES: dict[str, tuple[Handler, type[SourceError], str]] = {
    "HTML": (html, Malformed, r"HTML \(\d+ octets\) instead of JSON"),
    "broken JSON": (broken_json, Malformed, "broken JSON"),
    "a wrong type": (wrong_type, Malformed, "Y is a text instead of a number"),
    "NaN": (not_a_number, Malformed, "a number is NaN"),
    "a huge number": (huge_number, Malformed, "Y is out of range"),
    "100 MB": (hundred_megabytes, Malformed, f"the response exceeds {MAX_RESPONSE_BYTES} octets"),
    "a gzip bomb": (gzip_bomb, Malformed, "the response is compressed"),
    "a reset": (reset, Unreachable, "the connection was closed"),
    "cut off": (cut_off, Malformed, "the response was cut off"),
    "a redirect elsewhere": (
        redirect_elsewhere,
        Malformed,
        r"the response redirects to https://192\.0\.2\.66:8443, another server",
    ),
    "a redirect to plain HTTP": (
        redirect_to_http,
        Malformed,
        r"the response redirects to http://127\.0\.0\.1:\d+, another server",
    ),
    "404": (gone, Refused, "HTTP status 404"),
}


@pytest.mark.parametrize(("lie", "expected", "message"), LIES.values(), ids=LIES.keys())
async def test_a_lie(lab: Lab, lie: Handler, expected: type[SourceError], message: str) -> None:
    """
    One error that names grandmaster, object and what came; the next honest poll is whole, with at most one log-in a
    poll.
    """
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port)
    grandmaster.answers["/get_chart_data"] = lie

    actual = await polled_error(reader, expected)

    assert "/get_chart_data (GNSS-1 te): " in actual
    assert re.search(message, actual), actual
    assert grandmaster.logins == 1

    del grandmaster.answers["/get_chart_data"]

    assert (await reader.poll(60 * S)).time_errors == GOOD


async def test_a_page_in_place_of_one_chart(lab: Lab) -> None:
    """In an open session, a page is a malformed answer and not a rejected log-in: the credentials count as right."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port)
    await reader.poll(0)
    grandmaster.answers["/get_chart_data"] = html

    first = await polled_error(reader, Malformed, 60 * S)
    second = await polled_error(reader, Malformed, 120 * S)

    assert first == second
    assert grandmaster.logins == 3


@pytest.mark.parametrize("lie", [redirect_elsewhere, redirect_to_http])
async def test_no_password_follows_a_redirect(lab: Lab, lie: Handler) -> None:
    """A grandmaster that points elsewhere before the log-in receives no password."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    grandmaster.answers["/channels_thresholdValue"] = lie
    reader = await lab.reader(grandmaster.port)

    await polled_error(reader, Malformed)

    assert [received.path for received in grandmaster.received] == ["/channels_thresholdValue"]


async def test_one_byte_a_second(lab: Lab) -> None:
    """However steadily octets drip: half of timeout_s, then the object that did not come is named."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port, timeout_s=2)

    grandmaster.answers["/channels_thresholdValue"] = drip

    actual = await polled_error(reader, Unreachable)

    assert actual.endswith("/channels_thresholdValue: no complete answer within 1 s")


async def test_headers_without_end(lab: Lab) -> None:
    """A grandmaster that is not HTTP, or never ends its headers, is one clear error too."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-dropbear " + PASSWORD.encode() + b"\r\n" * 3)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0, ssl=server_context(lab.own))
    async with server:
        reader = await lab.reader(server.sockets[0].getsockname()[1])
        actual = await polled_error(reader, Malformed)

    assert actual.endswith("/channels_thresholdValue: the response is not HTTP")


async def test_a_closed_port(lab: Lab) -> None:
    """A closed port is unreachable."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port)
    await lab.stack.aclose()
    await reader.open()
    lab.stack.push_async_callback(reader.close)

    assert await polled_error(reader, Unreachable)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (html, "HTML"),
        (gone, "HTTP status 404"),
        (reset, "the connection was closed"),
        (redirect_elsewhere, "the response redirects to"),
        (hundred_megabytes, f"the response exceeds {MAX_FILE_BYTES} octets"),
        (drip, "no complete file within 1 s"),
    ],
)
async def test_a_history_that_lies(lab: Lab, lie: Handler, message: str) -> None:
    """What the grandmaster measures now counts without its history: a note, nothing kept, no new log-in."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    grandmaster.answers["/perfmon_gnss_stat"] = lie
    reader = await lab.reader(grandmaster.port, fill_history=True, timeout_s=2 if lie is drip else 60)

    actual = await reader.poll(0)
    (note,) = actual.notes

    assert (actual.time_errors, actual.series, grandmaster.logins) == (GOOD, (), 1)
    assert note.startswith(f"history: 127.0.0.1:{grandmaster.port}: /perfmon_gnss_stat (GNSS-1 te): ")
    assert message in note and PASSWORD not in note and COOKIE not in note


async def test_a_long_history(lab: Lab) -> None:
    """A day at a value a second is longer than any other answer may be, and is read."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port, fill_history=True)
    row = "2026-07-31,23:59:58, 1\n"

    async def a_day(request: web.Request) -> web.StreamResponse:
        return web.Response(text=row * 86_400)

    grandmaster.answers["/perfmon_gnss_stat"] = a_day

    (series,) = (await reader.poll(0)).series

    assert len(row) * 86_400 > MAX_RESPONSE_BYTES
    assert len(series.points) == 86_400


async def test_a_whole_life_sends_nothing_else(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Through every lie, session end and refusal: what the client was reported to send, and what arrived, is the closed
    list of reads and the one log-in; and no log line holds a secret.
    """
    caplog.set_level(logging.DEBUG)
    sent: list[tuple[str, str]] = []
    original = aiohttp.ClientSession._request

    async def recorded(self: aiohttp.ClientSession, method: str, url: Any, **given: Any) -> Any:
        sent.append((method, str(url.path_qs)))
        return await original(self, method, url, **given)

    monkeypatch.setattr(aiohttp.ClientSession, "_request", recorded)
    grandmaster = await lab.serve(ScriptedWebInterface(with_token=True))
    reader = await lab.reader(grandmaster.port, fill_history=True)
    now_ns = 0
    for path in ("/channels_thresholdValue", "/get_chart_data", "/perfmon_gnss_stat", "/login"):
        for lie, _, _ in LIES.values():
            grandmaster.answers, grandmaster.session, now_ns = {path: lie}, None, now_ns + 3600 * S
            try:
                await reader.poll(now_ns)
            except SourceError:
                await reader.close()
                await reader.open()
    arrived = {(received.path, received.fields) for received in grandmaster.received}
    login = (("txtuname", USERNAME), ("txtpasswd", PASSWORD), ("action", "applylogin"))

    assert {received.method for received in grandmaster.received} == {method for method, _ in sent} == {"POST"}
    assert {path for _, path in sent} == {path for path, _ in arrived}
    assert arrived - READS <= {("/login", login), ("/login", (*login, ("csrf_token", TOKEN)))}
    assert not [secret for secret in (PASSWORD, COOKIE, TOKEN) if secret in caplog.text]
