"""
Browsers on the fleet's view, as page/src requests it: the overview and a page of nodes each 2 s, the map and the
events each 10 s, and the charts each 15 s. Each holds `/events` open besides, where the hub has room for one more
viewer. A browser sends one request after another, so it has two connections. Another client looks how long a probe's
state takes from its publication until the API has it.

The first line on standard input begins the measurement, and the second one ends it; then it prints as JSON how long
the answers took, and how many were errors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from datetime import UTC, datetime, timedelta

import aiohttp

#: Of each path the seconds from one request to the next, and how old an answer the page accepts, in seconds.
#: What a real page sends, `page_cost.py` prints.
Requests = dict[str, tuple[float, int]]
REQUESTS: Requests = {
    "api/v1/fleet/overview?findings=0": (2.0, 1),
    "api/v1/nodes?limit=50": (2.0, 1),
    "api/v1/fleet/map": (10.0, 1),
    "api/v1/findings/handled": (10.0, 0),
    "api/v1/series?subject=fleet&points=600": (15.0, 5),
    "api/v1/fleet/racks?points=240": (15.0, 5),
}
CHART_S = 900
#: A chart's span ends at a multiple of this, as the page has it.
SPAN_STEP_S = 5
RETRY_S = 5.0
LOOK_EVERY_S = 0.02


def path_now(path: str) -> str:
    """With the span of time that a chart requests."""
    if "points=" not in path:
        return path
    now = datetime.fromtimestamp(math.ceil(time.time() / SPAN_STEP_S) * SPAN_STEP_S, UTC).replace(tzinfo=None)
    return f"{path}&since={(now - timedelta(seconds=CHART_S)).isoformat()}Z&until={now.isoformat()}Z"


class Browsers:
    """What all of them measured."""

    def __init__(self, url: str, requests: Requests, stream: str) -> None:
        self._url, self._requests, self._stream = url, requests, stream
        self.streams = 0
        self.begin()

    def begin(self) -> None:
        """Forgets what was measured until now."""
        self.seconds: list[float] = []
        self.lag_s: list[float] = []
        self.errors: dict[str, int] = {}
        self.bytes = 0

    async def browse(self) -> None:
        """One browser, for ever."""
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            if self._stream:
                group.create_task(self._watch(session))
            now_s = time.monotonic()
            due = [(now_s + random.uniform(0, every_s), path) for path, (every_s, _) in self._requests.items()]
            while True:
                due.sort()
                at_s, path = due[0]
                every_s, max_age_s = self._requests[path]
                await asyncio.sleep(at_s - time.monotonic())
                began_s = time.monotonic()
                await self._get(session, path, max_age_s)
                self.seconds.append(time.monotonic() - began_s)
                due[0] = (began_s + every_s, path)

    async def _get(self, session: aiohttp.ClientSession, path: str, max_age_s: int = 0) -> bytes:
        headers = {"Cache-Control": f"max-age={max_age_s}"} if max_age_s else {}
        try:
            async with session.get(self._url + path_now(path), headers=headers) as response:
                body = await response.read()
                self.bytes += len(body)
                if response.status == 200:
                    return body
                self._count(f"{path}: status {response.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self._count(f"{path}: {type(error).__name__}")
        return b""

    def _count(self, error: str) -> None:
        self.errors[error] = self.errors.get(error, 0) + 1

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                async with session.get(self._url + self._stream, timeout=aiohttp.ClientTimeout(None)) as response:
                    if response.status == 200:
                        self.streams += 1
                        async for chunk in response.content.iter_any():
                            self.bytes += len(chunk)
                        self.streams -= 1
            except aiohttp.ClientError as error:
                self._count(f"events: {type(error).__name__}")
            await asyncio.sleep(RETRY_S)

    async def probe(self, node: str) -> None:
        """
        How long each new state of this node took from its publication until the API had it. One that another one replaced
        before it was seen is not counted, but the other one is then as late.
        """
        newest_ns = 0
        async with aiohttp.ClientSession() as session:
            while True:
                body = await self._get(session, f"api/v1/nodes/{node}")
                published_ns = json.loads(body)["published_realtime_ns"] if body else newest_ns
                if published_ns > newest_ns:
                    newest_ns = published_ns
                    self.lag_s.append(time.time() - published_ns / 1e9)
                await asyncio.sleep(LOOK_EVERY_S)

    def report(self) -> dict[str, object]:
        return {
            "requests": len(self.seconds),
            "errors": self.errors,
            "streams": self.streams,
            "bytes": self.bytes,
            "p50_s": quantile(self.seconds, 0.5),
            "p99_s": quantile(self.seconds, 0.99),
            "probes": len(self.lag_s),
            "lag_p50_s": quantile(self.lag_s, 0.5),
            "lag_p99_s": quantile(self.lag_s, 0.99),
        }


def quantile(numbers: list[float], share: float) -> float | None:
    ordered = sorted(numbers)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 3) if ordered else None


async def measure(browsers: Browsers, count: int, probe: str) -> None:
    tasks = [
        asyncio.create_task(browsers.probe(probe)),
        *(asyncio.create_task(browsers.browse()) for _ in range(count)),
    ]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    browsers.begin()
    await asyncio.to_thread(sys.stdin.readline)
    found = browsers.report()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--browsers", type=int, required=True)
    parser.add_argument("--probe", required=True, help="the node whose states are looked for")
    parser.add_argument("--requests", type=json.loads, default=REQUESTS, help="as JSON")
    parser.add_argument("--stream", default="events", help="the path that each browser holds open; empty: none")
    args = parser.parse_args()
    asyncio.run(measure(Browsers(args.url, args.requests, args.stream), args.browsers, args.probe))


if __name__ == "__main__":
    main()
