"""The status page of a hub, in a real browser: the hubs, the fleet's summary and picture, a node and its history."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Page, opened
from fake_view import FakeView
from fleet_view import FleetView

from timesyncd import config
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.daemon.node_state import NO_SOURCE
from timesyncd.store.engine import StoreLocation
from timesyncd.store.writer import Store
from timesyncd.web.app import serve

pytestmark = pytest.mark.integration

MINUTE_NS = 60 * NS_PER_S
ROWS = """(id) => [...document.querySelectorAll(`#${id} tr`)].map((row) => [...row.cells].map((cell) => cell.innerText.trim()).join("|"))"""


async def rows(page: Page, table: str) -> list[str]:
    """What a reader sees, a line a row."""
    found: list[str] = await page.evaluate(f"({ROWS})('{table}')")
    return found


@pytest.fixture
def view() -> FleetView:
    return FleetView()


@pytest.fixture
async def page(view: FleetView) -> AsyncIterator[Page]:
    server = await serve(config.WebSettings(port=0), view)
    async with opened(server.url) as page:
        await page.until("fleet-alignment", "µs")
        yield page
    await server.close()


async def test_the_hubs_are_listed(page: Page) -> None:
    """Name, primary or standby, nodes, last word; a link only where the address is one of the web."""
    shown = await rows(page, "hubs")
    links = await page.evaluate("[...document.querySelectorAll('#hubs a')].map((link) => link.href)")

    assert [line.split("|")[:4] for line in shown] == [
        ["hub-a", "● primary", "11 of 13", "1"], ["hub-b", "◌ standby", "11 of 13", "1"],
    ]  # fmt: skip
    assert shown[0].split("|")[4].endswith("s ago")
    assert links == ["https://hub-a.example:8319/"]


async def test_a_hub_without_a_source_has_no_clock(view: FleetView) -> None:
    """A daemon without a clock source is not shown as unsynchronized: it has no status and no bound."""
    none: dict[str, Any] = dict.fromkeys(("age_ns", "gm", "utc", "parent"))
    alone = none | {"sources": [], "status": "UNKNOWN", "reason": NO_SOURCE, "terms": {}, "rates": {}}
    view.states[0] = view.states[0].model_copy(update=alone)
    server = await serve(config.WebSettings(port=0), view)
    async with opened(server.url) as page:
        await page.until("status", "NO CLOCK")
        texts = [await page.text(name) for name in ("bound", "reference", "since", "reason", "utc")]
        title = await page.evaluate("document.title")
        await page.until("nodes", "trainer-00001")
        first = (await rows(page, "nodes"))[0]
    await server.close()

    assert texts == ["", "", "", NO_SOURCE, ""]
    assert title == "– NO CLOCK trainer-00000 timesyncd"
    assert first.startswith("trainer-00000|– NO CLOCK|none|")


async def test_the_fleet_has_a_summary(page: Page) -> None:
    """Its alignment, the widest pair, the forecast; missing nodes; nodes by status and by grandmaster."""
    await page.until("fleet-grandmasters", "gm-a")
    shown = {name: await page.text(f"fleet-{name}") for name in ("alignment", "pair", "forecast", "count", "missing")}
    worst = await rows(page, "fleet-worst")

    assert 42.6 <= float(shown["alignment"].removesuffix(" µs")) < 100
    assert shown["pair"].endswith("the widest pair is trainer-00007 and trainer-00011")
    assert shown["forecast"].startswith("without new states: exceeds 100 µs in ")
    assert (shown["count"], shown["missing"]) == (
        "11 nodes reporting of 13 expected", "▲ 2 missing: trainer-99998, trainer-99999",
    )  # fmt: skip
    assert (await page.text("fleet-statuses")).split("\n") == [
        "● 10 SYNCHRONIZED", "◐ 1 HOLDOVER", "✕ 1 DISRUPTED", "? 0 UNKNOWN",
    ]  # fmt: skip
    assert await rows(page, "fleet-grandmasters") == ["gm-a|8", "001122.fffe.334466|4"]
    assert "trainer-00003|✕ DISRUPTED|none|no fresh sample: port LISTENING" in worst[:2]
    assert page.complaints == []


async def test_an_unknown_alignment_shows_its_reason(page: Page, view: FleetView) -> None:
    """A silent node makes the alignment unknown: the reason appears in place of the number."""
    view.unaligned = "trainer-00003 has no bound"
    await page.until("fleet-alignment", "unknown")
    await page.until("fleet-reason", "trainer-00003 has no bound")

    assert [await page.text(f"fleet-{name}") for name in ("pair", "forecast")] == ["", ""]


async def test_the_fleet_is_a_picture(page: Page) -> None:
    """
    A block a rack whose title gives in words what its cells show; the cells are drawn in the colours of the statuses.
    """
    await page.becomes("document.querySelectorAll('#fleet-map canvas').length", 1)
    title = await page.evaluate("document.querySelector('#fleet-map canvas').getAttribute('aria-label')")
    at = """(x, y) => [...document.querySelector('#fleet-map canvas').getContext('2d').getImageData(x, y, 1, 1).data].join(' ')"""
    fine, holdover = [await page.evaluate(f"({at})({x}, {y})") for x, y in ((9, 9), (47, 34))]

    assert title == "hall-1/rack-01: 10 SYNCHRONIZED, 1 HOLDOVER, 1 DISRUPTED; widest ±1.11 µs"
    assert (fine, holdover) == ("23 131 74 255", "143 82 0 255")


async def test_a_status_is_a_filter_of_the_list(page: Page) -> None:
    """A click on a count shows those nodes alone, the address has the filter, and another click shows all again."""
    click = "document.querySelector('#fleet-statuses li:nth-child(3) a').click()"
    await page.until("nodes", "trainer-00011")
    await page.evaluate(click)
    await page.becomes("document.querySelectorAll('#nodes tr').length", 1)
    shown, place = await rows(page, "nodes"), await page.evaluate("location.hash")
    await page.becomes(
        "document.querySelector('#fleet-statuses li:nth-child(3) a').getAttribute('aria-current')", "true"
    )
    await page.evaluate(click)
    await page.becomes("document.querySelectorAll('#nodes tr').length", 12)

    assert shown[0].startswith("trainer-00003|✕ DISRUPTED|none|")
    assert place == "#status=DISRUPTED"


async def test_a_node_has_a_page(page: Page, view: FleetView) -> None:
    """The selected node is shown with its current status, sources and terms, and closed again."""
    await page.evaluate("location.hash = '#node=trainer-00001'")
    await page.until("one-status", "SYNCHRONIZED")
    shown = {
        name: await page.text(name)
        for name in ("drawer-name", "drawer-place", "one-reference", "one-sources", "one-terms")
    }
    await page.evaluate("document.getElementById('drawer-close').click()")
    await page.becomes("document.getElementById('drawer').open", False)

    assert (shown["drawer-name"], shown["drawer-place"]) == ("trainer-00001", "hall-1/rack-01")
    assert shown["one-reference"] == "to grandmaster gm-a (001122.fffe.334455)"
    assert "falseticker" in shown["one-sources"] and "path delay" in shown["one-terms"]
    assert page.complaints == []


async def test_an_unknown_node_shows_no_numbers(page: Page) -> None:
    """An address of a node that is gone shows no other node's numbers."""
    await page.evaluate("location.hash = '#node=no-such-node'")
    await page.until("drawer-note", "This daemon knows no node of this name.")

    assert await page.evaluate("document.getElementById('drawer-parts').hidden") is True


async def test_ten_thousand_nodes_stay_usable() -> None:
    """A page of the list at a time, searched by the daemon; a picture of all; the document stays small."""
    server = await serve(config.WebSettings(port=0), FleetView(count=10_000))
    try:
        async with opened(server.url) as page:
            await page.until("nodes-page", "page 1, trainer-00000 to trainer-00049")
            await page.evaluate("document.getElementById('nodes-next').click()")
            await page.until("nodes-page", "page 2, trainer-00050 to trainer-00099")
            await page.evaluate("document.getElementById('nodes-previous').click()")
            await page.until("nodes-page", "page 1, trainer-00000 to trainer-00049")
            await page.becomes("document.querySelectorAll('#fleet-map canvas').length", 250)
            size = await page.evaluate("document.querySelectorAll('*').length")
            findings = await rows(page, "findings")
            await page.evaluate(
                "{ const field = document.getElementById('nodes-search'); field.value = '0997<'; field.dispatchEvent(new Event('input')) }"
            )
            await page.until("nodes-page", "page 1, trainer-00997 to trainer-09979")

            assert size < 3_000
            assert "clock-holdover · 115 findings: trainer-00003" in findings[1] and "and 103 more" in findings[1]
            assert page.complaints == []
    finally:
        await server.close()


async def test_a_node_alone_has_no_empty_box() -> None:
    """Without hub, fleet and store nothing of them is shown, and nothing is asked for that is not there."""
    view = FakeView()
    view.states = view.states[:1]
    view.hubs = list  # type: ignore[method-assign]
    server = await serve(config.WebSettings(port=0), view)
    hidden = "['fleet-section', 'hubs-section', 'nodes-section', 'history', 'events-section'].map((id) => document.getElementById(id).hidden)"
    try:
        async with opened(server.url) as page:
            await page.until("status", "SYNCHRONIZED")
            await page.until("jobs", "llama-pretrain")
            await asyncio.sleep(2)

            assert await page.evaluate(hidden) == [True] * 5
            assert page.complaints == []
    finally:
        await server.close()


def stored(folder: Path, node: str) -> StoreLocation:
    """A history of half an hour in roll-ups, with a hole, and forty events."""
    path = folder / "history.sqlite"
    store = Store(config.StoreSettings(path=path), SystemClocks(), lambda problem: None)
    store.start()
    store.stop()
    now_ns = time.time_ns() // MINUTE_NS * MINUTE_NS
    minutes = [n for n in range(1, 31) if not 10 <= n < 20]
    rollups = [
        (node, "ptp", quantity, 60, now_ns - n * MINUTE_NS, 60, low, high, 0, middle, high - 1)
        for n in minutes
        for quantity, low, high, middle in (("offset_ns", -50 - n, 70 + n, 5), ("gm_bound_ns", 800, 900 + n, 850))
    ]
    events = [
        (node, 1, n, now_ns - n * NS_PER_S, f"1-{n}", "timesyncd.finding.began", "gm-a", f"2026-03-01T12:00:{n:02}Z",
         json.dumps({"id": "grandmaster-lost", "evidence": f"no answer, number {n}"}))
        for n in range(1, 41)
    ]  # fmt: skip
    with sqlite3.connect(path) as database:
        database.executemany(f"INSERT INTO rollup VALUES ({','.join('?' * 11)})", rollups)
        database.executemany(f"INSERT INTO event VALUES ({','.join('?' * 9)})", events)
    database.close()
    return StoreLocation(path)


async def test_the_history_is_drawn(view: FleetView, tmp_path: Path) -> None:
    """
    Of the own node each quantity that the store has is a chart with a hole where nothing was stored; a span without
    data is reported.
    """
    server = await serve(config.WebSettings(port=0), view, stored(tmp_path, "trainer-00000"))
    charts = "[...document.querySelectorAll('#history figure')].map((chart) => chart.innerText.replaceAll('\\n', ' '))"
    holes = "document.querySelector('#history .line').getAttribute('d').split('M').length - 2"
    try:
        async with opened(server.url) as page:
            await page.until("history", "ptp offset")
            shown, gaps = await page.evaluate(charts), await page.evaluate(holes)
            await page.evaluate("document.querySelector('#history .spans button:nth-child(3)').click()")
            await page.becomes(
                "document.querySelector('#history .spans button:nth-child(3)').getAttribute('aria-pressed')", "true"
            )
            await page.until("history", "ptp offset")

            assert shown == [
                "ptp offset −80 ns to +100 ns, latest median +5 ns",
                "ptp bound to the grandmaster ±800 ns to ±930 ns, latest median ±850 ns",
            ]
            assert gaps == 1
            assert page.complaints == []
    finally:
        await server.close()


async def test_the_events_are_a_list_with_pages(view: FleetView, tmp_path: Path) -> None:
    """The newest events first, the older ones page by page."""
    server = await serve(config.WebSettings(port=0), view, stored(tmp_path, "trainer-00000"))
    try:
        async with opened(server.url) as page:
            await page.until("events", "no answer, number 1")
            first = await rows(page, "events")
            await page.evaluate("document.getElementById('events-older').click()")
            await page.until("events", "no answer, number 40")
            second = await rows(page, "events")

            assert [len(first), len(second)] == [25, 15]
            assert first[0].endswith("|finding began|gm-a (trainer-00000)|grandmaster-lost: no answer, number 1")
            assert await page.evaluate("document.getElementById('events-older').disabled") is True
    finally:
        await server.close()


async def test_a_401_opens_the_log_in_page(view: FleetView, tmp_path: Path) -> None:
    """When the daemon begins to require a token, the page opens the log-in."""
    secret = tmp_path / "token"
    secret.write_text("a long enough secret of this test alone")
    server = await serve(config.WebSettings(port=0), view)
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    async with opened(server.url) as page:
        await page.until("status", "SYNCHRONIZED")
        await server.close()
        token = config.TokenSettings(name="reader", secret=config.SecretSettings(file=secret))
        guarded = await serve(config.WebSettings(host="0.0.0.0", port=port, token=[token]), view)
        try:
            await page.becomes("location.pathname", "/login")
            await page.becomes("document.getElementById('token') !== null", True)
        finally:
            await guarded.close()
