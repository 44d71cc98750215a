"""How many connections are let in at once: each takes a file descriptor, and the daemon's other parts need some too."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import cast

from aiohttp import web

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 512
HANDSHAKE_WITHIN_S = 10.0
#: How long a connection may be without a whole head of a request. More than proxies keep one that they may use again.
IDLE_S = 75.0
TELL_EVERY_S = 60.0

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 5\r\nConnection: close\r\n\r\n"


class Door:
    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._told_s = -TELL_EVERY_S

    async def open(self, host: str, port: int, context: ssl.SSLContext | None) -> asyncio.Server:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        within_s = HANDSHAKE_WITHIN_S if context else None
        return await loop.create_server(lambda: _Knock(self), host, port, ssl=context, ssl_handshake_timeout=within_s)

    def let_in(self, transport: asyncio.Transport) -> None:
        """Or not."""
        if len(self._server.connections) >= MOST_CONNECTIONS:
            transport.write(_FULL)
            transport.close()
            self._tell()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)

    def _tell(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s >= TELL_EVERY_S:
            log.warning("web: %d connections are open: more are refused", MOST_CONNECTIONS)
            self._told_s = now_s


class _Knock(asyncio.Protocol):
    """Stands for a connection until it is made, which over TLS is after the handshake."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._door.let_in(cast(asyncio.Transport, transport))
