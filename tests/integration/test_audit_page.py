"""What a browser shows of the page that `timesyncd audit` writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from audit_lab import MS, job, late, noisy, saved
from chromium import opened

from timesyncd.__main__ import main

pytestmark = pytest.mark.integration


@pytest.mark.timeout(300)
async def test_a_browser_shows_the_sentence_first(tmp_path: Path) -> None:
    """In a real browser: the sentence is on top, every plot is drawn, and nothing is complained of nor fetched."""
    path = saved(tmp_path / "now.json", job(200, 3, late(1, computing=noisy())))
    before = saved(tmp_path / "before.json", job(200, 3, late(1, 8 * MS, noisy(2))))
    main(["audit", "--record", str(path), "--before", str(before), "--out", str(tmp_path)])

    async with opened((tmp_path / "report.html").as_uri()) as page:
        shown = str(await page.text("headline"))
        sizes = await page.evaluate(
            "[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().width)"
        )
        top = await page.evaluate("document.querySelector('#headline p').getBoundingClientRect().bottom")
        fetched = await page.evaluate("performance.getEntriesByType('resource').length")
        wide = await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        complaints = page.complaints

    assert shown.startswith("Rank 1 on node-0 is persistently late")
    assert len(sizes) == 5
    assert min(sizes) > 500
    assert top < 300
    assert (fetched, wide, complaints) == (0, True, [])
