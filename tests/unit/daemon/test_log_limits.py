"""What an unknown sender makes a library log: one line a minute, printable, with the number of the others."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from timesyncd.clocks import NS_PER_S
from timesyncd.daemon.log_limits import EVERY_NS, MAX_KINDS, LogLimit, limit_library_logs


class Steps:
    """A clock and a filter on it, and what a record becomes there."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.limit = LogLimit(lambda: self.now_ns)

    def line(self, text: str, *arguments: object, error: BaseException | None = None) -> str | None:
        exc_info = None if error is None else (type(error), error, None)
        record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, text, arguments, exc_info)
        return record.getMessage() if self.limit.filter(record) else None


def test_a_kind_passes_once_a_minute_with_the_number_of_the_others() -> None:
    """Another text, and another error, is another kind."""
    steps = Steps()
    first = [
        steps.line("Error handling request from %s", address) for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3")
    ]
    other = steps.line("Error handling request from %s", "192.0.2.1", error=OSError("x"))
    steps.now_ns = EVERY_NS

    assert first == ["Error handling request from 192.0.2.1", None, None]
    assert other == "Error handling request from 192.0.2.1"
    assert steps.line("Error handling request from %s", "192.0.2.9") == (
        "Error handling request from 192.0.2.9 (2 more like it since the last line)"
    )


def test_a_malformed_request_is_one_printable_line() -> None:
    """No traceback, and nothing that a terminal acts on."""
    error = BadHttpMessage("Invalid header: \x1b[31mEVIL\x1b[0m\n  second line")
    record = logging.LogRecord(
        "aiohttp.server", logging.ERROR, "", 0, "Error from %s", ("h",), (type(error), error, None)
    )

    assert LogLimit().filter(record)
    assert record.exc_info is None
    assert record.getMessage() == "Error from h: Invalid header: \\x1b[31mEVIL\\x1b[0m"


def test_our_own_error_keeps_its_traceback() -> None:
    """A handler that raises is a fault of ours."""
    error = KeyError("x")
    record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error", (), (type(error), error, None))

    assert LogLimit().filter(record)
    assert record.exc_info is not None


def test_memory_for_kinds_is_bounded() -> None:
    """Beyond the limit all other kinds are one."""
    steps = Steps()
    for number in range(2 * MAX_KINDS):
        steps.line(f"text {number}")
        steps.now_ns += NS_PER_S // 1000

    assert len(steps.limit._passed) == MAX_KINDS + 1


@pytest.fixture
def limited() -> Iterator[None]:
    logger = logging.getLogger("aiohttp.server")
    filters = logger.filters.copy()
    limit_library_logs()
    yield
    logger.filters[:] = filters


async def test_a_flood_of_malformed_requests_is_one_line(limited: None, caplog: pytest.LogCaptureFixture) -> None:
    """Fifty of them on a real server, which answers each."""
    runner = web.AppRunner(web.Application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    for _ in range(50):
        assert b"400" in await _answer(port, b"GET / HTTP/1.1\r\nHost : a\r\n\r\n")
    await runner.cleanup()

    lines = [record.getMessage() for record in caplog.records if record.name == "aiohttp.server"]
    assert len(lines) == 1
    assert "127.0.0.1" in lines[0]


async def _answer(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
    writer.write(request)
    answer = await reader.read(200)
    writer.close()
    return answer
