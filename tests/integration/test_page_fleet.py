"""The status page of a hub, in a real browser: the hubs, the fleet's summary and picture, a node and its history."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import fake_view
import pytest
from chromium import Page, opened
from fake_view import FakeView
from fleet_view import FleetView
from page_pixels import colour

from timesyncd import config
from timesyncd.clocks import NS_PER_S, SystemClocks
from timesyncd.daemon.node_state import NO_SOURCE
from timesyncd.fleet.headline import FleetReading
from timesyncd.messages.node import BoundMessage, NodeState
from timesyncd.messages.overview import ConfiguredLimits
from timesyncd.messages.simulation import SimulationFile, StatedOffset
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
        await page.becomes("/µs|ms/.test(document.getElementById('fleet-alignment').innerText)", True)
        await page.until("nodes", "trainer-00001")
        yield page
    await server.close()


@pytest.fixture
async def http(view: FleetView) -> AsyncIterator[aiohttp.ClientSession]:
    """The API of a second server on the same states."""
    server = await serve(config.WebSettings(port=0), view)
    async with aiohttp.ClientSession(server.url) as session:
        yield session
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


async def go(page: Page, path: str) -> None:
    """Another view of the same page, as a link within it opens it."""
    await page.evaluate(f"history.pushState(null, '', '/{path}'); dispatchEvent(new PopStateEvent('popstate'))")


def without_source(state: NodeState) -> NodeState:
    none: dict[str, Any] = dict.fromkeys(("age_ns", "gm", "utc", "parent"))
    alone = none | {"sources": [], "status": "UNKNOWN", "reason": NO_SOURCE, "terms": {}, "rates": {}}
    return state.model_copy(update=alone)


async def test_a_hub_of_one_node_shows_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub has no clock, so the fleet counts that node alone; at the root is the fleet, not the hub itself."""
    view = FleetView(count=2)
    view.states[0] = without_source(view.states[0])
    summary = view.fleet().model_copy(update={"nodes": 1})
    monkeypatch.setattr(view, "fleet", lambda: summary)
    server = await serve(config.WebSettings(port=0), view)
    async with opened(server.url) as page:
        await page.until("nodes", "trainer-00001")
        await page.becomes("document.querySelectorAll('#fleet-map canvas').length > 0", True)
        shown = ["view-fleet", "headline", "chain-section", "racks-section", "alignment-section", "nodes-section"]
        hidden = await page.evaluate(f"{shown}.filter((id) => document.getElementById(id).hidden)")
        title = await page.evaluate("document.title")
    await server.close()

    assert hidden == []
    assert "NO CLOCK" not in title


async def test_a_hub_without_a_source_has_no_clock(view: FleetView) -> None:
    """A daemon without a clock source is not shown as unsynchronized: it has no status and no bound."""
    view.states[0] = without_source(view.states[0])
    server = await serve(config.WebSettings(port=0), view)
    async with opened(server.url + "node/trainer-00000") as page:
        await page.until("status", "NO CLOCK")
        texts = [await page.text(name) for name in ("bound", "reference", "since", "reason", "utc")]
        title = await page.evaluate("document.title")
        await go(page, "fleet")
        await page.until("nodes", "trainer-00001")
        first = (await rows(page, "nodes"))[0]
    await server.close()

    assert texts == ["", "", "", NO_SOURCE, ""]
    assert title == "– NO CLOCK trainer-00000 timesyncd"
    assert first.startswith("trainer-00000|– NO CLOCK|none|")


async def test_a_simulation_is_labelled_with_its_truth(
    page: Page, view: FleetView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every view: the story's line, each true offset beside its bound, and what is simulated; a real fleet has none of it."""
    assert await page.evaluate("document.getElementById('simulation').hidden")
    offsets = {name: StatedOffset(realtime_ns=1, offset_ns=ns) for name, ns in (("a", 0), ("b", -300_000))}
    file = SimulationFile(simulated="simulated: ptp4l", story="in 5 s: <b>rain</b>", offsets=offsets)
    state = file.state({"a": 16_700, "b": 200_000}, 1)
    simulated = view.overview().model_copy(update={"simulation": state})
    monkeypatch.setattr(view, "overview", lambda: simulated)

    await page.until("simulation-story", "Story: in 5 s: <b>rain</b>")
    at, _, truths = (await page.text("simulation-truths")).partition(" UTC: ")
    assert at.startswith("True offsets at ")
    assert truths == "a 0 ns ✓ inside ±16.7 µs · b −300 µs ⚠ OUTSIDE ±200 µs"
    assert await page.text("simulation-what") == "simulated: ptp4l"
    await go(page, "timeline")
    await page.becomes("document.getElementById('view-timeline').hidden", False)
    assert await page.evaluate("document.getElementById('simulation').getBoundingClientRect().height > 0")


async def test_the_fleet_has_a_summary(page: Page, http: aiohttp.ClientSession) -> None:
    """Its alignment, the widest pair, the forecast; missing nodes; nodes by status and by grandmaster."""
    await page.until("fleet-grandmasters", "gm-a")
    shown = {name: await page.text(f"fleet-{name}") for name in ("alignment", "pair", "forecast", "count", "missing")}
    worst = await rows(page, "fleet-worst")

    compared = (await (await http.get("/api/v1/fleet/overview")).json())["headline"]
    number, unit = shown["alignment"].split(" ")
    assert float(number) * {"µs": 1e3, "ms": 1e6}[unit] >= compared["alignment_ns"] * 0.99
    assert shown["pair"].startswith(f"{compared['compared']} of {compared['nodes']} clocks; the widest pair is ")
    assert "expires in " in shown["forecast"]
    assert (shown["count"], shown["missing"]) == (
        "11 nodes reporting of 13 expected", "▲ 2 missing: trainer-99998, trainer-99999",
    )  # fmt: skip
    assert (await page.text("fleet-statuses")).split("\n") == [
        "● 10 SYNCHRONIZED", "◐ 1 HOLDOVER", "✕ 1 DISRUPTED", "? 0 UNKNOWN",
    ]  # fmt: skip
    assert await rows(page, "fleet-grandmasters") == ["gm-a|8", "001122.fffe.334466|4"]
    assert "trainer-00003|✕ DISRUPTED|none|no fresh sample: port LISTENING" in worst[:2]
    assert page.complaints == []


async def test_the_worst_nodes_and_the_hub_s_counts_are_of_the_headline_s_answer(
    page: Page, view: FleetView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the event stream brings of another moment contradicts no number beside it."""
    seen = view.overview()
    worst = [each.model_copy(update={"node": "trainer-00011"}) for each in seen.worst[:1]]
    hubs = [hub.model_copy(update={"nodes_live": 3}) for hub in seen.hubs]
    monkeypatch.setattr(view, "overview", lambda: seen.model_copy(update={"worst": worst, "hubs": hubs}))
    await page.until("fleet-count", "3 nodes reporting")

    assert [row.partition("|")[0] for row in await rows(page, "fleet-worst")] == ["trainer-00011"]
    assert await page.evaluate("Number(document.getElementById('main').dataset.asOf)") == pytest.approx(
        seen.as_of_realtime_ns, abs=1_000
    )


async def test_an_unknown_alignment_shows_its_reason(page: Page, view: FleetView) -> None:
    """Without a bound nothing is compared: the reason appears in place of the number."""
    none = BoundMessage(bound_ns=None, growth_ppb=0, reason="no fresh sample", reason_code="stale")
    view.states = [state.model_copy(update={"status": "UNKNOWN", "gm": none}) for state in view.states]
    await page.until("fleet-alignment", "unknown")
    await page.until("fleet-reason", "no clock has a bound")

    assert [await page.text(f"fleet-{name}") for name in ("pair", "forecast")] == ["", ""]


async def test_the_headline_counts_the_clocks_without_a_bound(page: Page, http: aiohttp.ClientSession) -> None:
    """One sentence for the whole fleet, the API's own: those that agree, and how many report no bound, with the actions."""
    shown = await page.until("headline-text", "clocks agree within")
    overview = await (await http.get("/api/v1/fleet/overview")).json()
    actions = await page.evaluate(
        "[...document.querySelectorAll('#headline-actions > *')].map((each) => each.textContent)"
    )

    assert shown == overview["headline"]["text"].replace(" us", " µs")
    assert "report no bound" in shown or "reports no bound" in shown
    texts = [action["text"] for action in overview["headline"]["actions"]]
    assert texts[0] == "drain one node without a bound"
    assert actions[:-1] == ["Copy the names to drain: 1 node", *texts[1:]]
    assert actions[-1] == "Copy link"


async def test_a_job_above_its_limit_is_urgent(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs attention begins with it, and so does the job's own sentence; its table says so too."""
    monkeypatch.setattr(
        fake_view, "FleetReading", partial(FleetReading, limits=ConfiguredLimits(job_alignment_ns=3_000))
    )
    await page.until("attention", "LIMIT")
    first = await page.evaluate("document.querySelector('#attention li').innerText")
    await page.evaluate("document.querySelector('#attention li a').click()")
    text = await page.until("job-text", "above the limit of 3.00 µs")

    assert re.match(r"LIMIT\s+the clocks of llama-pretrain agree within \S+ µs, the limit is 3.00 µs", first)
    assert text.startswith("llama-pretrain: the clocks agree within ")
    assert await page.evaluate("document.getElementById('job-headline').dataset.verdict") == "exceeded"
    assert "above the limit of 3.00 µs, expires in " in await page.text("jobs")


async def test_the_chain_leads_from_gnss_to_the_jobs(page: Page) -> None:
    """A stop for each source, grandmaster, parent and rack; a click on a rack filters the list and is in the address."""
    await page.becomes("document.querySelectorAll('#chain .stop').length > 4", True)
    names = await page.evaluate("[...document.querySelectorAll('#chain text')].map((each) => each.textContent)")
    await page.evaluate(
        "document.querySelector('#chain a[aria-label^=rack]').dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true }))"
    )
    await page.becomes("new URLSearchParams(location.search).get('topology')", "hall-1/rack-01")
    filters = await page.until("nodes-all", "hall-1/rack-01")

    assert {"GNSS", "grandmaster", "rack", "job", "✕ GNSS of gm-a", "✕ gm-a", "gm-b", "hall-1/rack-01"} <= set(names)
    assert filters == "✕ topology hall-1/rack-01"


async def test_racks_over_time_show_no_bound_loudest(page: Page) -> None:
    """A rack with a node without a bound is drawn in the colour of no bound, and the pointer's cell is stated in words."""
    await go(page, "fleet?from=2023-11-14T22:18:10Z&to=2023-11-14T22:18:40Z")
    await page.becomes("document.querySelector('#racks canvas').width > 0", True)
    await page.until("racks-note", "readings since")
    shown = """(() => {
      const canvas = document.querySelector('#racks canvas');
      const [x, y] = [Math.round(canvas.width * 0.6), Math.round(canvas.height * 0.4)];
      return [...canvas.getContext('2d').getImageData(x, y, 1, 1).data.slice(0, 3)].map((part) => part.toString(16).padStart(2, '0')).join('');
    })()"""
    await page.becomes(shown, await page.evaluate(colour("no-bound")))
    hover = """(() => {
      const canvas = document.querySelector('#racks canvas');
      const box = canvas.getBoundingClientRect();
      canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: box.x + box.width * 0.6, clientY: box.y + box.height * 0.4 }));
    })()"""
    await page.evaluate(hover)

    assert (await page.evaluate("document.querySelector('#racks .cell-text').textContent")).endswith(": no bound")


#: JavaScript: how many pixels of the racks' heat map have the colour of no bound, and the legend's values of the chart of bounds.
NO_BOUND_PIXELS = f"""(() => {{
  const canvas = document.querySelector('#racks canvas');
  const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const hex = (at) => [...data.slice(at, at + 3)].map((part) => part.toString(16).padStart(2, '0')).join('');
  return Array.from(data).filter((_, at) => at % 4 === 0 && hex(at) === {colour("no-bound")}).length;
}})()"""
LEGEND = "[...document.querySelectorAll('#alignment-chart .u-value')].slice(1).map((value) => value.textContent)"


async def test_a_past_range_without_readings_is_empty(page: Page) -> None:
    """Neither the cells nor the legend of what was shown before stay, and the captions say so."""
    await go(page, "fleet?from=2023-11-14T22:18:10Z&to=2023-11-14T22:18:40Z")
    await page.becomes(f"{NO_BOUND_PIXELS} > 0", True)
    await page.becomes(f"{LEGEND}.includes('—')", False)
    await go(page, "fleet?from=2023-11-14T10:00:00Z&to=2023-11-14T11:00:00Z")
    for note in ("racks-note", "alignment-note"):
        await page.until(note, "no reading in this time range")

    await page.becomes(NO_BOUND_PIXELS, 0)
    await page.becomes(LEGEND, ["—"] * 4)


async def test_the_fleet_is_a_picture(page: Page) -> None:
    """
    A block a rack whose title gives in words what its cells show; the cells are drawn in the colours of the statuses.
    """
    await page.becomes("document.querySelectorAll('#fleet-map canvas').length", 1)
    title = await page.evaluate("document.querySelector('#fleet-map canvas').getAttribute('aria-label')")
    at = """(x, y) => [...document.querySelector('#fleet-map canvas').getContext('2d').getImageData(x, y, 1, 1).data].join(' ')"""
    fine, holdover = [await page.evaluate(f"({at})({x}, {y})") for x, y in ((9, 9), (47, 34))]

    assert title == "hall-1/rack-01: 10 SYNCHRONIZED, 1 HOLDOVER, 1 DISRUPTED; widest ±1.11 µs"
    assert (fine, holdover) == ("15 143 108 255", "154 91 0 255")


async def test_a_status_is_a_filter_of_the_list(page: Page) -> None:
    """A click on a count shows those nodes alone, the address has the filter, and another click shows all again."""
    click = "document.querySelector('#fleet-statuses li:nth-child(3) a').click()"
    await page.until("nodes", "trainer-00011")
    await page.evaluate(click)
    await page.becomes("document.querySelectorAll('#nodes tr').length", 1)
    shown, place = await rows(page, "nodes"), await page.evaluate("location.search")
    await page.becomes(
        "document.querySelector('#fleet-statuses li:nth-child(3) a').getAttribute('aria-current')", "true"
    )
    await page.evaluate(click)
    await page.becomes("document.querySelectorAll('#nodes tr').length", 12)

    assert shown[0].startswith("trainer-00003|✕ DISRUPTED|none|")
    assert place == "?status=DISRUPTED"


async def test_a_node_has_a_page(page: Page, view: FleetView) -> None:
    """The selected node is shown with its current status, sources and terms, and the way back shows the fleet again."""
    await page.evaluate("document.querySelector('#nodes a[href$=\"trainer-00001\"]').click()")
    await page.until("hero-node", "trainer-00001")
    shown = {name: await page.text(name) for name in ("hero-node", "status", "reference", "sources", "terms")}
    address = await page.evaluate("location.pathname")
    await page.evaluate("history.back()")
    await page.becomes("document.getElementById('view-fleet').hidden", False)

    assert (shown["hero-node"], address) == ("trainer-00001 · hall-1/rack-01", "/node/trainer-00001")
    assert shown["status"] == "● SYNCHRONIZED"
    assert shown["reference"] == "to grandmaster gm-a (001122.fffe.334455)"
    assert "falseticker" in shown["sources"] and "path delay" in shown["terms"]
    assert page.complaints == []


async def test_another_view_is_read_from_its_top(page: Page) -> None:
    """A link at the end of a long list does not lead into the middle of the next view."""
    await page.evaluate("scrollTo(0, 1e6)")
    assert await page.evaluate("scrollY") > 0
    await page.evaluate("document.querySelector('nav a[data-view=grandmaster]').click()")
    await page.becomes("document.getElementById('view-grandmaster').hidden", False)

    assert await page.evaluate("scrollY") == 0


async def test_a_grandmaster_has_one_name_in_the_list(view: FleetView) -> None:
    """Also where a node publishes its clock identity alone."""
    view.states[1] = view.states[1].model_copy(update={"grandmaster": None, "grandmaster_summary": None})
    server = await serve(config.WebSettings(port=0), view)
    async with opened(server.url + "fleet") as page:
        await page.until("nodes", "trainer-00001")
        await page.until("fleet-grandmasters", "gm-a")
        shown = {line.split("|")[0]: line.split("|")[4] for line in await rows(page, "nodes")}
    await server.close()

    assert view.states[1].node in shown
    assert {shown[view.states[1].node], shown["trainer-00002"]} == {"gm-a"}


async def test_an_unknown_node_shows_no_numbers(page: Page) -> None:
    """An address of a node that is gone shows no other node's numbers."""
    await go(page, "node/no-such-node")
    await page.until("node-note", "This daemon knows no node named no-such-node.")

    assert await page.evaluate("document.getElementById('hero').hidden") is True


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
            await go(page, "timeline")
            await page.until("findings", "115 findings")
            findings = await rows(page, "findings")
            await go(page, "fleet")
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
    hidden = "['fleet-section', 'hubs-section', 'nodes-section', 'chain-section', 'history', 'events-section'].map((id) => document.getElementById(id).hidden)"
    try:
        async with opened(server.url) as page:
            await page.until("status", "SYNCHRONIZED")
            for path, element, text in (
                ("timeline", "findings", "grandmaster-alarm"),
                ("job", "jobs", "llama-pretrain"),
                ("fleet", "attention", "gm-a"),
                ("", "terms", "path delay"),
            ):
                await go(page, path)
                await page.until(element, text)

            assert await page.evaluate(hidden) == [True] * 6
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
        for quantity, low, high, middle in (
            ("offset_ns", -50 - n, 70 + n, 5),
            ("gm_bound_ns", 800, 900 + n, 850),
            ("path_delay_ns", 900, 950, 920),
        )
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
    Of a node each quantity that the store has is a chart with axes and a hole where nothing was stored; the address has
    its time range.
    """
    server = await serve(config.WebSettings(port=0), view, stored(tmp_path, "trainer-00000"))
    try:
        async with opened(server.url + "node/trainer-00000?last=1h") as page:
            await page.until("hero-node", "trainer-00000")
            await page.becomes(COLUMNS + " > 50", True)
            columns, gaps = await page.evaluate(COLUMNS), await page.evaluate(GAPS)

            assert 100 < columns
            assert gaps == 1
            assert page.complaints == []
    finally:
        await server.close()


async def test_an_unknown_node_shows_no_history(view: FleetView, tmp_path: Path) -> None:
    """That of the node that was shown before goes with it, and comes back with it."""
    server = await serve(config.WebSettings(port=0), view, stored(tmp_path, "trainer-00000"))
    try:
        async with opened(server.url + "node/trainer-00000?last=1h") as page:
            await page.until("history", "path delay")
            await go(page, "node/no-such-node?last=1h")
            await page.until("node-note", "This daemon knows no node named no-such-node.")
            assert await page.evaluate("document.getElementById('history').hidden") is True
            await go(page, "node/trainer-00000?last=1h")
            await page.becomes("document.getElementById('history').hidden", False)
    finally:
        await server.close()


#: JavaScript: of the band's canvas, which columns have the colour of the bound's line.
_INK = (
    """(() => {
  const canvas = document.querySelector('#band canvas');
  if (canvas === null || canvas.width === 0) return [];
  const hex = COLOUR;
  const wanted = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const { width, height } = canvas;
  const pen = Object.assign(document.createElement('canvas'), { width, height }).getContext('2d', { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(0, 0, width, height);
  const found = [];
  for (let x = 0; x < width; x += 1) {
    for (let y = 0; y < height; y += 1) {
      const at = 4 * (y * width + x);
      if (data[at + 3] > 60 && wanted.every((part, channel) => Math.abs(part - data[at + channel]) < 40)) { found.push(x); break; }
    }
  }
  return found;
})()"""
).replace("COLOUR", colour("series-1"))
COLUMNS = f"{_INK}.length"
GAPS = f"((xs) => xs.slice(1).filter((x, at) => x - xs[at] > 80).length)({_INK})"


async def test_the_events_are_a_list_with_pages(view: FleetView, tmp_path: Path) -> None:
    """The newest events first, the older ones page by page; of a fixed range only its own."""
    server = await serve(config.WebSettings(port=0), view, stored(tmp_path, "trainer-00000"))
    try:
        async with opened(server.url + "timeline") as page:
            await page.until("events", "no answer, number 1")
            first = await rows(page, "events")
            await page.evaluate("document.getElementById('events-older').click()")
            await page.until("events", "no answer, number 40")
            second = await rows(page, "events")

            assert [len(first), len(second)] == [25, 15]
            assert first[0].endswith("|finding began|gm-a (trainer-00000)|grandmaster-lost: no answer, number 1")
            assert await page.evaluate("document.getElementById('events-older').disabled") is True
            await go(page, "timeline?from=2001-01-01T00:00:00Z&to=2001-01-02T00:00:00Z")
            await page.until("events-note", "none in this time range")
            await page.becomes("document.querySelectorAll('#events tr').length", 0)
    finally:
        await server.close()


async def test_a_401_opens_the_log_in_page(view: FleetView, tmp_path: Path) -> None:
    """When the daemon begins to require a token, the page opens the log-in."""
    secret = tmp_path / "token"
    secret.write_text("a long enough secret of this test alone")
    server = await serve(config.WebSettings(port=0), view)
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    async with opened(server.url + "node/trainer-00000") as page:
        await page.until("status", "SYNCHRONIZED")
        await server.close()
        token = config.TokenSettings(name="reader", secret=config.SecretSettings(file=secret))
        guarded = await serve(config.WebSettings(host="0.0.0.0", port=port, token=[token]), view)
        try:
            await page.becomes("location.pathname", "/login")
            await page.becomes("document.getElementById('token') !== null", True)
        finally:
            await guarded.close()
