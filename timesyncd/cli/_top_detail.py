"""The screens of `timesyncd top` that a row opens: all of one node, grandmaster or job, live until they are closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Footer, Input, Static

from timesyncd.cli._tables import grandmaster_tables, job_tables, node_tables
from timesyncd.cli._top_data import DaemonFeed, View, staleness
from timesyncd.cli._top_heat import (
    LABEL_WIDTH,
    LEGEND,
    Heat,
    HeatPort,
    cell_text,
    follow,
    heat_of,
    heat_text,
    ordered,
)
from timesyncd.errors import SourceError
from timesyncd.messages.jobs import JobState
from timesyncd.messages.node import GrandmasterState, NodeState

EVERY_S = 1.0

#: The heat map shows so many ranks at once; more are reached by its cursor.
MOST_RANKS = 16


def detail_parts(view: View, answer: Any, node_limit_ns: int | None) -> list[Any]:
    """The tables that `timesyncd status NAME` prints."""
    if view == "grandmasters":
        return list(grandmaster_tables(GrandmasterState.model_validate(answer)))
    if view == "jobs":
        return list(job_tables(JobState.model_validate(answer)))
    return list(node_tables(NodeState.model_validate(answer), node_limit_ns))


class DetailScreen(ModalScreen[None]):
    """All of one node, grandmaster or job, asked again each second until it is closed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,backspace", "dismiss", "Back")]
    DEFAULT_CSS = """
    DetailScreen { background: $surface; }
    DetailScreen > #as-of { height: auto; padding: 0 1; text-style: bold; }
    DetailScreen > #detail { height: 1fr; padding: 0 1; }
    DetailScreen.silent > #as-of { background: $error; color: $text; }
    DetailScreen.silent > #detail { tint: $background 60%; }
    """

    def __init__(
        self, feed: DaemonFeed, view: View, name: str, title: str = "", node_limit_ns: int | None = None
    ) -> None:
        """`title` is what the screen is called, by default the name that is asked for. `node_limit_ns`: the operator's limit of a bound."""
        super().__init__()
        self.feed, self.detail_view, self.detail_name = feed, view, name
        self.detail_title = title or name
        self.node_limit_ns = node_limit_ns
        self._received_s: float | None = None
        self._received_at = ""
        self._error = ""

    def compose(self) -> ComposeResult:
        yield Static("asking the daemon", id="as-of")
        yield from self.compose_above()
        with VerticalScroll(id="detail"):
            yield Static("", id="detail-content")
        yield Footer()

    def compose_above(self) -> ComposeResult:
        """What is shown above the tables."""
        yield from ()

    #: What has the focus at first.
    FIRST: ClassVar[str] = "#detail"

    def on_mount(self) -> None:
        self.query_one(self.FIRST).focus()
        self.set_interval(EVERY_S, self._ask)
        self._ask()

    def _ask(self) -> None:
        """A request that is still under way is not repeated."""
        if not any(worker.group == "detail" and worker.is_running for worker in self.workers):
            self.run_worker(self._ask_once, thread=True, group="detail", exit_on_error=False)
        self._show_as_of()

    def _ask_once(self) -> None:
        try:
            show, error = self.fetch(), ""
        except SourceError as problem:
            show, error = None, str(problem)
        self.app.call_from_thread(self._receive, show, error)

    def fetch(self) -> Callable[[], None]:
        """Asks the daemon, in a thread; returns what shows the answers. Raises SourceError."""
        answer = self.feed.detail(self.detail_view, self.detail_name)
        content = Group(*detail_parts(self.detail_view, answer, self.node_limit_ns))
        return lambda: self.query_one("#detail-content", Static).update(content)

    def _receive(self, show: Callable[[], None] | None, error: str) -> None:
        if not self.is_attached or not self.query("#detail-content"):
            return
        self._error = error
        if show is not None:
            self._received_s, self._received_at = time.monotonic(), time.strftime("%H:%M:%S UTC", time.gmtime())
            show()
        self._show_as_of()

    def _show_as_of(self) -> None:
        age_s = None if self._received_s is None else time.monotonic() - self._received_s
        text, is_silent = staleness(self._received_at, age_s, self._error)
        self.query_one("#as-of", Static).update(Text(f"{self.detail_title}: {text}"))
        self.set_class(is_silent, "silent")


class HeatView(Widget, can_focus=True):
    """Lateness, ranks by steps: the arrows, the mouse and its wheel move the cursor, whose cell is said in words."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1, 0)", "Rank", show=False),
        Binding("down", "move(1, 0)", "Rank", show=False),
        Binding("left", "move(0, -1)", "Step", show=False),
        Binding("right", "move(0, 1)", "Step", show=False),
        Binding("pageup", "move(-10, 0)", show=False),
        Binding("pagedown", "move(10, 0)", show=False),
        Binding("home", "move(0, -100000)", show=False),
        Binding("end", "move(0, 100000)", show=False),
    ]
    DEFAULT_CSS = "HeatView { height: auto; padding: 0 1; } HeatView:focus { background: $boost; }"

    class Moved(Message):
        """The cursor is on another cell, or the cell has another value; `text` says it."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__(id="heat")
        self.heat: Heat | None = None
        self.order: list[int] = []
        self.by_lateness = False
        self.part = ""
        #: The cursor follows the newest step until it is moved away from it.
        self.port = HeatPort(0, 0, 0, 1 << 30)

    def set_heat(self, heat: Heat) -> None:
        """The cursor stays on its step while that is there, and on the newest one where it was there."""
        before = self.heat
        port = self.port
        if before is not None and before.steps:
            is_newest = port.column >= len(before.steps) - 1
            gone = 0 if is_newest else before.steps[port.column]
            column = next((at for at, step in enumerate(heat.steps) if step >= gone), 0)
            port = replace(port, column=(1 << 30) if is_newest else column, first_column=port.first_column)
        self.heat, self.port = heat, port
        self.rearrange()

    def rearrange(self) -> None:
        """After the sort or the filter has changed: the cursor stays on its rank."""
        if self.heat is None:
            return
        at = self.order[self.port.row] if self.port.row < len(self.order) else None
        self.order = ordered(self.heat, self.by_lateness, self.part)
        row = self.order.index(at) if at in self.order else 0
        self._move_to(row, self.port.column)
        self.refresh(layout=True)

    def action_move(self, rows: int, columns: int) -> None:
        self._move_to(self.port.row + rows, self.port.column + columns)

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is not None and at.y < self._height and at.x >= LABEL_WIDTH:
            self._move_to(self.port.first_row + at.y, self.port.first_column + at.x - LABEL_WIDTH)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(3, 0)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-3, 0)

    def on_resize(self) -> None:
        self._move_to(self.port.row, self.port.column)

    @property
    def _height(self) -> int:
        return max(1, min(MOST_RANKS, len(self.order)))

    @property
    def _width(self) -> int:
        return max(1, self.content_size.width - LABEL_WIDTH)

    def _move_to(self, row: int, column: int) -> None:
        if self.heat is None:
            return
        moved = replace(self.port, row=row, column=column)
        self.port = follow(moved, len(self.order), len(self.heat.steps), self._height, self._width)
        self.post_message(self.Moved(cell_text(self.heat, self.order, self.port)))
        self.refresh()

    def get_content_height(self, *_: object) -> int:
        return self._height + 1

    def render(self) -> Text:
        if self.heat is None:
            return Text("lateness: asking the daemon", "dim")
        return heat_text(self.heat, self.order, self.port, self._height, self._width)


class JobScreen(DetailScreen):
    """A job: its lateness, ranks by steps, above its tables."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter"),
        Binding("tab", "app.focus_next", "Map or tables"),
    ]
    DEFAULT_CSS = """
    JobScreen > #cell { height: auto; max-height: 2; padding: 0 1; text-style: bold; }
    JobScreen > #legend { height: auto; padding: 0 1; }
    JobScreen > #rank-filter { display: none; }
    JobScreen > #rank-filter.open { display: block; }
    JobScreen.silent > #heat { tint: $background 60%; }
    """

    FIRST = "#heat"

    def compose_above(self) -> ComposeResult:
        yield Input(placeholder="a part of a rank or its node; Enter keeps it, Escape clears it", id="rank-filter")
        yield HeatView()
        yield Static("", id="cell")
        yield Static(LEGEND, id="legend")

    def fetch(self) -> Callable[[], None]:
        show_tables = super().fetch()
        try:
            heat, problem = heat_of(self.feed.lateness(self.detail_name)), ""
        except SourceError as error:
            heat, problem = None, str(error)

        def show() -> None:
            show_tables()
            if heat is not None:
                self.query_one(HeatView).set_heat(heat)
            elif self.query_one(HeatView).heat is None:
                self.query_one("#cell", Static).update(Text(f"no lateness: {problem}"))

        return show

    def on_heat_view_moved(self, event: HeatView.Moved) -> None:
        self.query_one("#cell", Static).update(Text(event.text))

    def action_sort(self) -> None:
        heat = self.query_one(HeatView)
        heat.by_lateness = not heat.by_lateness
        heat.rearrange()

    def action_filter(self) -> None:
        box = self.query_one("#rank-filter", Input)
        box.add_class("open")
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        heat = self.query_one(HeatView)
        heat.part = event.value
        heat.rearrange()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(HeatView).focus()

    async def action_dismiss(self, result: None = None) -> None:
        """Escape clears the filter first."""
        box = self.query_one("#rank-filter", Input)
        if box.has_class("open"):
            box.value = ""
            box.remove_class("open")
            self.query_one(HeatView).focus()
            return
        await super().action_dismiss(result)
