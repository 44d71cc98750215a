"""Each view's numbers are the API's at one moment: a real daemon with a fleet, whose page states as of when its numbers are."""

from __future__ import annotations

import asyncio
import json
import math
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from chromium import Page, opened
from page_fleet import HUB, JOBS, page_fleet

from timesyncd.ipc.job_datagram import job_id

pytestmark = pytest.mark.integration

JOB_ID = job_id(1_000, JOBS[0].name, 0)
State = dict[str, Any]
#: As few as both jobs need: a loaded machine has to publish them all.
RACKS = 4
#: JavaScript: as of when the painted numbers are, and the texts of these elements, read together.
READ = "(() => ({{ asOf: document.getElementById('main').dataset.asOf, texts: Object.fromEntries({names}.map((name) => [name, document.getElementById(name)?.innerText ?? ''])) }}))()"


def duration(ns: float, round_: Callable[[float], float] = round) -> str:
    """Three significant digits with their unit, as the page writes a duration."""
    unit, name = next(
        ((limit, name) for limit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")) if ns >= limit), (1.0, "ns")
    )
    size = ns / unit
    digits = 0 if unit == 1 or size >= 100 else 1 if size >= 10 else 2
    return f"{round_(size * 10**digits - (1e-9 if round_ is math.ceil else 0)) / 10**digits:.{digits}f} {name}"


class Recorder:
    """Every state that the daemon publishes, by when it did so; and each overview by as of when it is."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.states: dict[tuple[str, int], State] = {}
        self._session = session

    async def follow(self) -> None:
        kind = ""
        async with self._session.get("/events", timeout=aiohttp.ClientTimeout(total=None)) as response:
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind in ("node", "grandmaster", "job"):
                    state = json.loads(value)
                    if {"node": HUB, "grandmaster": "gm-1", "job": JOB_ID}[kind] != state[
                        {"node": "node", "grandmaster": "name", "job": "job_id"}[kind]
                    ]:
                        continue
                    self.states[kind, state["published_realtime_ns"]] = state

    async def look(self) -> None:
        """The overview that every caller within a second gets."""
        while True:
            async with self._session.get("/api/v1/fleet/overview") as response:
                overview = await response.json()
            self.states["fleet", overview["as_of_realtime_ns"]] = overview
            await asyncio.sleep(0.2)


@pytest.fixture
async def fleet() -> AsyncIterator[tuple[str, Recorder]]:
    """The page's address and what the daemon publishes; the daemon knows every node and the job."""
    with tempfile.TemporaryDirectory(prefix="ts-") as folder:
        async with page_fleet(Path(folder), racks=RACKS) as running, aiohttp.ClientSession(running.hub.page) as session:
            await knows(
                session,
                "fleet/overview",
                lambda found: found["headline"]["nodes"] >= running.load.nodes and found["headline"]["compared"] > 1,
            )
            running.load.has_jobs = True
            running.cut_antenna()
            await knows(session, f"jobs/{JOB_ID}", lambda found: found["sync_overhead"] is not None)
            recorder = Recorder(session)
            async with following(recorder):
                yield running.hub.page, recorder


@asynccontextmanager
async def following(recorder: Recorder) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(recorder.follow()), asyncio.create_task(recorder.look())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def knows(session: aiohttp.ClientSession, path: str, holds: Callable[[Any], bool]) -> None:
    async with asyncio.timeout(240):
        while True:
            try:
                async with session.get(f"/api/v1/{path}") as response:
                    if response.status == 200 and holds(await response.json()):
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.3)


async def same_moment(page: Page, recorder: Recorder, kind: str, expected: Callable[[State], dict[str, str]]) -> None:
    """
    Waits for a paint whose moment was recorded, and in which each of these elements has the API's number. A state that does
    not know all of them expects none, and is not compared.
    """
    seen: Any = None
    try:
        async with asyncio.timeout(60):
            while True:
                state = None
                names = {name for (its, _), value in recorder.states.items() if its == kind for name in expected(value)}
                seen = await page.evaluate(READ.format(names=json.dumps(sorted(names))))
                # a JavaScript number has 53 bits: the page's moment is the recorded one within a microsecond
                state = next(
                    (
                        value
                        for (its, at), value in recorder.states.items()
                        if its == kind and abs(at - int(seen["asOf"])) < 1_000
                    ),
                    None,
                )
                texts = {} if state is None else expected(state)
                if texts and all(text in seen["texts"][name] for name, text in texts.items()):
                    return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(
            f"{kind}: the page shows {seen}, the daemon published {state and expected(state)}"
        ) from None


def fleet_texts(overview: State) -> dict[str, str]:
    headline, statuses = overview["headline"], overview["statuses"]
    return {
        "headline-text": re.sub(r"(\d) us\b", r"\1 µs", headline["text"]),
        "fleet-pair": f"{headline['compared']} of {headline['nodes']} clocks",
        "fleet-statuses": f"● {statuses.get('SYNCHRONIZED', 0)} SYNCHRONIZED",
    }


def node_texts(node: State) -> dict[str, str]:
    if node["gm"] is None or node["gm"]["bound_ns"] is None or not node["sources"]:
        return {}
    (source,) = node["sources"]
    terms = {name: ns for name, ns in node["terms"].items() if ns}
    return {
        "bound": f"±{duration(node['gm']['bound_ns'] + math.ceil(node['gm']['growth_ppb'] * node['age_ns'] / 1e9), math.ceil)}",
        "sources": duration(abs(source["path_delay_ns"])),
        "terms": duration(max(terms.values()), math.ceil),
        "hero-node": node["node"],
    }


def grandmaster_texts(grandmaster: State) -> dict[str, str]:
    if grandmaster["utc"] is None:
        return {}
    bound_ns = grandmaster["utc"]["bound_ns"] + math.ceil(
        grandmaster["utc"]["growth_ppb"] * grandmaster["age_ns"] / 1e9
    )
    return {
        "gm-text": f"{grandmaster['name']}: {grandmaster['clock_state']}",
        "gm-why": f"±{duration(bound_ns, math.ceil)} against UTC",
    }


def job_texts(job: State) -> dict[str, str]:
    if job["sync_overhead"] is None or job["arrival_skew_p50_ns"] is None:
        return {}
    return {
        "job-text": f"{job['job']}: {job['sync_overhead'] * 100:.1f} % of the time",
        "job-why": job["verdict"],
        "jobs": f"{duration(job['arrival_skew_p50_ns'])} median",
    }


VIEWS: tuple[tuple[str, str, Callable[[State], dict[str, str]]], ...] = (
    ("fleet", "fleet", fleet_texts),
    ("node", f"node/{HUB}", node_texts),
    ("grandmaster", "grandmaster/gm-1", grandmaster_texts),
    ("job", f"job/{JOB_ID}", job_texts),
)


#: JavaScript: whether each active finding of the API is in a row; more than three of one kind share a row that has their number.
SAME_FINDINGS = """fetch('/api/v1/findings?active=true&limit=1000').then((response) => response.json()).then(({ items }) => {
  const rows = [...document.querySelectorAll('#findings tr')].map((row) => row.innerText);
  return items.length > 0 && items.every(({ id, subject }) => {
    const alike = items.filter((each) => each.id === id).length;
    return rows.some((row) => row.includes(id) && (alike > 3 ? row.includes(`${alike} findings`) : row.includes(subject)));
  });
})"""


async def test_each_view_s_numbers_are_the_api_s_at_one_moment(fleet: tuple[str, Recorder]) -> None:
    """Fleet, node, grandmaster and job; and the timeline has as many active findings as the API."""
    url, recorder = fleet
    async with opened(url + "fleet") as page:
        await page.until("headline-text", "clocks")
        for kind, path, expected in VIEWS:
            await page.evaluate(f"history.pushState(null, '', '/{path}'); dispatchEvent(new PopStateEvent('popstate'))")
            await same_moment(page, recorder, kind, expected)
        await page.evaluate("history.pushState(null, '', '/timeline'); dispatchEvent(new PopStateEvent('popstate'))")
        await page.becomes(SAME_FINDINGS, True)
        assert page.complaints == []
