"""The status page in a real browser: what it shows, that it follows, that it ages, and that names cannot inject."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fake_view import FakeView

from timesyncd import config
from timesyncd.web.app import Server, serve
from timesyncd.web.events import Event

pytestmark = pytest.mark.integration

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


@pytest.fixture
def view() -> FakeView:
    return FakeView()


@pytest.fixture
async def server(view: FakeView) -> AsyncIterator[Server]:
    server = await serve(config.Web(port=0), view)
    yield server
    await server.close()


@pytest.fixture
async def page(server: Server) -> AsyncIterator[Page]:
    """A fresh browser on the page; it and its folder go away with the test, also when that fails."""
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
            await page.command("Page.navigate", url=server.url)
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


async def test_the_page_answers_the_questions(page: Page, tmp_path: Path) -> None:
    """In sync, how well, to whom, since when, and what the job pays: each is there in words, with units."""
    await page.until("status", "SYNCHRONIZED")
    shown = {name: await page.text(name) for name in ("to-whom", "since", "bound", "connection")}
    body = str(await page.evaluate("document.body.innerText"))

    assert shown["to-whom"] == "to grandmaster 001122.fffe.334455"
    assert shown["bound"].startswith("±") and shown["bound"].endswith("µs")
    assert shown["since"].startswith("for ") and "since" in shown["since"]
    assert shown["connection"] == "● live"
    for fact in ("−412 ns", "20.9 µs", "SLAVE", "path delay", "◐ HOLDOVER", "GNSS antenna open", "3/9 satellites",
                 "18.3 %", "rank 1 on trainer-02", "41.2 ms ±55.0 µs", "timed from step 1100", "1 ▲ slow"):  # fmt: skip
        assert fact in body


async def test_the_page_breaks_no_rule_of_its_own(page: Page) -> None:
    """No exception, no refused request and no violation of the content policy while the page is shown."""
    await page.until("status", "SYNCHRONIZED")
    await page.until("jobs", "llama-pretrain")

    assert page.complaints == []


async def test_the_page_follows(page: Page, view: FakeView) -> None:
    """A published event changes what is shown, without a reload."""
    await page.until("status", "SYNCHRONIZED")
    changes = {"status": "DISRUPTED", "reason": "the system clock was stepped", "sequence": 4712}
    view.events.publish(Event("node", view.node().model_copy(update=changes)))
    status = await page.until("status", "DISRUPTED")

    assert status == "✕ DISRUPTED"
    assert await page.text("bound") == "no bound"
    assert await page.text("reason") == "the system clock was stepped"


async def test_a_finding_that_is_over_goes(page: Page, view: FakeView) -> None:
    """A standing finding is shown until a message says that it is over."""
    await page.until("findings", "Check the antenna's connector.")
    over = view.findings()[0].model_copy(update={"until_realtime_ns": 1_700_000_400_000_000_000})
    view.events.publish(Event("finding", over))

    await page.until("findings-section", "None stands.")


async def test_a_silent_daemon_is_said_and_the_bound_grows(page: Page, view: FakeView) -> None:
    """While nothing is heard the page says for how long, widens the bound, and turns to HOLDOVER when it is due."""
    await page.until("status", "SYNCHRONIZED")
    first = await page.text("bound")
    await page.until("connection", "daemon silent for")
    await page.until("status", "HOLDOVER")
    later = await page.text("bound")

    assert float(later.strip("±µs ")) > float(first.strip("±µs "))
    assert "no fresh sample" in await page.text("reason")


async def test_a_lost_connection_is_said_and_healed(page: Page, server: Server, view: FakeView) -> None:
    """When the daemon goes the page says so, and when it is back on its port the page is live again."""
    await page.until("status", "SYNCHRONIZED")
    await server.close()
    await page.until("connection", "connection to the daemon lost")
    again = await serve(config.Web(port=int(server.url.rsplit(":", 1)[1].rstrip("/"))), view)
    try:
        await page.until("connection", "● live")
    finally:
        await again.close()


async def test_a_poisoned_name_stays_text(page: Page, view: FakeView) -> None:
    """Markup in a name, a reason, an alarm or a job is shown as it is and never becomes an element."""
    evil = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    await page.until("status", "SYNCHRONIZED")
    view.events.publish(Event("job", view.jobs()[0].model_copy(update={"job": evil, "verdict": evil, "job_id": evil})))
    view.events.publish(Event("node", view.states[1].model_copy(update={"node": evil, "reason": evil})))
    await page.until("jobs", evil)
    await page.until("nodes", evil)

    assert await page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert page.complaints == []
