"""
`timesyncd top`: the views as tables, in Textual. It asks the daemon once a second in a thread, so that no slow reply holds a key up.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from timesyncd.cli._top_data import (
    MOST_ROWS,
    TITLES,
    VIEWS,
    DaemonFeed,
    Round,
    View,
    ViewRow,
    banner,
    counted,
    finding_lines,
    fitted,
    rows,
    story_lines,
    summary,
    visible,
)
from timesyncd.cli._top_detail import DetailScreen, JobScreen
from timesyncd.errors import SourceError

EVERY_S = 1.0

SCROLLBAR_WIDTH = 2


class RowTable(DataTable[Any]):
    """A table whose key to open a row is among those below it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Open")]


class TopApp(App[None]):
    """The tables of one daemon's fleet."""

    TITLE = "timesyncd top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #banner { height: auto; padding: 0 1; text-style: bold; }
    #story { height: auto; padding: 0 1; color: $accent; }
    #findings { height: auto; padding: 0 1; }
    #filter { display: none; }
    #filter.open { display: block; }
    #counted { height: auto; padding: 0 1; color: $text-muted; }
    TabbedContent, ContentSwitcher, TabPane { height: 1fr; }
    DataTable { height: 1fr; }
    #table-fleet { height: auto; max-height: 50%; }
    #summary-scroll { height: 1fr; padding: 1 1 0 1; }
    .silent { color: $text-disabled; }
    .silent #banner { background: $error; color: $text; }
    .silent DataTable, .silent #summary, .silent #findings { tint: $background 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("1", "view('fleet')", "Fleet"),
        Binding("2", "view('nodes')", "Nodes"),
        Binding("3", "view('jobs')", "Jobs"),
        Binding("4", "view('grandmasters')", "GMs"),
        Binding("s", "sort", "Sort"),
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
        self._rows: dict[View, list[ViewRow]] = {view: [] for view in VIEWS}
        self._shown: dict[View, list[ViewRow]] = {view: [] for view in VIEWS}

    def compose(self) -> ComposeResult:
        yield Static(f"asking the daemon at {self._feed.page}", id="banner")
        yield Static("", id="story")
        yield Input(placeholder="a part of any cell; Enter keeps it, Escape clears it", id="filter")
        with TabbedContent(initial="fleet"):
            for view in VIEWS:
                with TabPane(view, id=view):
                    yield RowTable(id=f"table-{view}", cursor_type="row", zebra_stripes=True)
                    if view == "fleet":
                        with VerticalScroll(id="summary-scroll"):
                            yield Static("", id="summary")
        yield Static("", id="counted")
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
        active = self.screen_stack[0].query_one(TabbedContent).active
        return next(view for view in VIEWS if view == active)

    def _table(self, view: View) -> DataTable[Any]:
        return self.screen_stack[0].query_one(f"#table-{view}", DataTable)

    def _ask(self) -> None:
        """A round that is still under way is not asked for again."""
        if not any(worker.group == "ask" and worker.is_running for worker in self.workers):
            self.run_worker(self._ask_once, thread=True, group="ask", exit_on_error=False)
        self._show_banner()

    def _ask_once(self) -> None:
        """In a thread, with the rows: those of 10,000 nodes take a while."""
        try:
            found = self._feed.round()
        except SourceError as problem:
            self.call_from_thread(self._fail, str(problem))
            return
        self.call_from_thread(self._receive, found, {view: rows(view, found) for view in VIEWS})

    def _fail(self, error: str) -> None:
        self._error = error
        self._show_banner()

    def _receive(self, found: Round, made: dict[View, list[ViewRow]]) -> None:
        self._error = ""
        self._round, self._rows, self._received_s = found, made, time.monotonic()
        self._refresh()
        self._show_banner()

    @property
    def _is_shown(self) -> bool:
        """Not before the screen has its parts, and not while it is taken down: a reply may come then."""
        return self.is_running and bool(self.screen_stack) and bool(self.screen_stack[0].query("#findings"))

    def _show_banner(self) -> None:
        if not self._is_shown:
            return
        text, silent = banner(self._round, self._received_s, self._error, time.monotonic())
        first = self.screen_stack[0]
        first.query_one("#banner", Static).update(Text(f"{text}\n{self._feed.page}"))
        first.set_class(silent, "silent")

    def _refresh(self) -> None:
        if self._round is None or not self._is_shown:
            return
        for view in VIEWS:
            self._refresh_view(view)
        first = self.screen_stack[0]
        first.query_one("#story", Static).update(Group(*story_lines(self._round)))
        findings = finding_lines(self._round, self.size.width - 2, self.size.height // 5)
        first.query_one("#findings", Static).update(Group(*findings))
        first.query_one("#summary", Static).update(summary(self._round, self._rows))

    def _refresh_view(self, view: View) -> None:
        """The cursor stays on its row's name, wherever that is now, and what is seen stays in its place."""
        table = self._table(view)
        before = self._shown[view]
        matching = visible(self._rows[view], self._sort[view], self._descending[view], self._filter)
        shown = self._shown[view] = fitted(matching[:MOST_ROWS], TITLES[view], self.size.width - SCROLLBAR_WIDTH)
        if view == self.view:
            self.screen_stack[0].query_one("#counted", Static).update(counted(len(shown), len(matching)))
        if [row.name for row in before] == [row.name for row in shown]:
            _update_cells(table, before, shown)
            return
        at = before[table.cursor_row].name if 0 <= table.cursor_row < len(before) else None
        scrolled_y = table.scroll_y
        table.clear()
        for row in shown:
            table.add_row(*row.cells)
        names = [row.name for row in shown]
        if at in names:
            table.move_cursor(row=names.index(at), scroll=False)
        table.scroll_to(y=scrolled_y, animate=False)

    def action_view(self, view: View) -> None:
        self.query_one(TabbedContent).active = view
        self._table(view).focus()

    def on_tabbed_content_tab_activated(self) -> None:
        self._refresh()

    def on_resize(self) -> None:
        self._refresh()

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
        screen = JobScreen if self.view == "jobs" else DetailScreen
        limit_ns = None if self._round is None else self._round.overview.headline.limits.node_bound_ns
        self.push_screen(screen(self._feed, self.view, row.name, row.cells[0].plain, limit_ns))


def _update_cells(table: DataTable[Any], before: list[ViewRow], shown: list[ViewRow]) -> None:
    """Of the same rows only what has changed, so that nothing flickers."""
    for at, (old, new) in enumerate(zip(before, shown, strict=True)):
        for column, (cell, changed) in enumerate(zip(old.cells, new.cells, strict=True)):
            if cell != changed or cell.style != changed.style:
                table.update_cell_at(Coordinate(at, column), changed, update_width=True)
