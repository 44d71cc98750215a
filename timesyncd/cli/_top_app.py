"""
`timesyncd top`: the views as tables, in Textual. It asks the daemon once a second in a thread, so that no slow reply holds a key up.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from rich.console import Group
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from timesyncd.cli._tables import grandmaster_tables, job_tables, node_tables
from timesyncd.cli._top_data import (
    TITLES,
    VIEWS,
    DaemonFeed,
    Round,
    View,
    ViewRow,
    banner,
    finding_lines,
    rows,
    visible,
)
from timesyncd.errors import Unreachable
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, NodeState

EVERY_S = 1.0


class DetailScreen(ModalScreen[None]):
    """All of one node, grandmaster or job, until it is closed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,backspace", "dismiss", "Back")]
    DEFAULT_CSS = "DetailScreen > VerticalScroll { background: $surface; }"

    def __init__(self, content: Any) -> None:
        super().__init__()
        self._content = content

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="detail"):
            yield Static(self._content)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#detail").focus()


class TopApp(App[None]):
    """The tables of one daemon's fleet."""

    TITLE = "timesyncd top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #banner { height: auto; padding: 0 1; text-style: bold; }
    #story { height: auto; padding: 0 1; color: $accent; }
    #findings { height: auto; max-height: 8; padding: 0 1; }
    #filter { display: none; }
    #filter.open { display: block; }
    DataTable { height: 1fr; }
    .silent { color: $text-disabled; }
    .silent #banner { background: $error; color: $text; }
    .silent DataTable { tint: $background 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("1", "view('fleet')", "Fleet"),
        Binding("2", "view('nodes')", "Nodes"),
        Binding("3", "view('jobs')", "Jobs"),
        Binding("4", "view('grandmasters')", "GMs"),
        Binding("s", "sort", "Sort by the next column"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "clear_filter", "Clear", show=False),
    ]

    def __init__(self, feed: DaemonFeed) -> None:
        super().__init__()
        self._feed = feed
        self._round: Round | None = None
        self._received_s: float | None = None
        self._error = ""
        self._sort: dict[View, int | None] = dict.fromkeys(VIEWS)
        self._descending: dict[View, bool] = dict.fromkeys(VIEWS, False)
        self._filter = ""
        self._shown: dict[View, list[ViewRow]] = {view: [] for view in VIEWS}

    def compose(self) -> ComposeResult:
        yield Static("asking the daemon", id="banner")
        yield Static("", id="story")
        yield Input(placeholder="a part of any cell; Enter keeps it, Escape clears it", id="filter")
        with TabbedContent(initial="fleet"):
            for view in VIEWS:
                with TabPane(view, id=view):
                    yield DataTable[Any](id=f"table-{view}", cursor_type="row", zebra_stripes=True)
        yield Static("", id="findings")
        yield Footer()

    def on_mount(self) -> None:
        for view in VIEWS:
            self._table(view).add_columns(*TITLES[view])
        self._table("fleet").focus()
        self.set_interval(EVERY_S, self._ask)
        self._ask()

    @property
    def view(self) -> View:
        active = self.query_one(TabbedContent).active
        return next(view for view in VIEWS if view == active)

    def _table(self, view: View) -> DataTable[Any]:
        return self.query_one(f"#table-{view}", DataTable)

    def _ask(self) -> None:
        """A round that is still under way is not asked for again."""
        if not any(worker.group == "ask" and worker.is_running for worker in self.workers):
            self.run_worker(self._ask_once, thread=True, group="ask", exit_on_error=False)
        self._show_banner()

    def _ask_once(self) -> None:
        try:
            found, error = self._feed.round(), ""
        except Unreachable as problem:
            found, error = None, str(problem)
        self.call_from_thread(self._received, found, error)

    def _received(self, found: Round | None, error: str) -> None:
        self._error = error
        if found is not None:
            self._round, self._received_s = found, time.monotonic()
            self._refresh()
        self._show_banner()

    def _show_banner(self) -> None:
        text, silent = banner(self._round, self._received_s, self._error, time.monotonic())
        self.query_one("#banner", Static).update(text)
        self.query_one("#story", Static).update(self._feed.story())
        self.screen_stack[0].set_class(silent, "silent")

    def _refresh(self) -> None:
        if self._round is None:
            return
        for view in VIEWS:
            self._refresh_view(view, self._round)
        self.query_one("#findings", Static).update(Group(*finding_lines(self._round)))

    def _refresh_view(self, view: View, round: Round) -> None:
        """The cursor stays on its row's name, wherever that is now."""
        table = self._table(view)
        before = self._shown[view]
        at = before[table.cursor_row].name if 0 <= table.cursor_row < len(before) else None
        shown = visible(rows(view, round), self._sort[view], self._descending[view], self._filter)
        self._shown[view] = shown
        table.clear()
        for row in shown:
            table.add_row(*row.cells)
        names = [row.name for row in shown]
        if at in names:
            table.move_cursor(row=names.index(at))

    def action_view(self, view: View) -> None:
        self.query_one(TabbedContent).active = view
        self._table(view).focus()

    def action_sort(self) -> None:
        at = self._sort[self.view]
        self._sort_by(0 if at is None else (at + 1) % len(TITLES[self.view]))

    def action_reverse(self) -> None:
        self._descending[self.view] = not self._descending[self.view]
        self._refresh()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on a title sorts by that column, and again reverses."""
        if self._sort[self.view] == event.column_index:
            self.action_reverse()
        else:
            self._sort_by(event.column_index)

    def _sort_by(self, column: int) -> None:
        self._sort[self.view] = column
        self._descending[self.view] = False
        self._refresh()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("open")
        box.focus()

    def action_clear_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.value = ""
        box.remove_class("open")
        self._table(self.view).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._refresh()

    def on_input_submitted(self) -> None:
        self._table(self.view).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """A place leads to its nodes; everything else to all that is known of it."""
        shown = self._shown[self.view]
        if not 0 <= event.cursor_row < len(shown):
            return
        row = shown[event.cursor_row]
        if self.view == "fleet":
            self.query_one("#filter", Input).value = row.name
            self.query_one("#filter").add_class("open")
            self.action_view("nodes")
            return
        self.run_worker(lambda: self._fetch_detail(self.view, row.name), thread=True, group="detail")

    def _fetch_detail(self, view: View, name: str) -> None:
        try:
            content: Any = Group(*detail_parts(view, self._feed.detail(view, name)))
        except Unreachable as problem:
            content = f"{name}: {problem}"
        self.call_from_thread(self.push_screen, DetailScreen(content))


def detail_parts(view: View, answer: Any) -> list[Any]:
    """The tables that `timesyncd status NAME` prints."""
    if view == "grandmasters":
        return list(grandmaster_tables(GrandmasterState.model_validate(answer)))
    if view == "jobs":
        return list(job_tables(JobState.model_validate(answer)))
    return list(node_tables(NodeState.model_validate(answer)))
