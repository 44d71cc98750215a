"""A relay between a browser and a daemon whose connections can become half open: nothing passes, and no end is signalled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self


class HttpRelay:
    """`async with HttpRelay(port) as relay:` listens at `relay.port`. Connections that were made before `mend` stay dead after `break_all`."""

    def __init__(self, to_port: int) -> None:
        self.port = 0
        self._to_port = to_port
        self._is_broken = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.break_all()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def break_all(self) -> None:
        """The present connections for good, and new ones until `mend`."""
        self._is_broken = True
        for task in self._tasks:
            task.cancel()

    def mend(self) -> None:
        self._is_broken = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._is_broken:
            return
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._writers.add(to_writer)
        for source, sink in ((reader, to_writer), (to_reader, writer)):
            task = asyncio.create_task(_pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """An end of one side ends the other."""
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
        sink.close()
