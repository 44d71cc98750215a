"""A node's error budget as tables of 80 columns. Strings that came over the network are printed as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from timesyncd.bound import STAT_PROBABILITY
from timesyncd.cli.budget import (
    REFERENCES,
    BudgetLine,
    Selection,
    current_bound_lines,
    forecast_text,
    growth_lines,
    node_forecast,
    reference_lines,
    selection_of,
    term_lines,
)
from timesyncd.cli.render import explained_source, followed_text, headline, plain_text, source_text
from timesyncd.messages.node import OK, NodeState, SourceState
from timesyncd.units import duration_text

SHARE = f"{STAT_PROBABILITY:.1%}"


def budget_tables(node: NodeState) -> list[RenderableType]:
    """The summary, then the terms and sums at the sample, their growth, the bounds now, and the sources."""
    parts: list[RenderableType] = [_summary(node)]
    if node.age_ns is not None:
        at_sample = [*term_lines(node), *reference_lines(node)]
        later = f"now, {duration_text(node.age_ns)} later"
        for title, lines in (
            ("at the sample", at_sample),
            ("growth per second", growth_lines(node)),
            (later, current_bound_lines(node)),
        ):
            parts += [Text(), _table(title, lines)]
    if node.sources:
        parts += [Text("\nsources", "bold"), _sources(node)]
    return parts


def _summary(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    table.add_row(plain_text(node.node, "bold"), headline(node))
    if node.reason:
        table.add_row("reason", plain_text(node.reason))
    for line in current_bound_lines(node):
        if line.name != "parent" and line.hard_ns is not None:
            table.add_row("within", _within(line, followed_text(node) if line.name == "grandmaster" else "UTC"))
    if (expected := node_forecast(node)) is not None:
        lasts, _, expires = forecast_text(expected, len(expected.exceeds)).rpartition(", ")
        text = f"without new samples: {lasts},\n{expires}" if lasts else f"without new samples: {expires}"
        table.add_row("forecast", text)
    return table


def _within(line: BudgetLine, reference: str) -> Text:
    share = "" if line.stat_ns is None else f" ({SHARE}: +-{duration_text(line.stat_ns)})"
    return Text.assemble((f"+-{duration_text(line.hard_ns)}", "bold"), f"{share} of ", plain_text(reference))


def _table(title: str, lines: Sequence[BudgetLine]) -> RenderableType:
    """Names of the terms as in the message, with spaces; sums are bold. A reason is printed once."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(plain_text(title, "bold"), no_wrap=True, min_width=21)
    table.add_column("", width=34)
    for heading in ("hard", SHARE):
        table.add_column(Text(heading, "dim"), justify="right", no_wrap=True, min_width=8)
    printed = OK
    for line in lines:
        is_sum = line.name in REFERENCES
        is_unknown = is_sum and line.hard_ns is None
        what = _unknown_text(line, printed) if is_unknown else line.what
        printed = line.reason_code if is_unknown else printed
        numbers = [
            Text("" if ns is None else duration_text(ns), "bold" if is_sum else "")
            for ns in (line.hard_ns, line.stat_ns)
        ]
        name = plain_text(line.name.replace("_", " "), "bold" if is_sum else "")
        table.add_row(name, plain_text(what, "yellow" if is_unknown else "dim"), *numbers)
    return table


def _unknown_text(line: BudgetLine, printed: str) -> str:
    """`printed`: the code of the reason that the line above has printed."""
    return f"unknown: {line.what}" if line.what and line.reason_code != printed else "unknown"


def _sources(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    explained = explained_source(node)
    for source in node.sources:
        selection, interval = selection_of(source, node), _interval_text(source)
        more = [Text(f"\n{interval}", "dim")] if interval else []
        if selection is not None:
            name, style = _SELECTIONS[selection]
            more.append(Text(f"; {name}" if interval else f"\n{name}", style))
        text = source_text(source, with_reason=source is not explained)
        table.add_row(plain_text(source.name), Text.assemble(text, *more))
    return table


_SELECTIONS: dict[Selection, tuple[str, str]] = {
    Selection.TRUECHIMER: ("truechimer", "dim"),
    Selection.FALSETICKER: ("FALSETICKER", "bold red"),
    Selection.CONTRADICTED: ("CONTRADICTED", "bold red"),
}


def _interval_text(source: SourceState) -> str:
    """The bound on the error against UTC by this source alone, at its sample; empty: unknown."""
    bound_ns = None if source.utc is None else source.utc.bound_ns
    return "" if bound_ns is None else f"UTC +-{duration_text(bound_ns)} by this source alone"
