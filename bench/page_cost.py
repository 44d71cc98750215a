"""
What viewers of the page cost a hub: its CPU without a viewer, with the fleet's view open in one Chromium, and with 200
clients besides. Each client repeats the requests that the Chromium was seen to send, as often as it sends them, and
holds `/events` open. The base, in the same run: 200 clients that request a static page of the same server as often.

The hub is a whole daemon on one core, whose nodes one process publishes (`_fleet_load.py`). The clients are another
process (`_whole_browsers.py`), whose CPU is printed by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from _fleet_load import name
from _grandmasters import cpu_s
from _whole_browsers import Requests
from fleet import ask, fleet, until
from whole_load import Part, rss_mib

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chromium import Page, opened

NODES, CLIENTS = (2, 2_000, 10_000), 200
#: For so long the Chromium's requests are counted, from SETTLE_S after its first one on; the page's slowest poll is each 15 s.
SETTLE_S, RECORD_S = 10.0, 60.0
WARM_S, MEASURE_S = 20.0, 40.0
STATIC = "healthz"


class Cost(NamedTuple):
    """Cores of the hub and of the clients, the hub's memory, and what the clients measured."""

    hub: float
    clients: float
    hub_mib: float
    report: dict[str, Any]


async def requests_of(page: Page, url: str) -> tuple[str, Requests]:
    """The path of the page's stream, and what it requests of the API besides."""
    await asyncio.sleep(SETTLE_S)
    stream = next(path for path, _ in await sent_by(page, url) if path.startswith("events"))
    await asyncio.sleep(RECORD_S)
    sent = await sent_by(page, url)
    accepted, counts = dict(sent), Counter(path for path, _ in sent)
    return stream, {path: (RECORD_S / count, accepted[path]) for path, count in sorted(counts.items())}


async def sent_by(page: Page, url: str) -> list[tuple[str, int]]:
    """The paths requested since the last call, without the span of time of a chart's request, and the age that the page accepts."""
    await page.evaluate("1")  # the browser's messages are read up to a command's answer
    sent = [event["params"]["request"] for event in page.network if "request" in event["params"]]
    page.network.clear()
    return [
        (without_span(each["url"].removeprefix(url)), int(each["headers"].get("Cache-Control", "=0").partition("=")[2]))
        for each in sent
        if each["url"].startswith(url)
    ]


def without_span(path: str) -> str:
    path, _, query = path.partition("?")
    kept = [each for each in query.split("&") if each and each.partition("=")[0] not in ("since", "until")]
    return f"{path}?{'&'.join(kept)}" if kept else path


async def measured(pid: int, clients: Part | None) -> Cost:
    await asyncio.sleep(WARM_S)
    pids = [pid] if clients is None else [pid, clients.process.pid]
    used, began_s = [cpu_s(each) for each in pids], time.monotonic()
    if clients is not None:
        clients.next()
    await asyncio.sleep(MEASURE_S)
    passed_s = time.monotonic() - began_s
    hub, *others = ((cpu_s(each) - before) / passed_s for each, before in zip(pids, used, strict=True))
    return Cost(hub, sum(others), rss_mib(pid), {} if clients is None else await asyncio.to_thread(clients.report))


async def with_clients(pid: int, url: str, stream: str, requests: Requests) -> Cost:
    options = (f"--url={url}", f"--browsers={CLIENTS}", f"--probe={name(1)}")
    clients = Part("_whole_browsers.py", *options, f"--requests={json.dumps(requests)}", f"--stream={stream}")
    try:
        return await measured(pid, clients)
    finally:
        clients.close()


async def costs(pid: int, url: str, nodes: int) -> None:
    show(nodes, "no viewer", await measured(pid, None), None)
    async with opened(f"{url}healthz") as page:
        await page.command("Network.enable")
        await page.command("Page.navigate", url=url)
        stream, requests = await requests_of(page, url)
        print(
            f"{nodes:6} nodes: a page requests "
            + ", ".join(f"{path} each {s:.1f} s" for path, (s, _) in requests.items())
        )
        alone = await measured(pid, None)
        show(nodes, "one Chromium", alone, None)
        a_second = sum(1 / every_s for every_s, _ in requests.values())
        base = await with_clients(pid, url, "", {STATIC: (1 / a_second, 0)})
        show(nodes, f"one Chromium, {CLIENTS} clients of a static page", base, alone)
        cost = await with_clients(pid, url, stream, requests)
        show(nodes, f"one Chromium, {CLIENTS} clients of the page", cost, alone)
        ratio = (cost.hub - alone.hub) / (base.hub - alone.hub)
        print(f"{nodes:6} nodes: the clients of the page cost {ratio:.1f} times those of a static page", flush=True)


def show(nodes: int, what: str, cost: Cost, alone: Cost | None) -> None:
    print(f"{nodes:6} nodes, {what}: the hub {cost.hub:.2f} of a core, {cost.hub_mib:.0f} MiB", flush=True)
    if alone is None:
        return
    found = cost.report
    each_ms = (cost.hub - alone.hub) * MEASURE_S / max(1, found["requests"]) * 1e3
    print(
        f"       {found['requests'] / MEASURE_S:.0f} requests a second, p50 {found['p50_s']} s, p99 {found['p99_s']} s, {found['bytes'] / MEASURE_S / 1e3:.0f} kB a second decoded, {found['streams']} streams, {found['errors'] or 'no errors'}; {each_ms:.2f} ms of the hub's core a request, streams included; the clients themselves {cost.clients:.2f} of a core",
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
            asyncio.run(costs(hub.process.pid, hub.page, nodes))


if __name__ == "__main__":
    main()
