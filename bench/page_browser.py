"""
The status page in a headless Chromium that renders by software: first contentful paint, time until the headline is there, and bytes with
2, 2,000 and 10,000 nodes, beside a static page of the same server. With the most nodes, at 1440 and 3840 px: the main thread's work per
frame while the racks' heat map and one of 1,000 ranks x 500 steps are dragged, the map of nodes is scrolled, and a chart of 100,000 points
moves. Goals with 10,000 nodes at 1440 px: the first view within 1 s, p95 of a frame's work at most 16 ms.

The hub is a whole daemon whose nodes one process publishes (`_fleet_load.py`), on the same machine as the browser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fleet import ask, fleet, until

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import Page, opened

NODES = (2, 2_000, 10_000)
WIDTHS = (1_440, 3_840)
ROUNDS, FRAMES, POINTS, RANKS, STEPS = 3, 180, 100_000, 1_000, 500
#: The bytes of a visit are counted for so long: each answer that a first look needs has come by then, and some of the polls.
LOOK_S = 5.0

#: JavaScript, before anything of the document: when the headline has its text.
WATCH = """new MutationObserver(() => {
  const text = document.getElementById("headline-text")?.textContent || document.getElementById("bound")?.textContent;
  if (text && window.usableMs === undefined) window.usableMs = performance.now();
}).observe(document, { childList: true, subtree: true, characterData: true });"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
#: JavaScript: what moves, a step a frame.
MOVES = {
    "the racks' heat map is dragged": f"moving.drag(document.querySelector('#racks canvas'), {FRAMES})",
    "the map of nodes is scrolled": f"moving.scroll(document.getElementById('fleet-map'), {FRAMES})",
    f"{RANKS} ranks x {STEPS} steps are dragged": f"moving.lateness({RANKS}, {STEPS}, {FRAMES})",
    f"a chart of {POINTS} points moves": f"moving.points({POINTS}, {FRAMES})",
}


class Load(NamedTuple):
    """
    `files_kb`: the page's own document, script and styles; `data_kb`: the API's answers and the event stream, in the first LOOK_S;
    `before_kb`: what of the data came before the headline.
    """

    painted_ms: float
    usable_ms: float
    files_kb: float
    data_kb: float
    before_kb: float


async def load(page: Page, url: str) -> Load:
    page.network.clear()
    await page.command("Page.navigate", url=url)
    await page.becomes("document.readyState", "complete")
    await page.becomes(f"({PAINTED}) !== null", True)
    await page.becomes("window.usableMs !== undefined", True)
    painted_ms, usable_ms = [float(await page.evaluate(each)) for each in (PAINTED, "window.usableMs")]
    await page.becomes(f"performance.now() > {LOOK_S * 1e3}", True)
    return Load(painted_ms, usable_ms, *kilobytes(page.network), kilobytes(until_ms(page.network, usable_ms))[1])


def until_ms(events: list[dict[str, Any]], ms: float) -> list[dict[str, Any]]:
    """Those up to this time after the document was requested."""
    timed = [event for event in events if "timestamp" in event["params"]]
    begins_s = next(
        event["params"]["timestamp"]
        for event in timed
        if event["method"] == "Network.requestWillBeSent" and event["params"]["type"] == "Document"
    )
    return [event for event in timed if 0 <= event["params"]["timestamp"] - begins_s <= ms / 1e3]


def kilobytes(events: list[dict[str, Any]]) -> tuple[float, float]:
    """What came over the wire: of the page's own files, and of data."""
    received, is_data = Counter[str](), dict[str, bool]()
    for event in events:
        name, params = event["method"], event["params"]
        id = params.get("requestId", "")
        if name == "Network.responseReceived":
            is_data[id] = params["type"] in ("Fetch", "XHR", "EventSource", "Preload")
            received[id] = int(params["response"]["encodedDataLength"])
        elif name == "Network.dataReceived":
            received[id] += int(params["encodedDataLength"])
        elif name == "Network.loadingFinished":
            received[id] = int(params["encodedDataLength"])
    sums = Counter[bool]()
    for id, kind in is_data.items():  # what the page before still received began with no response here
        sums[kind] += received[id]
    return sums[False] / 1e3, sums[True] / 1e3


async def static_ms(page: Page, url: str) -> float:
    await page.command("Page.navigate", url=f"{url}healthz")
    await page.becomes(f"({PAINTED}) !== null", True)
    return float(await page.evaluate(PAINTED))


class Frames(NamedTuple):
    """Of each frame the main thread's CPU time, and how long its tasks took with all that they waited for a core."""

    work_ms: list[float]
    took_ms: list[float]


def frames_of(trace: list[dict[str, Any]]) -> Frames:
    """
    A frame's tasks are those from the one with its animation callback to the next such one. The headless browser traces no
    begin of a frame.
    """
    fired = [(event["pid"], event["tid"], event["ts"]) for event in trace if event.get("name") == "FireAnimationFrame"]
    if not fired:
        raise SystemExit("the browser traced no frame")
    thread = statistics.mode((pid, tid) for pid, tid, _ in fired)
    tasks = sorted(
        (event["ts"], event.get("tdur", 0), event.get("dur", 0))
        for event in trace
        if event.get("name") == "RunTask" and (event["pid"], event["tid"]) == thread
    )
    starts = [ts for ts, *_ in tasks]
    begins = sorted({starts[max(0, bisect_right(starts, ts) - 1)] for pid, tid, ts in fired if (pid, tid) == thread})
    of_frames = [[task for task in tasks if begin <= task[0] < end] for begin, end in pairwise(begins)]
    return Frames(*([sum(task[part] for task in frame) / 1e3 for frame in of_frames] for part in (1, 2)))


async def moved(page: Page, width: int, move: str) -> tuple[float | None, Frames]:
    """What the movement returns, and its frames."""
    await page.command(
        "Emulation.setDeviceMetricsOverride", width=width, height=width * 9 // 16, deviceScaleFactor=1, mobile=False
    )
    await asyncio.sleep(2)
    page.trace.clear()
    page.has_traced = False
    categories = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]
    await page.command("Tracing.start", traceConfig={"includedCategories": categories})
    found = await page.evaluate(move)
    await page.command("Tracing.end")
    while not page.has_traced:
        await page.evaluate("1")
    return found, frames_of(page.trace)


def moving_script() -> str:
    esbuild = str(ROOT / "page" / "node_modules" / ".bin" / "esbuild")
    options = ["bench/moving.ts", "--bundle", "--format=iife", "--global-name=moving"]
    done = subprocess.run([esbuild, *options], cwd=ROOT / "page", check=True, capture_output=True, text=True)
    return str(done.stdout)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


async def browse(url: str, nodes: int, moves: bool) -> None:
    async with opened(f"{url}healthz") as page:
        await page.command("Network.enable")
        base = [await static_ms(page, url) for _ in range(ROUNDS)]
        await page.command("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        await page.command("Network.setCacheDisabled", cacheDisabled=True)
        cold = [await load(page, f"{url}") for _ in range(ROUNDS)]
        await page.command("Network.setCacheDisabled", cacheDisabled=False)
        await load(page, url)
        warm = [await load(page, url) for _ in range(ROUNDS)]
        for name, loads in (("first visit", cold), ("next visit", warm)):
            painted, usable, files, data, before = (statistics.median(each) for each in zip(*loads, strict=True))
            ratio = usable / statistics.median(base)
            print(
                f"{nodes:6} nodes, {name}: painted after {painted:.0f} ms, headline after {usable:.0f} ms (a static page: {statistics.median(base):.0f} ms, ratio {ratio:.1f}); files {files:.1f} kB, data of {LOOK_S:g} s {data:.1f} kB, {before:.1f} kB of it before the headline",
                flush=True,
            )
        if not moves:
            return
        await page.evaluate(f"window.moving || (() => {{ {moving_script()}\nwindow.moving = moving; }})()")
        for width in WIDTHS:
            for name, move in MOVES.items():
                first_ms, (work, took) = await moved(page, width, move)
                first = "" if first_ms is None else f", first drawing {first_ms:.0f} ms"
                print(
                    f"{nodes:6} nodes, {width} px, {name}: a frame's work p50 {statistics.median(work):.1f} ms, p95 {p95(work):.1f} ms (with waits for a core {p95(took):.1f} ms), {len(work)} frames{first}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=json.loads, default=list(NODES), help="as JSON")
    parser.add_argument("--loads", action="store_true", help="measure no frame: the visits alone")
    args = parser.parse_args()
    for nodes in args.nodes:
        with fleet(nodes) as (hub, _):
            until(hub, lambda known, nodes=nodes: known["nodes"] >= nodes, 180)
            ask(hub, "api/v1/fleet/overview")
            asyncio.run(browse(hub.page, nodes, nodes == max(args.nodes) and not args.loads))


if __name__ == "__main__":
    main()
