"""
The status page of a real daemon with a real ptp4l: silence in any form leaves nothing green, the page returns by itself, and its
numbers are the API's.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from chromium import Page, opened
from http_relay import HttpRelay
from page_pixels import green_pixels

from timesyncd.simulation.bed.bed import PtpBed
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker

pytestmark = pytest.mark.integration

NODE = "n1"
HOLDOVER_AFTER_NS = 2_000_000_000


class Parts:
    """The daemon, and its ptp4l's process id."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        marker = new_marker()
        bed = stack.enter_context(PtpBed(direct=(NODE,), marker=marker))
        self.ptp4l = bed.nodes[NODE].pid
        bounds = {"holdover_after_ns": HOLDOVER_AFTER_NS}
        self.daemon = stack.enter_context(
            DaemonProcess(NODE, folder, bed.nodes[NODE].uds_address, marker, bounds=bounds)
        )


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    with ExitStack() as stack:
        yield Parts(stack, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ts-"))))


@asynccontextmanager
async def live_page(parts: Parts, url: str = "") -> AsyncIterator[Page]:
    """The node's view, live and with something green."""
    async with opened(f"{url or parts.daemon.page}node/{NODE}") as page:
        await page.until("status", "SYNCHRONIZED")
        await is_live(page)
        assert await green_pixels(page) > 0
        yield page


async def go(page: Page, path: str) -> None:
    """Another view of the same page, as a link within it opens it."""
    await page.evaluate(f"history.pushState(null, '', '/{path}'); dispatchEvent(new PopStateEvent('popstate'))")


async def is_live(page: Page) -> None:
    await page.until("connection", "● live")
    await page.becomes("document.getElementById('banner').hidden", True)


async def has_nothing_green(page: Page) -> None:
    """The banner is there, and title and pixels have lost their green."""
    banner = await page.until("banner", "everything below is as of")
    assert banner.rstrip().endswith("ago")
    assert (await page.evaluate("document.title")).startswith("⚠ no answer")
    assert await green_pixels(page) == 0


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_stopped_daemon_leaves_nothing_green(parts: Parts) -> None:
    """Its connections stay open and nothing comes; when it goes on, so does the page."""
    async with live_page(parts) as page:
        with stopped(parts.daemon.process.pid):
            await has_nothing_green(page)
        await is_live(page)


async def test_a_killed_daemon_leaves_nothing_green(parts: Parts) -> None:
    """The page of the next start is the same one, without a reload."""
    async with live_page(parts) as page:
        await page.evaluate("window.isTheSame = true")
        parts.daemon.kill()
        try:
            await has_nothing_green(page)
        finally:
            parts.daemon.start()
        await is_live(page)
        await page.until("status", "SYNCHRONIZED")
        assert await page.evaluate("window.isTheSame") is True


#: In each view what stands in place of a subject that the page has not loaded, and its text once the daemon answers.
NOTES = (
    ("node", "node-note", "This daemon knows no node named other."),
    ("grandmaster", "no-grandmasters", "This daemon polls no grandmaster."),
    ("job", "no-jobs", "No job reports."),
)


@contextmanager
def killed(daemon: DaemonProcess) -> Iterator[None]:
    daemon.kill()
    try:
        yield
    finally:
        daemon.start()


@pytest.mark.parametrize("silence", ["stopped", "killed"])
async def test_what_was_not_loaded_is_not_said_to_be_unknown(parts: Parts, silence: str) -> None:
    """Nobody said that it does not exist; nor does the tab show the status of another node for it."""
    async with live_page(parts) as page:
        with stopped(parts.daemon.process.pid) if silence == "stopped" else killed(parts.daemon):
            await has_nothing_green(page)
            for view, note, _ in NOTES:
                await go(page, f"{view}/other")
                await page.until(note, "not loaded: the daemon does not answer")
                if view == "node":
                    assert await page.evaluate("document.title") == "⚠ no answer, other timesyncd"
        await is_live(page)
        for view, note, text in NOTES:
            await go(page, f"{view}/other")
            await page.until(note, text)


async def test_a_half_open_connection_leaves_nothing_green(parts: Parts) -> None:
    """No end of it is signalled and it stays dead: the page connects again by itself once a connection is possible."""
    async with HttpRelay(parts.daemon.port) as relay, live_page(parts, f"http://127.0.0.1:{relay.port}/") as page:
        relay.break_all()
        await has_nothing_green(page)
        relay.mend()
        await is_live(page)


async def test_holdover_shows(parts: Parts) -> None:
    """While ptp4l receives no Sync, the page states holdover and a growing bound, and then it returns."""
    async with live_page(parts) as page:
        with stopped(parts.ptp4l):
            await page.until("status", "◐ HOLDOVER")
            assert await page.evaluate("document.getElementById('hero').dataset.status") == "HOLDOVER"
            assert (await page.evaluate("document.title")).startswith("◐ HOLDOVER")
        await page.until("status", "● SYNCHRONIZED")
