"""Idle connections and too many of them, over real sockets: each is bounded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from authority import Authority
from fake_view import FakeView

from timesyncd.config import WebSettings
from timesyncd.web import connections
from timesyncd.web.app import WebServer, serve

pytestmark = pytest.mark.integration

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOON_S = 0.3


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def started(stack: AsyncExitStack, settings: WebSettings) -> WebServer:
    server = await serve(settings, FakeView())
    stack.push_async_callback(server.close)
    return server


async def connected(stack: AsyncExitStack, server: WebServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.push_async_callback(closed, writer)
    return reader, writer


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", WHOLE[:-2], WHOLE + b"GET /hea"])
async def test_half_a_request_is_not_waited_for(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The connection ends, whether it is the first request of it or a later one."""
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", SOON_S)
    reader, writer = await connected(stack, await started(stack, WebSettings(port=0)))
    writer.write(sent)
    async with asyncio.timeout(60):
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") == sent.startswith(WHOLE)


async def test_a_stream_is_not_idle(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer asks once and then listens, however long."""
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", SOON_S)
    reader, writer = await connected(stack, await started(stack, WebSettings(port=0)))
    writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with suppress(TimeoutError):
        async with asyncio.timeout(4 * SOON_S):
            while await reader.read(65_536):
                pass

    assert not reader.at_eof()


async def test_one_connection_too_many_is_refused(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Status 503 at the limit, with one log line; after one closes the next is accepted, and the others keep working.
    """
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    server = await started(stack, WebSettings(port=0))
    within = [await answer_of(stack, server) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        beyond = [await answer_of(stack, server) for _ in range(2)]
    await closed(within[0][1])
    async with asyncio.timeout(60):
        while (again := await answer_of(stack, server))[0] != b"HTTP/1.1 200 OK\r\n":
            await asyncio.sleep(0.02)
    within[1][1].write(WHOLE)

    assert [line for line, _ in within] == [b"HTTP/1.1 200 OK\r\n"] * 3
    assert [line for line, _ in beyond] == [b"HTTP/1.1 503 Service Unavailable\r\n"] * 2
    assert again[0] == b"HTTP/1.1 200 OK\r\n"
    assert [record.getMessage() for record in caplog.records] == [
        "web: rejected a connection: 3 connections are open, which is the limit"
    ]


async def answer_of(stack: AsyncExitStack, server: WebServer) -> tuple[bytes, asyncio.StreamWriter]:
    """The first line of the answer to a whole request; the connection stays open."""
    reader, writer = await connected(stack, server)
    with suppress(ConnectionError):
        writer.write(WHOLE)
        async with asyncio.timeout(60):
            return await reader.readline(), writer
    return b"", writer


async def test_a_handshake_is_not_waited_for(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Over TLS too an idle connection is closed."""
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT_S", SOON_S)
    own = Authority(tmp_path).identity("server", "127.0.0.1")
    server = await started(stack, WebSettings(port=0, certificate=own.certificate, key=own.key))
    reader, writer = await connected(stack, server)
    writer.write(b"\x16\x03\x01")
    async with asyncio.timeout(60):
        answer = await reader.read()

    assert answer == b""
