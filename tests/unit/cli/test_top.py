"""`timesyncd top` by Textual's pilot: views, sorting, filter, drill-down, and what it shows of a silent daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_view import FakeView, as_json
from textual.widgets import DataTable, Input, Static, TabbedContent

from timesyncd.cli import top
from timesyncd.cli._top_app import DetailScreen, TopApp
from timesyncd.cli._top_data import SILENT_AFTER_S, DaemonFeed, Round, View, banner, rows, truth_text, visible
from timesyncd.errors import Unreachable
from timesyncd.messages.fleet import FleetMap
from timesyncd.messages.overview import Overview

NODES: list[tuple[str, Any, int | None]] = [
    ("node-a", "SYNCHRONIZED", 900),
    ("node-b", "SYNCHRONIZED", 5_000),
    ("node-c", "UNKNOWN", None),
    ("other", "HOLDOVER", 70_000),
]


def fleet_map() -> FleetMap:
    return FleetMap(published_realtime_ns=1, places={"hall-1/rack-1": NODES[:3], "hall-2": NODES[3:]})


def a_round(**truths_ns: int) -> Round:
    return Round(FakeView().overview(), fleet_map(), {name.replace("_", "-"): ns for name, ns in truths_ns.items()})


class FakeFeed(DaemonFeed):
    """A daemon that replies with what the test sets, and may fall silent."""

    def __init__(self, reply: Round) -> None:
        super().__init__("http://127.0.0.1:1/")
        self.reply = reply
        self.problem = ""
        self.asked: list[tuple[View, str]] = []

    def round(self) -> Round:
        if self.problem:
            raise Unreachable(self.problem)
        return self.reply

    def detail(self, view: View, name: str) -> Any:
        self.asked.append((view, name))
        return as_json(FakeView().node())


async def until(pilot: Any, holds: Callable[[], bool]) -> None:
    """Waits for the fact; a busy machine takes its time."""
    for _ in range(600):
        await pilot.pause(0.05)
        if holds():
            return
    raise AssertionError("it never held")


def table(app: TopApp, view: str) -> DataTable[Any]:
    return app.query_one(f"#table-{view}", DataTable)


def names(app: TopApp) -> list[str]:
    nodes = table(app, "nodes")
    return [nodes.get_row_at(at)[0].plain for at in range(nodes.row_count)]


def text(app: TopApp, id: str) -> str:
    return str(app.query_one(f"#{id}", Static).content)


async def test_the_most_urgent_comes_first() -> None:
    """Without a bound, then by status, then the widest; the headline stands above."""
    app = TopApp(FakeFeed(a_round()))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))

        assert names(app) == ["node-c", "other", "node-b", "node-a"]
        assert FakeView().overview().headline.text in text(app, "banner")


async def test_keys_choose_the_view_sort_and_reverse() -> None:
    """Each number is a view; s sorts by the next column and r reverses."""
    app = TopApp(FakeFeed(a_round()))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("2", "s")
        assert app.query_one(TabbedContent).active == "nodes"
        assert names(app) == ["node-a", "node-b", "node-c", "other"]
        await pilot.press("r")
        assert names(app) == ["other", "node-c", "node-b", "node-a"]
        await pilot.press("4")
        assert app.query_one(TabbedContent).active == "grandmasters"


async def test_a_filter_keeps_what_has_the_text() -> None:
    """In any cell, as in the place; Escape clears it."""
    app = TopApp(FakeFeed(a_round()))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("2", "slash", *"HALL-2")
        await until(pilot, lambda: names(app) == ["other"])
        await pilot.press("escape")
        await until(pilot, lambda: len(names(app)) == 4)
        assert app.query_one("#filter", Input).value == ""


async def test_a_row_opens_all_that_is_known_of_it() -> None:
    """Enter asks the daemon for that node; Escape leads back."""
    feed = FakeFeed(a_round())
    app = TopApp(feed)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("2", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        assert feed.asked == [("nodes", "other")]
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, DetailScreen))


async def test_a_place_leads_to_its_nodes() -> None:
    """The drill-down from fleet to nodes is a filter, which can be cleared."""
    overview = FakeView().overview()
    chain = [overview.chain[0].model_copy(update={"place": "hall-2"})]
    app = TopApp(FakeFeed(Round(overview.model_copy(update={"chain": chain}), fleet_map())))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: table(app, "fleet").row_count == 1)
        await pilot.press("enter")
        await until(pilot, lambda: app.query_one(TabbedContent).active == "nodes" and names(app) == ["other"])


async def test_a_click_on_a_title_sorts() -> None:
    """The mouse does what the keys do."""
    app = TopApp(FakeFeed(a_round()))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("2")
        await pilot.pause()
        await pilot.click("#table-nodes", offset=(2, 0))
        await until(pilot, lambda: names(app) == ["node-a", "node-b", "node-c", "other"])


async def test_the_cursor_stays_on_its_row() -> None:
    """When a node becomes more urgent, the row under the cursor is still the same node's."""
    feed = FakeFeed(a_round())
    app = TopApp(feed)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("2", "down", "down")
        feed.reply = replace(feed.reply, map=FleetMap(published_realtime_ns=1, places={"": NODES[1:2]}))
        await until(pilot, lambda: names(app) == ["node-b"])
        assert table(app, "nodes").cursor_row == 0


async def test_a_silent_daemon_is_said_across_the_screen() -> None:
    """The banner says so at the latest after some seconds, and live values come back by themselves."""
    feed = FakeFeed(a_round())
    app = TopApp(feed)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        feed.problem = "no response within 5 s"
        await until(pilot, lambda: app.screen_stack[0].has_class("silent"))
        assert "NO REPLY: everything is as of" in text(app, "banner")
        feed.problem = ""
        await until(pilot, lambda: not app.screen_stack[0].has_class("silent"))


def test_the_banner_dates_what_is_old() -> None:
    """Before the first reply nothing is claimed; afterwards the time of the last one is named."""
    reply = a_round()

    assert banner(None, None, "", 0) == ("asking the daemon", True)
    assert banner(None, None, "refused", 0) == ("no reply: refused", True)
    assert banner(reply, 100.0, "refused", 100.0 + SILENT_AFTER_S - 0.1)[1] is False
    stale, silent = banner(reply, 100.0, "refused", 132.0)
    assert silent and "32 s ago: refused" in stale


def test_the_truth_stands_beside_the_bound() -> None:
    """Where it is known, as in the demo; a bound that does not have it is named loudly."""
    made = {row.name: row.cells[-1].plain for row in rows("nodes", a_round(node_a=-850, node_b=9_000, node_c=5))}

    assert made == {"node-a": "-850 ns, inside", "node-b": "9.00 us, OUTSIDE", "node-c": "5 ns", "other": ""}
    assert truth_text(None, 5).plain == ""


def test_every_view_has_a_cell_and_a_value_for_each_column() -> None:
    """So that any column can be sorted, also where values are unknown."""
    from timesyncd.cli._top_data import TITLES, VIEWS

    reply = a_round()
    unknown = reply.overview.model_copy(
        update={"grandmasters": [
            each.model_copy(update={"clock_state": None, "gnss_state": None, "utc_bound_ns": None, "alarms": None})
            for each in reply.overview.grandmasters
        ] + list(reply.overview.grandmasters)}
    )  # fmt: skip
    for view in VIEWS:
        made = rows(view, replace(reply, overview=Overview.model_validate(unknown.model_dump())))
        assert {(len(row.cells), len(row.values)) for row in made} == {(len(TITLES[view]),) * 2}
        for column in range(len(TITLES[view])):
            assert len(visible(made, column, True, "")) == len(made)


def test_hostile_names_are_text() -> None:
    """No markup and no control sequence of a job's name reaches the terminal."""
    overview = a_round().overview
    job = overview.jobs[0].model_copy(update={"job": "[red]x[/]\x1b]0;owned\x07"})
    (row,) = rows("jobs", Round(overview.model_copy(update={"jobs": [job]}), fleet_map()))

    assert row.cells[0].plain.startswith("[red]x[/]?]0;owned?")


def test_without_the_extra_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the exit status is 2."""
    from argparse import Namespace

    monkeypatch.setitem(sys.modules, "textual", None)

    assert top.run(Namespace(url="http://127.0.0.1:1/")) == 2
    assert capsys.readouterr().err == "timesyncd top: the tui extra is missing: pip install 'timesyncd[tui]'\n"


def test_without_a_terminal_it_says_what_prints_once() -> None:
    """A pipe gets no control sequences."""
    done = subprocess.run(
        [sys.executable, "-m", "timesyncd", "top", "--url", "http://127.0.0.1:1/"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1 and done.stdout == ""
    assert "timesyncd status" in done.stderr
