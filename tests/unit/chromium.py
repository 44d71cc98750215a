"""A status page in a real browser, driven over its DevTools socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
    "--remote-debugging-port=0", "--window-size=1280,1100",
)  # fmt: skip


class Page:
    """One open page, driven over the browser's DevTools socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self.complaints: list[str] = []

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send and wait for the answer; what the browser logs meanwhile is kept as complaints."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json()
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(message["params"]))
            if message.get("id") == number:
                result: dict[str, Any] = message["result"]
                return result

    async def evaluate(self, expression: str) -> Any:
        answer = await self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    async def text(self, element: str) -> str:
        """What a reader sees of a visible element (of a hidden one: its text all the same)."""
        return str(await self.evaluate(f"document.getElementById({element!r}).innerText"))

    async def until(self, element: str, wanted: str) -> str:
        """Wait until an element's text holds what is wanted."""
        async with asyncio.timeout(20):
            while wanted not in (text := await self.text(element)):
                await asyncio.sleep(0.1)
        return text


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Page]:
    """A fresh browser on the page; it and its folder go away, also when something fails."""
    folder = Path(tempfile.mkdtemp(prefix="timesyncd-page-"))
    browser = await asyncio.create_subprocess_exec(
        "/usr/bin/chromium", *CHROMIUM_FLAGS, f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    try:
        address = await _page_address(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                await page.command(f"{domain}.enable")
            await page.command("Page.navigate", url=url)
            yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        await browser.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def _page_address(port_file: Path) -> str:
    """Where the browser's first page listens, once it does."""
    async with asyncio.timeout(60):
        while not port_file.exists() or "\n" not in port_file.read_text():
            await asyncio.sleep(0.1)
        port = port_file.read_text().splitlines()[0]
        async with aiohttp.ClientSession() as session:
            while True:
                answer = await session.get(f"http://127.0.0.1:{port}/json/list")
                pages = [target for target in await answer.json() if target["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
                await asyncio.sleep(0.1)
