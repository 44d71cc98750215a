"""`timesyncd top` on a real daemon: its numbers are the API's, and a killed daemon is said to be gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Static

from timesyncd.cli._top_app import TopApp
from timesyncd.cli._top_data import DaemonFeed, story_lines
from timesyncd.cli._top_detail import DetailScreen
from timesyncd.client.api import fetch_part
from timesyncd.messages.simulation import SimulationFile, StatedOffset
from timesyncd.simulation.bed.daemon import DaemonProcess
from timesyncd.simulation.bed.host import new_marker
from timesyncd.simulation.bed.simulated_ptp4l import SimulatedPtp4l

pytestmark = pytest.mark.integration


async def until(pilot: Any, holds: Callable[[], bool]) -> None:
    """Fails with what the screen shows after a minute."""
    for _ in range(1_200):
        await pilot.pause(0.05)
        if holds():
            return
    shown = [str(each.content) for each in pilot.app.query(Static)]
    tables = {
        table.id: [table.get_row_at(row) for row in range(table.row_count)] for table in pilot.app.query(DataTable)
    }
    raise AssertionError(f"it never held: {shown}, {tables}")


async def test_a_daemon_is_watched_until_it_is_killed(folder: Path) -> None:
    """Status, truth and headline of a node that follows a simulated ptp4l; then nothing is shown as present."""
    address = folder / "ptp4l"
    async with SimulatedPtp4l(address, 1_000):
        stated = folder / "simulation.json"
        truth = {"node-a": StatedOffset(realtime_ns=1, offset_ns=1_000)}
        stated.write_text(SimulationFile(simulated="ptp4l", story="calm", offsets=truth).model_dump_json())
        daemon = DaemonProcess("node-a", folder / "node-a", str(address), new_marker())
        daemon.more = f'[simulation]\nstate = "{stated}"\n'
        await asyncio.to_thread(daemon.__enter__)
        try:
            app = TopApp(DaemonFeed(daemon.page))
            async with app.run_test(size=(110, 30)) as pilot:
                table = app.query_one("#table-nodes", DataTable)
                await until(pilot, lambda: table.row_count == 1 and table.get_row_at(0)[1].plain == "SYNCHRONIZED")
                await until(pilot, lambda: table.get_row_at(0)[4].plain == "1.00 us, inside the bound")
                assert [line.plain for line in story_lines(app._round)] == ["ptp4l", "story: calm"]  # type: ignore[arg-type]
                headline = (await asyncio.to_thread(fetch_part, daemon.page, "headline"))["text"]
                assert headline.startswith("The only clock is within +-")
                banner = app.query_one("#banner", Static)
                await until(pilot, lambda: "The only clock is within +-" in str(banner.content))
                await pilot.press("2", "enter")
                await until(pilot, lambda: isinstance(app.screen, DetailScreen))
                await pilot.press("escape")
                daemon.stop()
                await until(pilot, lambda: app.screen_stack[0].has_class("silent"))
                assert "NO REPLY" in str(app.query_one("#banner", Static).content)
        finally:
            daemon.stop()
