"""
`make screenshots`: every view of the page, light and dark, at three widths, into a folder; six of them small for README and docs.

The daemon is real, with a fleet as `page_fleet` publishes it, hours of stored past, and an incident that happens meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from chromium import Page, opened
from page_fleet import HUB, JOBS, PageFleet, page_fleet
from page_history import UID, write_history

from timesyncd.ipc.job_datagram import job_id

#: Width, and the height of the window at it.
WINDOWS = ((390, 844), (1440, 900), (3840, 2160))
THEMES = ("light", "dark")
#: Each view with its address, an element and a text of it that come last, and what it draws.
JOB_ID = job_id(UID, JOBS[0].name, 0)
VIEWS = (
    ("fleet", "fleet?last=1h", "nodes", HUB, "#racks canvas"),
    ("node", f"node/{HUB}?last=130s", "terms", "path delay", "#node-stability canvas"),
    ("grandmaster", "grandmaster/gm-2?last=1h", "grandmasters", "HOLDOVER", "#gm-stability canvas"),
    ("job", f"job/{JOB_ID}?last=1h", "lateness-note", "ranks", "#parts canvas"),
    ("timeline", "timeline?last=5m", "findings", "Remedy", "#lanes rect"),
)
#: Those that README and docs show, at 1440 px.
SHOWN = {
    ("fleet", "dark"), ("fleet", "light"), ("node", "dark"), ("grandmaster", "dark"), ("job", "dark"), ("timeline", "light"),
}  # fmt: skip
MOST_BYTES = 100_000
SECRET = "of-ada-who-watches-the-clocks"
TOKEN = '\n[[web.token]]\nname = "ada"\nrole = "writer"\nsecret = {{ file = "{file}" }}\n'
HOURS = 6


async def until(what: str, holds: Callable[[], Any], within_s: float = 120.0) -> None:
    """Raises SystemExit when it does not hold in time."""
    deadline_s = time.monotonic() + within_s
    while not await holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(0.5)


class Api:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, path: str) -> Any:
        try:
            async with self._session.get(f"/api/v1/{path}") as response:
                return await response.json() if response.status == 200 else None
        except aiohttp.ClientConnectionError:
            return None

    async def nodes(self) -> int:
        overview = await self.ask("fleet/overview")
        return 0 if overview is None else int(overview["headline"]["compared"])

    async def unbounded(self) -> int:
        return int((await self.ask("headline"))["without_bound"])

    async def write(self, **note: Any) -> None:
        async with self._session.post("/api/v1/notes", json=note) as response:
            print(f"note {note['kind']}: {response.status}", flush=True)

    async def finds(self, finding: str) -> bool:
        return any(each["id"] == finding for each in (await self.ask("findings"))["items"])

    async def knows_straggler(self) -> bool:
        job = await self.ask(f"jobs/{JOB_ID}")
        return job is not None and job["straggler_rank"] is not None


async def happen(fleet: PageFleet, api: Api) -> None:
    """The incident, with what operators write about it."""
    await asyncio.sleep(75)  # until the model of the hub's own clock has learned
    await api.write(kind="deploy", text="switch firmware 4.2.1 in hall-1", subject="hall-1")
    fleet.cut_antenna()
    await until("the cut antenna", partial(api.finds, "grandmaster-antenna"))
    fleet.lose_clock()
    await until("nodes without a bound", api.unbounded)
    await fleet.silence_ptp4l(24)
    await until("the late rank", api.knows_straggler)
    await api.write(kind="comment", text="uplink of the boundary clock in hall-1 is down; looking", subject="hall-1")
    await asyncio.sleep(30)


async def log_in(page: Page) -> None:
    await page.evaluate(f"document.getElementById('token').value = {json.dumps(SECRET)}")
    await page.evaluate("document.querySelector('form').requestSubmit()")
    await page.until("headline-text", "clocks")


async def go(page: Page, address: str) -> None:
    """Another view of the same page, as a link within it opens it."""
    await page.evaluate(f"history.pushState(null, '', '/{address}'); dispatchEvent(new PopStateEvent('popstate'))")


async def shoot(page: Page, path: Path, **options: Any) -> None:
    shot = await page.command("Page.captureScreenshot", **options)
    path.write_bytes(base64.b64decode(shot["data"]))


async def resize(page: Page, width: int, height: int, theme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": theme}]
    await page.command("Emulation.setEmulatedMedia", features=features)
    await page.command(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
    )
    await page.evaluate("new Promise((done) => setTimeout(done, 900))")


async def shoot_all(page: Page, name: str, folder: Path, pictures: Path) -> None:
    """One view in each theme and width, whole; and its window alone where README or docs show it."""
    for theme in THEMES:
        for width, height in WINDOWS:
            await resize(page, width, height, theme)
            await shoot(
                page,
                folder / f"{name}-{theme}-{width}.png",
                format="png",
                captureBeyondViewport=True,
                clip=await whole(page, width),
            )
            if width == 1440 and (name, theme) in SHOWN:
                await shoot_small(page, pictures / f"{name}-{theme}.webp")


async def whole(page: Page, width: int) -> dict[str, Any]:
    height = await page.evaluate("document.documentElement.scrollHeight")
    return {"x": 0, "y": 0, "width": width, "height": min(int(height), 6_000), "scale": 1}


async def shoot_small(page: Page, path: Path) -> None:
    """As good as MOST_BYTES allow."""
    await page.evaluate("scrollTo(0, 0)")
    for quality in (90, 80, 70, 55, 40):
        await shoot(page, path, format="webp", quality=quality)
        if path.stat().st_size <= MOST_BYTES:
            return


async def take(folder: Path, pictures: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="page-") as place:
        secret = Path(place) / "ada"
        secret.write_text(SECRET)
        prepare = partial(write_history, hours=HOURS)
        async with (
            page_fleet(Path(place), TOKEN.format(file=secret), prepare) as fleet,
            aiohttp.ClientSession(fleet.hub.page, headers={"Authorization": f"Bearer {SECRET}"}) as session,
        ):
            api = Api(session)
            await until("the fleet", lambda: _knows(api, fleet.load.nodes))
            fleet.load.has_jobs = True
            async with opened(fleet.hub.page + "login?next=fleet") as page:
                await page.until("token", "")
                await shoot_all(page, "log-in", folder, pictures)
                await log_in(page)
                for path in (f"node/{HUB}", f"job/{JOB_ID}", "fleet"):  # each view collects from its first look on
                    await go(page, path)
                    await asyncio.sleep(2)
                await happen(fleet, api)
                for name, address, element, text, drawn in VIEWS:
                    await go(page, address)
                    await page.until(element, text)
                    await page.becomes(f"document.querySelectorAll('{drawn}').length > 0", True)
                    await asyncio.sleep(4)
                    await shoot_all(page, name, folder, pictures)
                for complaint in page.complaints:
                    print(f"the browser complains: {complaint}", flush=True)


async def _knows(api: Api, nodes: int) -> bool:
    return await api.nodes() >= nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pictures", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    args.pictures.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(args.folder, args.pictures))


if __name__ == "__main__":
    main()
