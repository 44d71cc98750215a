"""A status page in a real browser, driven over its DevTools socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
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


class Refused(Exception):
    """The browser could not do it: a script threw, or the document it ran in went away meanwhile."""


class Page:
    """One open page, driven over the browser's DevTools socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self.complaints: list[str] = []
        self.trace: list[dict[str, Any]] = []
        self.network: list[dict[str, Any]] = []
        self.has_traced = False

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send and wait for the answer; what the browser logs meanwhile is kept as complaints.

        Raises:
            Refused: The browser answers with an error.
        """
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json()
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(message["params"]))
            if str(message.get("method")).startswith("Network."):
                self.network.append(message)
            self._trace(message)
            if message.get("id") == number:
                if "error" in message:
                    raise Refused(message["error"])
                result: dict[str, Any] = message["result"]
                return result

    def _trace(self, message: dict[str, Any]) -> None:
        """What `Tracing.start` to `Tracing.end` collects comes by itself, after the answer to the end."""
        if message.get("method") == "Tracing.dataCollected":
            self.trace += message["params"]["value"]
        self.has_traced = self.has_traced or message.get("method") == "Tracing.tracingComplete"

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression; of a promise, what it is kept with.

        Raises:
            Refused: It threw.
        """
        answer = await self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Refused(answer["exceptionDetails"])
        return answer["result"].get("value")

    async def text(self, element: str) -> str:
        """What a reader sees of a visible element (of a hidden one: its text all the same)."""
        return str(await self.evaluate(f"document.getElementById({element!r}).innerText"))

    async def until(self, element: str, wanted: str) -> str:
        """Wait until an element is there and its text holds what is wanted; this text."""
        return str(await self._wait(f"document.getElementById({element!r}).innerText", lambda text: wanted in text))

    async def becomes(self, expression: str, wanted: object) -> None:
        """Wait until an expression has this value."""
        await self._wait(expression, lambda value: value == wanted)

    async def _wait(self, expression: str, enough: Callable[[Any], bool]) -> Any:
        """The first value that is enough; that there is none meanwhile, as while a document loads, is no harm.

        Raises:
            TimeoutError: No value is enough after a minute; the message has the last one.
        """
        last: object = None
        try:
            async with asyncio.timeout(60):
                while True:
                    try:
                        last = await self.evaluate(expression)
                        if enough(last):
                            return last
                    except Refused as refused:
                        last = refused
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TimeoutError(f"{expression} is {last!r}") from None


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Page]:
    """A fresh browser with the page loaded; it and its folder go away, also when something fails."""
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
            await page.becomes("location.href != 'about:blank' && document.readyState", "complete")
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
