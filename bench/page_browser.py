"""
The status page in a headless Chromium that renders by software: first contentful paint, time until the headline is there, and bytes with
2, 2,000 and 10,000 nodes, beside a static page of the same server; the main thread's work per frame while a heat map moves, at 1440 and
3840 px; and a chart of 100,000 points. Goals with 10,000 nodes at 1440 px: the first view within 1 s, p95 of a frame's work at most 16 ms.

The hub is a whole daemon whose nodes one process publishes (`_fleet_load.py`), on the same machine as the browser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fleet import ask, fleet, until

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import Page, opened

NODES = (2, 2_000, 10_000)
WIDTHS = (1_440, 3_840)
ROUNDS, FRAMES, POINTS = 3, 180, 100_000

#: JavaScript, before anything of the document: when the headline has its text.
WATCH = """new MutationObserver(() => {
  const text = document.getElementById("headline-text")?.textContent || document.getElementById("bound")?.textContent;
  if (text && window.usableMs === undefined) window.usableMs = performance.now();
}).observe(document, { childList: true, subtree: true, characterData: true });"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
BYTES = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')].reduce((sum, each) => sum + each.transferSize, 0)"
#: JavaScript: zooms in and moves the heat map once a frame, as a drag does.
MOVE = """(async (frames) => {
  const canvas = document.querySelector("#racks canvas");
  const { x, y, width, height } = canvas.getBoundingClientRect();
  const at = { clientX: x + width / 2, clientY: y + height / 2, bubbles: true };
  for (let step = 0; step < 6; step += 1) canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -100, shiftKey: true, cancelable: true }));
  canvas.dispatchEvent(new PointerEvent("pointerdown", { ...at, button: 0, buttons: 1, pointerId: 1 }));
  for (let frame = 0; frame < frames; frame += 1) {
    await new Promise(requestAnimationFrame);
    canvas.dispatchEvent(new PointerEvent("pointermove", { ...at, clientX: at.clientX + 90 * Math.sin(frame / 9), buttons: 1, pointerId: 1 }));
  }
})(%d)"""


class Load(NamedTuple):
    painted_ms: float
    usable_ms: float
    kilobytes: float


async def load(page: Page, url: str) -> Load:
    await page.command("Page.navigate", url=url)
    await page.becomes("document.readyState", "complete")
    await page.becomes(f"({PAINTED}) !== null", True)
    await page.becomes("window.usableMs !== undefined", True)
    values = [await page.evaluate(each) for each in (PAINTED, "window.usableMs", BYTES)]
    return Load(values[0], values[1], values[2] / 1e3)


async def static_ms(page: Page, url: str) -> float:
    await page.command("Page.navigate", url=f"{url}healthz")
    await page.becomes(f"({PAINTED}) !== null", True)
    return float(await page.evaluate(PAINTED))


def frame_work_ms(trace: list[dict[str, Any]]) -> list[float]:
    """The main thread's busy time between one frame's begin and the next one's."""
    frames = sorted(
        (event["pid"], event["tid"], event["ts"]) for event in trace if event.get("name") == "BeginMainThreadFrame"
    )
    if not frames:
        raise SystemExit("the browser traced no frame")
    thread = statistics.mode((pid, tid) for pid, tid, _ in frames)
    begins = [ts for pid, tid, ts in frames if (pid, tid) == thread]
    tasks = [
        (event["ts"], event.get("dur", 0))
        for event in trace
        if event.get("name") == "RunTask" and (event["pid"], event["tid"]) == thread
    ]
    return [sum(dur for ts, dur in tasks if begin <= ts < end) / 1e3 for begin, end in pairwise(begins)]


async def moving_ms(page: Page, width: int) -> list[float]:
    await page.command(
        "Emulation.setDeviceMetricsOverride", width=width, height=width * 9 // 16, deviceScaleFactor=1, mobile=False
    )
    await page.becomes("document.querySelector('#racks canvas').width > 0", True)
    await asyncio.sleep(2)
    page.trace.clear()
    page.has_traced = False
    categories = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]
    await page.command("Tracing.start", traceConfig={"includedCategories": categories})
    await page.evaluate(MOVE % FRAMES)
    await page.command("Tracing.end")
    while not page.has_traced:
        await page.evaluate("1")
    return frame_work_ms(page.trace)


def points_script() -> str:
    esbuild = str(ROOT / "page" / "node_modules" / ".bin" / "esbuild")
    options = ["bench/points.ts", "--bundle", "--format=iife", "--global-name=points"]
    done = subprocess.run([esbuild, *options], cwd=ROOT / "page", check=True, capture_output=True, text=True)
    return str(done.stdout)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


async def browse(url: str, nodes: int, is_largest: bool) -> None:
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
            painted, usable, kilobytes = (statistics.median(each) for each in zip(*loads, strict=True))
            print(
                f"{nodes:6} nodes, {name}: painted after {painted:.0f} ms, headline after {usable:.0f} ms, {kilobytes:.0f} kB; a static page {statistics.median(base):.0f} ms: ratio {usable / statistics.median(base):.1f}",
                flush=True,
            )
        if is_largest:
            for width in WIDTHS:
                work = await moving_ms(page, width)
                print(
                    f"{nodes:6} nodes, heat map moves at {width} px: a frame's work p50 {statistics.median(work):.1f} ms, p95 {p95(work):.1f} ms, {len(work)} frames",
                    flush=True,
                )
            await page.command("Emulation.clearDeviceMetricsOverride")
            await page.evaluate(f"window.points || (() => {{ {points_script()}\nwindow.points = points; }})()")
            made = await page.evaluate(f"points.measure({POINTS})")
            print(
                f"{POINTS} points: first drawing {made['firstMs']:.0f} ms, a redrawing p50 {statistics.median(made['frameMs']):.1f} ms, p95 {p95(made['frameMs']):.1f} ms",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=json.loads, default=list(NODES), help="as JSON")
    args = parser.parse_args()
    for nodes in args.nodes:
        with fleet(nodes) as (hub, _):
            until(hub, lambda known, nodes=nodes: known["nodes"] >= nodes, 180)
            ask(hub, "api/v1/fleet/overview")
            asyncio.run(browse(hub.page, nodes, nodes == max(args.nodes)))


if __name__ == "__main__":
    main()
