"""`timesyncd top` by Textual's pilot: views, sorting, filter, drill-down, and what it shows of a silent daemon."""

from __future__ import annotations

import base64
import subprocess
import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any, cast

import pytest
from fake_view import FakeView, as_json
from rich.console import Console, RenderableType
from rich.text import Text
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent

from timesyncd.cli import top
from timesyncd.cli._top_app import TopApp
from timesyncd.cli._top_data import (
    MOST_ROWS,
    SILENT_AFTER_S,
    VIEWS,
    DaemonFeed,
    Round,
    View,
    ViewRow,
    banner,
    chain_lines,
    finding_lines,
    fitted,
    rows,
    story_lines,
    truth_text,
    visible,
)
from timesyncd.cli._top_detail import DetailScreen, HeatView, JobScreen
from timesyncd.errors import Unreachable
from timesyncd.messages.fleet import FleetMap
from timesyncd.messages.node import ChainStep
from timesyncd.messages.overview import ConfiguredLimits, Overview
from timesyncd.messages.series import LatenessMatrix
from timesyncd.messages.simulation import SimulationFile, StatedOffset

NODES: list[tuple[str, Any, int | None]] = [
    ("node-a", "SYNCHRONIZED", 900),
    ("node-b", "SYNCHRONIZED", 5_000),
    ("node-c", "UNKNOWN", None),
    ("other", "HOLDOVER", 70_000),
]


def fleet_map() -> FleetMap:
    return FleetMap(published_realtime_ns=1, places={"hall-1/rack-1": NODES[:3], "hall-2": NODES[3:]})


def a_round(**truths_ns: int) -> Round:
    """With these true offsets, as a simulation states them; without any nothing is simulated."""
    offsets = {name.replace("_", "-"): StatedOffset(realtime_ns=1, offset_ns=ns) for name, ns in truths_ns.items()}
    stated = SimulationFile(simulated="simulated: all", story="in 5 s: rain", offsets=offsets)
    simulation = stated.state({name: bound_ns for name, _, bound_ns in NODES}, 1) if offsets else None
    return Round(FakeView().overview().model_copy(update={"simulation": simulation}), fleet_map())


def a_matrix(ranks: int = 3, steps: int = 4) -> LatenessMatrix:
    """Of step k the last rank is 10 ms late, rank 0 is 5 us late, and the others are not known; the clocks of step 1 do not compare."""
    late = array("i", [])
    for _ in range(steps):
        late.extend([5_000, *[-(2**31)] * (ranks - 2), 10_000_001])
    return LatenessMatrix(
        as_of_realtime_ns=1, lag_ns=0, job_id="job", job="job", ranks=list(range(ranks)),
        nodes=[f"node-{'ab'[rank % 2]}" for rank in range(ranks)], steps=list(range(100, 100 + steps)),
        begins_ms=[None] * steps, error_ns=[None if step == 1 else 20_000 for step in range(steps)], unit_ns=1,
        lateness=base64.b64encode(late.tobytes()).decode(),
    )  # fmt: skip


class FakeFeed(DaemonFeed):
    """A daemon that replies with what the test sets, and may fall silent."""

    def __init__(self, reply: Round) -> None:
        super().__init__("http://127.0.0.1:1/")
        self.reply = reply
        self.problem = ""
        self.asked: list[tuple[View, str]] = []
        self.matrix = a_matrix()

    def round(self) -> Round:
        if self.problem:
            raise Unreachable(self.problem)
        return self.reply

    def detail(self, view: View, name: str) -> Any:
        self.asked.append((view, name))
        if self.problem:
            raise Unreachable(self.problem)
        return as_json(FakeView().jobs()[0] if view == "jobs" else FakeView().node())

    def lateness(self, job_id: str) -> LatenessMatrix:
        return self.matrix


async def until(pilot: Any, holds: Callable[[], bool]) -> None:
    """Waits for the fact; a busy machine takes its time."""
    for _ in range(600):
        await pilot.pause(0.05)
        if holds():
            return
    raise AssertionError("it never held")


def detail(app: TopApp) -> str:
    """What the screen that a row opened shows."""
    printed = StringIO()
    for content in app.screen.query("#detail-content").results(Static):
        Console(file=printed, width=100).print(cast(RenderableType, content.content))
    return printed.getvalue()


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
        await until(pilot, lambda: set(feed.asked) == {("nodes", "other")})
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, DetailScreen))


async def test_a_node_s_forecast_names_the_operator_s_limit() -> None:
    """As `status` and the page do."""
    known = a_round()
    limits = ConfiguredLimits(node_bound_ns=1)
    headline = known.overview.headline.model_copy(update={"limits": limits})
    app = TopApp(FakeFeed(replace(known, overview=known.overview.model_copy(update={"headline": headline}))))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("2", "enter")
        await until(pilot, lambda: "above the limit of 1 ns, expires in" in detail(app))


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


async def test_a_jobs_lateness_is_a_map_that_the_keys_and_the_mouse_read() -> None:
    """The cursor begins at the newest step; its cell is said in words, and the ranks are sorted and filtered."""
    app = TopApp(FakeFeed(a_round()))
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: table(app, "jobs").row_count > 0)
        await pilot.press("3", "enter")
        await until(
            pilot, lambda: isinstance(app.screen, JobScreen) and app.screen.query_one(HeatView).heat is not None
        )
        heat = app.screen.query_one(HeatView)
        name = rows("jobs", a_round())[0].cells[0].plain
        assert str(app.screen.query_one("#as-of", Static).content).startswith(f"{name}: as of ")

        def cell() -> str:
            return str(app.screen.query_one("#cell", Static).content)

        await until(pilot, lambda: cell().startswith("rank 0 node-a, step 103: 5.00 us after the median rank"))
        assert cell().endswith("clocks' error 20.0 us; within it")
        await pilot.press("down", "down", "left", "left")
        await until(pilot, lambda: cell().startswith("rank 2 node-a, step 101: 10.0 ms after"))
        assert cell().endswith("the clocks do not compare")
        await pilot.press("s")
        await until(pilot, lambda: heat.order == [2, 0, 1])
        assert heat.port.row == 0
        await pilot.click(HeatView, offset=(1 + 22 + 3, 1))
        await until(pilot, lambda: cell().startswith("rank 0 node-a, step 103"))
        await pilot.press("slash", *"node-b", "enter")
        await until(pilot, lambda: heat.order == [1])
        await until(pilot, lambda: cell().startswith("rank 1 node-b, step 103: nothing is known"))
        await pilot.press("escape")
        await until(pilot, lambda: len(heat.order) == 3)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, JobScreen))


async def test_a_screen_that_a_row_opened_stays_live() -> None:
    """It shows the newest answer, and says when the daemon falls silent."""
    feed = FakeFeed(a_round())
    app = TopApp(feed)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("2", "enter")
        await until(pilot, lambda: len(feed.asked) >= 3)
        feed.problem = "no response within 5 s"
        await until(pilot, lambda: app.screen.has_class("silent"))
        assert "NO REPLY: everything is as of" in str(app.screen.query_one("#as-of", Static).content)


async def test_a_large_fleet_stays_readable() -> None:
    """The most urgent rows are shown and the others counted; the filter finds them, and the place in the list is kept."""
    many: list[tuple[str, Any, int | None]] = [(f"n{at:05}", "SYNCHRONIZED", 10_000 - at) for at in range(3_000)]
    feed = FakeFeed(replace(a_round(), map=FleetMap(published_realtime_ns=1, places={"": many})))
    app = TopApp(feed)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: len(names(app)) == MOST_ROWS)
        await until(pilot, lambda: text(app, "counted") == "500 of 3,000 rows; / filters")
        nodes = table(app, "nodes")
        nodes.scroll_to(y=200, animate=False)
        await until(pilot, lambda: nodes.scroll_y == 200)
        turned = [(name, status, 1 if name == "n00000" else bound_ns) for name, status, bound_ns in many]
        feed.reply = replace(feed.reply, map=FleetMap(published_realtime_ns=1, places={"": turned}))
        await until(pilot, lambda: names(app)[0] == "n00001")
        await until(pilot, lambda: nodes.scroll_y == 200)
        await pilot.press("slash", *"n02999")
        await until(pilot, lambda: names(app) == ["n02999"])


async def test_findings_are_on_the_screen() -> None:
    """Below the tables, and not below the screen's edge."""
    app = TopApp(FakeFeed(a_round()))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.query_one("#findings").region.height > 0)
        assert app.query_one("#findings").region.bottom <= app.query_one(Footer).region.y
        assert app.query_one("#counted").region.bottom <= app.query_one("#findings").region.y


def test_the_chain_leads_from_gnss_to_the_slow_rank() -> None:
    """A line for each group of nodes; what is not known of it is not made up."""
    overview = FakeView().overview()
    group, job = overview.chain[0], overview.jobs[0]
    master = overview.grandmasters[0].model_copy(
        update={"name": "gm-1", "gnss_state": "locked", "antenna": "ok", "reachable": True, "clock_state": "locked"}
    )
    chain = [
        group.model_copy(update={"grandmaster": "gm-1", "place": "hall-1", "nodes": 2, "without_bound": 0, "bound_ns": 31_200}),
        group.model_copy(update={"grandmaster": "", "place": "", "nodes": 1, "without_bound": 1, "bound_ns": None}),
    ]  # fmt: skip
    jobs = [job.model_copy(update={"job": "train", "world_size": 64, "straggler_rank": 7, "places": {"hall-1": 64}})]

    def lines(**its: Any) -> list[str]:
        masters = [master.model_copy(update=its)]
        changed = overview.model_copy(update={"grandmasters": masters, "chain": chain, "jobs": jobs})
        return [line.plain for line in chain_lines(Round(changed, fleet_map()))]

    unknown, known = lines()
    assert unknown == "no grandmaster -> 1 node  no bound"
    assert known == "GNSS locked -> gm-1 locked -> 2 nodes hall-1 +-31.2 us -> job train, 64 ranks: rank 7"
    assert lines(antenna="open", clock_state="holdover")[1].startswith("antenna open -> gm-1 holdover -> 2 nodes")
    assert lines(reachable=False, gnss_state=None)[1].startswith("GNSS not known -> gm-1 not reachable -> ")


def test_a_finding_is_shown_whole_or_not_at_all() -> None:
    """The first in any case: what is cut of its remedy cannot be done."""
    overview = FakeView().overview()
    finding = overview.findings[0].model_copy(update={"remedy": "check the antenna's cable " * 20})
    reply = replace(a_round(), overview=overview.model_copy(update={"findings": [finding] * 3}))

    assert [len(finding_lines(reply, 78, height)) for height in (1, 24, 100)] == [2, 4, 6]


async def test_what_a_screen_of_80_columns_cuts_is_marked() -> None:
    """No column is beyond the edge, and the findings keep their last line."""
    overview = FakeView().overview()
    finding = overview.findings[0].model_copy(update={"remedy": f"{'check the antenna ' * 20}and the sky"})
    app = TopApp(FakeFeed(replace(a_round(), overview=overview.model_copy(update={"findings": [finding]}))))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await pilot.press("3")
        await until(pilot, lambda: table(app, "jobs").row_count == 1)
        screen = ["".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()]

    assert any("llama-pretrain #1" in line and line.rstrip().endswith("…") for line in screen)
    assert "and the sky" in " ".join(" ".join(screen).split())


def test_the_widest_column_gives_way() -> None:
    """Down to its title, and then the next one; what fits is as it was."""
    row = ViewRow("gm", (Text("a-name-of-20-letters"), Text("ten-letter")), ())

    assert [cell.plain for cell in fitted([row], ("name", "followers"), 34)[0].cells] == [
        row.cells[0].plain,
        "ten-letter",
    ]
    assert [cell.plain for cell in fitted([row], ("name", "followers"), 26)[0].cells] == ["a-name-of-2…", "ten-letter"]
    assert [cell.plain for cell in fitted([row], ("name", "followers"), 5)[0].cells] == ["a-n…", "ten-lett…"]


def test_a_finding_shows_its_chain() -> None:
    """From the root cause to what suffers, and the evidence where there is no chain."""
    overview = FakeView().overview()
    finding = overview.findings[0]
    steps = [ChainStep(code="x", text=text) for text in ("antenna open", "gm-1 holdover", "job train")]
    with_chain = overview.model_copy(update={"findings": [finding.model_copy(update={"chain": steps})]})
    without = overview.model_copy(update={"findings": [finding.model_copy(update={"chain": []})]})

    assert "antenna open -> gm-1 holdover -> job train" in finding_lines(Round(with_chain, fleet_map()), 98, 6)[0].plain
    assert finding.evidence in finding_lines(Round(without, fleet_map()), 98, 6)[0].plain


async def test_a_simulation_is_labelled() -> None:
    """What is simulated, and the newest line of its story; a real fleet has neither."""
    assert [line.plain for line in story_lines(a_round(node_a=1))] == ["simulated: all", "story: in 5 s: rain"]
    assert story_lines(a_round()) == []


async def test_a_reply_that_comes_after_the_end_is_ignored() -> None:
    """Its screen is gone, or going; so is the reply that comes before there is one."""
    app = TopApp(FakeFeed(a_round()))
    app._fail("early")
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: bool(names(app)))
        await app.screen_stack[0].query("#banner, #findings").remove()
        app._fail("late")
        app._receive(a_round(), {view: rows(view, a_round()) for view in VIEWS})
    app._fail("too late")


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


@pytest.mark.parametrize(
    ("verdict", "text"), [("within", "All agree (limit 3 us), as of "), ("exceeded", "All agree, as of ")]
)
def test_the_banner_names_the_limit_once(verdict: str, text: str) -> None:
    """The text of a headline whose limit is exceeded names it already."""
    reply = a_round()
    limits = ConfiguredLimits(fleet_alignment_ns=3_000)
    headline = reply.overview.headline.model_copy(update={"limits": limits, "verdict": verdict, "text": "All agree"})
    overview = reply.overview.model_copy(update={"headline": headline})

    assert banner(replace(reply, overview=overview), 100.0, "", 100.0)[0].startswith(text)


def test_the_truth_stands_beside_the_bound() -> None:
    """Where it is known, as in the demo; a bound that does not have it is named loudly."""
    made = {row.name: row.cells[-1].plain for row in rows("nodes", a_round(node_a=-850, node_b=9_000, node_c=5))}

    assert made == {
        "node-a": "-850 ns, inside the bound",
        "node-b": "9.00 us, OUTSIDE the bound",
        "node-c": "5 ns",
        "other": "",
    }
    assert truth_text(None).plain == ""


def test_every_view_has_a_cell_and_a_value_for_each_column() -> None:
    """So that any column can be sorted, also where values are unknown."""
    from timesyncd.cli._top_data import TITLES

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
    assert (
        capsys.readouterr().err
        == "timesyncd top: the tui extra is missing: in timesyncd's source folder, pip install '.[tui]'\n"
    )


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
