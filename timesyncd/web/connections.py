"""
Limits on the HTTP server's connections: their number, the TLS handshakes in progress, and the bytes that wait in them.

Each connection takes a file descriptor, and the rest of the daemon needs some too. Each takes memory before any credential is
checked. So where a limit is reached, the oldest handshake, or the connection with the most bytes, ends: a flood ends itself first.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
#: Over TLS each connection takes about 150 KiB.
MAX_TLS_CONNECTIONS = 256
#: In progress at once. An honest client needs a slot for some milliseconds.
MAX_HANDSHAKES = 64
HANDSHAKE_TIMEOUT_S = 10.0
#: How long a handshake keeps its slot while others wait for one.
HANDSHAKE_SLOT_S = 1.0
#: How long a connection may stay open without a complete request head: longer than proxies keep an idle one for reuse.
IDLE_TIMEOUT_S = 75.0
LOG_INTERVAL_S = 60.0
#: Of responses that clients do not read, of all connections together.
MAX_UNSENT_BYTES = 16 * 2**20
#: Of request heads that are not complete, of all connections together.
MAX_UNPARSED_BYTES = 8 * 2**20
CHECK_INTERVAL_S = 1.0
#: MAX_CONNECTIONS of these are within MAX_UNPARSED_BYTES.
_SHORT_HEAD_BYTES = 8_192
_HEAD_END = b"\r\n\r\n"

_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"
)


class ConnectionLimiter:
    """Passes each new connection to the server, or answers 503 while too many are open."""

    def __init__(self) -> None:
        self._server: web.Server | None = None
        self._idle: OrderedDict[_Accepted, None] = OrderedDict()
        self._waiting: OrderedDict[_Accepted, None] = OrderedDict()
        self._handshakes: dict[_Accepted, float] = {}
        self._later: asyncio.TimerHandle | None = None
        self._connections: dict[_Connection, None] = {}
        self._max_connections = MAX_CONNECTIONS
        self._logged_s = -LOG_INTERVAL_S
        self._check: asyncio.Task[None] | None = None

    async def listen(self, server: web.Server, host: str, port: int, context: ssl.SSLContext | None) -> asyncio.Server:
        """Raises OSError."""
        self._server = server
        self._max_connections = MAX_CONNECTIONS if context is None else MAX_TLS_CONNECTIONS
        listener = await asyncio.get_running_loop().create_server(lambda: _Accepted(self, context), host, port)
        self._check = asyncio.create_task(self._check_unsent(), name="connections")
        return listener

    def close(self) -> None:
        """End the supervision; the server ends its connections itself."""
        if self._check is not None:
            self._check.cancel()

    @property
    def has_room(self) -> bool:
        """Whether another response may be written: clients read what they got before."""
        return sum(each.unsent_bytes for each in self._connections) <= MAX_UNSENT_BYTES

    def count_idle(self, accepted: _Accepted) -> None:
        """A connection without a handshake so far; the oldest ends where there are too many."""
        self._idle[accepted] = None
        if len(self._idle) > self._max_connections:
            oldest, _ = self._idle.popitem(last=False)
            oldest.abort()
            self._log_limit(f"{self._max_connections} connections without a TLS handshake are open")

    def forget_idle(self, accepted: _Accepted) -> None:
        self._idle.pop(accepted, None)

    def request_handshake(self, accepted: _Accepted) -> None:
        """Begin it as soon as there is a slot."""
        self._waiting[accepted] = None
        if len(self._waiting) > self._max_connections:
            oldest, _ = self._waiting.popitem(last=False)
            oldest.abort()
            self._log_limit(f"{self._max_connections} TLS handshakes wait")
        self._begin_handshakes()

    def end_handshake(self, accepted: _Accepted) -> None:
        self._waiting.pop(accepted, None)
        if self._handshakes.pop(accepted, None) is not None:
            self._begin_handshakes()

    def _begin_handshakes(self) -> None:
        """An honest client needs its slot for a moment, so the oldest handshake ends for another one after HANDSHAKE_SLOT_S."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            if len(self._handshakes) >= MAX_HANDSHAKES:
                oldest = next(iter(self._handshakes))
                left_s = self._handshakes[oldest] + HANDSHAKE_SLOT_S - loop.time()
                if left_s > 0:
                    self._begin_later(left_s)
                    return
                del self._handshakes[oldest]
                oldest.abort()
                self._log_limit(f"{MAX_HANDSHAKES} TLS handshakes are in progress")
            accepted, _ = self._waiting.popitem(last=False)
            self._handshakes[accepted] = loop.time()
            accepted.begin_handshake()

    def _begin_later(self, seconds: float) -> None:
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(seconds, self._begin_handshakes)

    def accept_or_reject(self, transport: asyncio.Transport) -> None:
        """Give the connection to the server, or end it."""
        assert self._server is not None
        if len(self._connections) >= self._max_connections and not self._end_silent():
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()
            self._log_limit(f"{self._max_connections} connections are open")
            return
        connection = _Connection(self, self._server())
        self._connections[connection] = None
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def remove(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def _end_silent(self) -> bool:
        """End the oldest connection that never sent a whole request; False if there is none."""
        silent = next((each for each in self._connections if not each.has_request), None)
        if silent is not None:
            del self._connections[silent]
            silent.abort()
        return silent is not None

    def check_unparsed(self) -> None:
        """The connections with the longest incomplete requests end where all together wait for too much."""
        what = f"{MAX_UNPARSED_BYTES} bytes of incomplete requests wait"
        self._end_largest(lambda each: each.unparsed_bytes, MAX_UNPARSED_BYTES, what)

    async def _check_unsent(self) -> None:
        """A client that reads nothing must not fill the memory: the connections with the most unsent bytes end."""
        what = f"{MAX_UNSENT_BYTES} bytes of responses wait for clients that do not read"
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self._end_largest(lambda each: each.unsent_bytes, MAX_UNSENT_BYTES, what)

    def _end_largest(self, size_of: Callable[[_Connection], int], limit: int, what: str) -> None:
        sizes = {each: size_of(each) for each in self._connections}
        total = sum(sizes.values())
        for each in sorted(sizes, key=sizes.__getitem__, reverse=True) if total > limit else ():
            self._log_limit(what)
            total -= sizes[each]
            self._connections.pop(each, None)
            each.abort()
            if total <= limit:
                return

    def _log_limit(self, what: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            log.warning("web: rejected a connection: %s, which is the limit", what)
            self._logged_s = now_s


class _Accepted(asyncio.Protocol):
    """
    A connection until it is established, which over TLS is after the handshake.

    The handshake begins at the client's first bytes: until then a connection takes no memory for it.
    """

    def __init__(self, limiter: ConnectionLimiter, context: ssl.SSLContext | None) -> None:
        self._limiter, self._context = limiter, context
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._context is None:
            self._limiter.accept_or_reject(self._transport)
        else:
            self._timeout = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self.abort)
            self._limiter.count_idle(self)

    def data_received(self, data: bytes) -> None:
        """Over TLS alone: the first bytes of the handshake."""
        assert self._transport is not None
        self._limiter.forget_idle(self)
        self._first += data
        self._transport.pause_reading()
        self._limiter.request_handshake(self)

    def begin_handshake(self) -> None:
        assert self._context is not None and self._transport is not None
        self._stop_waiting()
        protocol = _ServerTls(self._established, self._ended, self._context)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.feed(self._first)
        self._first = b""
        self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._limiter.end_handshake(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _stop_waiting(self) -> None:
        self._limiter.forget_idle(self)
        if self._timeout is not None:
            self._timeout.cancel()

    def _established(self, transport: asyncio.Transport) -> None:
        self._limiter.end_handshake(self)
        self._limiter.accept_or_reject(transport)

    def _ended(self) -> None:
        self._limiter.end_handshake(self)


class _ServerTls(SSLProtocol):
    """TLS with a smaller buffer than asyncio's 256 KiB, which each connection would keep; a record has 16 KiB."""

    max_size = 32_768

    def __init__(
        self, established: Callable[[asyncio.Transport], None], ended: Callable[[], None], context: ssl.SSLContext
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            loop,
            _Established(established),
            context,
            cast("asyncio.Future[None]", None),  # no caller waits
            server_side=True,
            ssl_handshake_timeout=cast(int, HANDSHAKE_TIMEOUT_S),
        )
        self._on_end = ended

    def feed(self, data: bytes) -> None:
        """What was received before this protocol had the transport."""
        for start in range(0, len(data), self.max_size):
            chunk = data[start : start + self.max_size]
            self.get_buffer(len(chunk))[: len(chunk)] = chunk
            self.buffer_updated(len(chunk))

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._on_end()


class _Established(asyncio.Protocol):
    """Learns that the handshake succeeded."""

    def __init__(self, established: Callable[[asyncio.Transport], None]) -> None:
        self._call = established

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._call(cast(asyncio.Transport, transport))


class _Connection(asyncio.Protocol):
    """Counts what waits in an established connection, and passes everything on to aiohttp's handler."""

    def __init__(self, limiter: ConnectionLimiter, handler: RequestHandler) -> None:
        self.unparsed_bytes = 0
        self.has_request = False
        self._limiter, self._handler = limiter, handler
        self._transport: asyncio.Transport | None = None
        self._end = b""

    @property
    def unsent_bytes(self) -> int:
        """What the server wrote and the kernel has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """A request head ends with an empty line; a form counts as part of what follows it."""
        joined = self._end + data
        end = joined.rfind(_HEAD_END)
        self.unparsed_bytes = self.unparsed_bytes + len(data) if end < 0 else len(joined) - end - len(_HEAD_END)
        self.has_request |= end >= 0
        self._end = joined[-len(_HEAD_END) + 1 :]
        self._handler.data_received(data)
        if self.unparsed_bytes >= _SHORT_HEAD_BYTES:
            self._limiter.check_unparsed()

    def eof_received(self) -> None:
        self._handler.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limiter.remove(self)
        self._handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()
