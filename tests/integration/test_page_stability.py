"""The section of a clock's stability in a real browser: of a node, of a pair of two daemons' nodes, and of a grandmaster's channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest
from chromium import Page, opened
from fake_view import FakeView
from filled_store import filled_store
from page_pixels import colour
from samples import HEALTHY, nth

from timesyncd.clocks import NS_PER_S
from timesyncd.config import PeerSettings, WebSettings
from timesyncd.model.observation import Observation
from timesyncd.sample import ClockState, GrandmasterSample, TimeErrorSeries
from timesyncd.store.engine import StoreLocation
from timesyncd.web.app import serve

pytestmark = pytest.mark.integration

SAMPLES = 2_100
BEGIN_NS = HEALTHY.as_of_ns + HEALTHY.real_minus_boot_ns
OWN, OTHER = "trainer-01", "trainer-02"
SPAN = {"from": BEGIN_NS - 300 * NS_PER_S, "to": BEGIN_NS + 2_400 * NS_PER_S}


def stored(path: Path, node: str, offset_ns: int, tooth: int = 11) -> StoreLocation:
    """A reading each second of a node's source and of two channels of a grandmaster."""
    return filled_store(path, node, observations(offset_ns, tooth))


def observations(offset_ns: int, tooth: int) -> Iterator[Observation]:
    for index in range(SAMPLES):
        at_ns = BEGIN_NS + index * NS_PER_S
        yield Observation(
            nth(
                index,
                offset_ns=offset_ns + (index * 37) % tooth,
                ingress_time_ns=at_ns,
                real_minus_boot_ns=at_ns - HEALTHY.as_of_ns - (nth(index).as_of_ns - HEALTHY.as_of_ns),
            ),
            None,
        )
    yield Observation(GrandmasterSample("gm-a", 0, clock_state=ClockState.LOCKED), None)
    for channel, factor in (("pps-1", 7), ("ptp-2", 90)):
        points = tuple((BEGIN_NS + index * NS_PER_S, factor * (index % 3)) for index in range(SAMPLES))
        yield Observation(TimeErrorSeries("gm-a", channel, "te", points), None)


def view_of(node: str) -> FakeView:
    recorded = FakeView().states
    return FakeView(states=[recorded[0].model_copy(update={"node": node})])


@dataclass
class Pages:
    url: str
    http: aiohttp.ClientSession

    async def answer(self, **query: str) -> Any:
        """What the daemon computes of the span that the page asks for."""
        span = {"since": SPAN["from"], "until": SPAN["to"]}
        async with self.http.get(f"/api/v1/stability?{urlencode(query | span)}") as response:
            assert response.status == 200, await response.text()
            return await response.json()

    def address(self, path: str, **query: str) -> str:
        return f"{self.url}{path}?{urlencode({name: iso(ns) for name, ns in SPAN.items()} | query)}"


def iso(ns: int) -> str:
    return datetime.fromtimestamp(ns // 10**6 / 1e3, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[Pages]:
    async with AsyncExitStack() as stack:
        other = await serve(WebSettings(port=0), view_of(OTHER), stored(tmp_path / "other.sqlite", OTHER, -60, tooth=7))
        stack.push_async_callback(other.close)
        settings = WebSettings(port=0, peer=[PeerSettings(name=OTHER, url=other.url)])
        own = await serve(settings, view_of(OWN), stored(tmp_path / "own.sqlite", OWN, 40))
        stack.push_async_callback(own.close)
        yield Pages(own.url, await stack.enter_async_context(aiohttp.ClientSession(own.url)))


def ns_text(ns: float) -> str:
    """As the page writes a measured value below 1 us."""
    assert abs(ns) < 1_000
    return f"{ns:.3g} ns".replace("-", "−")


def field(section: str, name: str) -> str:
    return f"(document.querySelector('#{section} [data-field=\"{name}\"]')?.innerText ?? '')"


def cells(section: str, name: str) -> str:
    """JavaScript: the cells' texts of a table's body, row by row."""
    return f"[...document.querySelectorAll('#{section} [data-field=\"{name}\"] tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"


#: JavaScript: how many pixels of the chart have the colour of this line.
INK = """(() => {
  const canvas = document.querySelector('#SECTION [data-field="chart"] canvas');
  if (canvas === null || canvas.width === 0) return 0;
  const hex = HEX;
  const wanted = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const { width, height } = canvas;
  const pen = Object.assign(document.createElement('canvas'), { width, height }).getContext('2d', { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const { data } = pen.getImageData(0, 0, width, height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 60 && wanted.every((part, channel) => Math.abs(part - data[at + channel]) < 40)) found += 1;
  return found;
})()"""


async def shows_report(page: Page, section: str, report: Any) -> None:
    """Every observation interval and every number of this report, and both curves."""
    await page.evaluate(f"document.querySelector('#{section} details').open = true")
    await page.becomes(f"{cells(section, 'deviations')}.length", len(report["deviations"]))
    await page.becomes(f"{cells(section, 'numbers')}[0]?.[1] ?? ''", ns_text(report["max_abs_te_ns"]))
    for row, expected in zip(await page.evaluate(cells(section, "deviations")), report["deviations"], strict=True):
        texts = [
            "—" if expected[name] is None else ns_text(expected[name])
            for name in ("tdev_ns", "mtie_ns", "tdev_low_ns", "mtie_low_ns")
        ]
        assert [row[0], *row[2:]] == [f"{expected['tau_ns'] / 1e9:.4g} s", *texts]
        assert float(row[1].replace("−", "-") if row[1] != "—" else "nan") == pytest.approx(
            float("nan") if expected["adev"] is None else expected["adev"], rel=0.01, nan_ok=True
        )
    numbers = await page.evaluate(cells(section, "numbers"))
    assert numbers[1][1].lstrip("+") == ns_text(report["constant_te_ns"])
    for line in ("series-1", "series-2"):
        assert await page.evaluate(INK.replace("SECTION", section).replace("HEX", colour(line))) > 100


async def verdict_rows(page: Page, section: str, report: Any, mask: str) -> None:
    """The verdict of the mask, and each of its limits with value, limit and outcome, are the API's."""
    verdict = next(each for each in report["verdicts"] if each["mask"] == mask)
    outcome = await page.evaluate(field(section, "outcome"))
    rows = await page.evaluate(cells(section, "limits"))

    assert outcome.endswith(f" {verdict['outcome']}")
    for row, limit in zip(rows, verdict["limits"], strict=False):
        assert row[0] == limit["quantity"]
        assert row[1].startswith("unknown" if limit["value_ns"] is None else ns_text(limit["value_ns"]))
        assert row[3].endswith(f" {limit['outcome']}")
        assert (limit["reason"] or "") in row[4]
        assert limit["source"] in row[4]


async def test_a_node_s_stability_is_the_api_s(pages: Pages) -> None:
    """Numbers, curves and verdicts of its source; another mask is another address, which can be loaded again."""
    report = (await pages.answer(source="ptp"))["series"][0]["report"]
    async with opened(pages.address(f"node/{OWN}")) as page:
        await shows_report(page, "node-stability", report)
        await verdict_rows(page, "node-stability", report, "G.8273.2 class A")
        await page.evaluate(
            """(() => { const mask = document.querySelector('#node-stability [data-field="mask"]');
            mask.value = 'G.8272 PRTC-B'; mask.dispatchEvent(new Event('change')); })()"""
        )
        assert "mask=G.8272+PRTC-B" in await page.evaluate("location.search")
        await verdict_rows(page, "node-stability", report, "G.8272 PRTC-B")
        await page.command("Page.reload")
        await page.becomes(
            """document.querySelector('#node-stability [data-field="mask"]')?.value ?? ''""", "G.8272 PRTC-B"
        )
        assert page.complaints == []


async def test_a_pair_of_nodes_is_named_in_the_address(pages: Pages) -> None:
    """This node minus the one of another daemon, with their reference; a node that no peer names is unknown, with the reason."""
    answer = await pages.answer(source="ptp", against=OTHER)
    [series] = answer["series"]
    # class D limits no curve: what is drawn is what was measured
    async with opened(pages.address(f"node/{OWN}", against=OTHER, mask="G.8273.2 class D")) as page:
        await shows_report(page, "node-stability", series["report"])
        assert await page.evaluate(field("node-stability", "title")) == f"Stability of {OWN} minus {OTHER}"
        assert series["references"][0] in await page.evaluate(field("node-stability", "basis"))
        address = pages.address(f"node/{OWN}", against="trainer-09")
        await page.evaluate(f"history.pushState(null, '', {address!r}), dispatchEvent(new PopStateEvent('popstate'))")
        await page.becomes(
            f"{field('node-stability', 'problem')}.includes(\"no [[web.peer]] is named 'trainer-09'\")", True
        )
        assert page.complaints == []


async def test_a_grandmaster_s_channel_is_compared_with_the_mask(pages: Pages) -> None:
    """The channel is chosen in the address; one that exceeds PRTC-A fails, by a sign and a word."""
    answer = await pages.answer(source="gm-a")
    reports = {each["channel"]: each["report"] for each in answer["series"]}
    async with opened(pages.address("grandmaster/gm-a", channel="ptp-2")) as page:
        await shows_report(page, "gm-stability", reports["ptp-2"])
        await verdict_rows(page, "gm-stability", reports["ptp-2"], "G.8272 PRTC-A")
        assert await page.evaluate(field("gm-stability", "outcome")) == "▲ fail"
        assert page.complaints == []
