"""The status page for every reader: axe-core finds nothing in any view, and the keyboard alone reaches everything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Page, opened
from fleet_view import FleetView

from timesyncd import config
from timesyncd.config import SecretSettings, TokenSettings
from timesyncd.web.app import serve

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "page"
THEMES = ("light", "dark")
NOTHING: dict[str, list[str]] = {theme: [] for theme in THEMES}
#: Each view of FleetView, with an element and a text of it that come last.
VIEWS = (
    ("fleet", "nodes", "trainer-00001"),
    ("node/trainer-00001", "terms", "path delay"),
    ("grandmaster/gm-a", "grandmasters", "HOLDOVER"),
    ("job", "lateness-note", "2 ranks"),
    ("timeline", "findings", "grandmaster-alarm"),
)
#: JavaScript: what axe-core objects to, a line each.
VIOLATIONS = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
    violations.flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id} ${target}: ${failureSummary}`)))"""


@pytest.fixture(scope="module")
def axe() -> str:
    """Its source, which the page's lock file pins; no part of this repository."""
    subprocess.run([sys.executable, PAGE / "build_page.py", "packages"], check=True, capture_output=True)
    return (PAGE / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    server = await serve(config.WebSettings(port=0), FleetView())
    async with opened(server.url + "fleet") as page:
        await page.until("nodes", "trainer-00001")
        yield page
    await server.close()


async def go(page: Page, path: str) -> None:
    await page.evaluate(f"history.pushState(null, '', '/{path}'); dispatchEvent(new PopStateEvent('popstate'))")


async def objections(page: Page, axe: str, width: int = 1440) -> dict[str, list[str]]:
    """Of what is shown now, in both themes."""
    await page.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    await page.evaluate(f"void (window.axe || (() => {{ {axe}\n}})())")
    found: dict[str, list[str]] = {}
    for theme in THEMES:
        await page.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        found[theme] = await page.evaluate(VIOLATIONS)
    return found


@pytest.mark.parametrize("width", [390, 1440])
async def test_axe_objects_to_nothing(page: Page, axe: str, width: int) -> None:
    """In any view, light and dark, on a phone and on a desk; with the keys shown too."""
    found: dict[str, Any] = {}
    for path, element, text in VIEWS:
        await go(page, path)
        await page.until(element, text)
        found[path] = await objections(page, axe, width)
    await page.evaluate("document.getElementById('help').showModal()")
    found["help"] = await objections(page, axe, width)

    assert found == dict.fromkeys(found, NOTHING)


async def test_axe_objects_to_nothing_of_the_log_in(axe: str, tmp_path: Path) -> None:
    """Nor after a wrong token, with the error shown."""
    secret = tmp_path / "token"
    secret.write_text("a long enough secret of this test alone")
    token = TokenSettings(name="reader", secret=SecretSettings(file=secret))
    server = await serve(config.WebSettings(port=0, token=[token]), FleetView())
    try:
        async with opened(server.url + "login?next=fleet") as page:
            first = await objections(page, axe)
            await page.evaluate(
                "document.getElementById('token').value = 'wrong'; document.querySelector('form').requestSubmit()"
            )
            await page.becomes("document.getElementById('login-error')?.textContent.length > 0", True)
            second = await objections(page, axe)
    finally:
        await server.close()

    assert (first, second) == (NOTHING, NOTHING)


#: JavaScript: what a pointer can use and a reader sees, by a number that is put on it; and the number that has the focus.
USABLE = """[...document.querySelectorAll("a[href], button, input, select, summary, textarea, [tabindex='0']")]
    .filter((each) => each.checkVisibility({ visibilityProperty: true }) && !each.disabled)
    .map((each, index) => { each.dataset.number = String(index); return each.id || each.textContent.trim().slice(0, 30) || each.tagName; })"""
FOCUSED = "document.activeElement?.dataset.number ?? null"


async def press_tab(page: Page) -> None:
    key = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
    await page.command("Input.dispatchKeyEvent", type="rawKeyDown", **key)
    await page.command("Input.dispatchKeyEvent", type="keyUp", **key)


@pytest.mark.parametrize(("path", "element", "text"), VIEWS)
async def test_the_tab_key_reaches_everything_in_the_order_of_reading(
    page: Page, path: str, element: str, text: str
) -> None:
    """Links, buttons, fields, charts that can be moved, and lists that scroll; a header's comes before its section's."""
    await go(page, path)
    await page.until(element, text)
    await page.evaluate("document.activeElement?.blur(); getSelection().removeAllRanges(); scrollTo(0, 0)")
    usable = await page.evaluate(USABLE)
    reached: list[int] = []
    for _ in range(2 * len(usable)):
        await press_tab(page)
        number = await page.evaluate(FOCUSED)
        if number is not None and int(number) not in reached:
            reached.append(int(number))

    assert [name for number, name in enumerate(usable) if number not in reached] == []
    assert json.dumps(reached) == json.dumps(sorted(reached))
