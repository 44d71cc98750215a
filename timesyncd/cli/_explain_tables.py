"""A node's budget as tables of 80 columns. What came over a wire is shown as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from timesyncd.bound import STAT_PROBABILITY
from timesyncd.cli.budget import (
    REFERENCES,
    BudgetLine,
    current_bound_lines,
    forecast_text,
    growth_lines,
    node_forecast,
    reference_lines,
    selection_of,
    term_lines,
)
from timesyncd.cli.render import followed_text, headline, plain_text, source_text
from timesyncd.messages.node import NodeState, SourceState
from timesyncd.units import duration_text

SHARE = f"{STAT_PROBABILITY:.1%}"


def budget_tables(node: NodeState) -> list[RenderableType]:
    """How well and until when; then why: terms, sums, growth, the bounds now, and the sources."""
    parts: list[RenderableType] = [_story(node)]
    if node.age_ns is not None:
        at_sample = [*term_lines(node), *reference_lines(node)]
        later = f"now, {duration_text(node.age_ns)} later"
        for title, lines in (
            ("at the sample", at_sample),
            ("growth a second", growth_lines(node)),
            (later, current_bound_lines(node)),
        ):
            parts += [Text(), _table(title, lines)]
    if node.sources:
        parts += [Text("\nsources", "bold"), _sources(node)]
    return parts


def _story(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    table.add_row(plain_text(node.node, "bold"), headline(node))
    if node.reason:
        table.add_row("why not", plain_text(node.reason))
    for line in current_bound_lines(node):
        if line.name != "parent" and line.hard_ns is not None:
            table.add_row("within", _within(line, followed_text(node) if line.name == "grandmaster" else "UTC"))
    if (expected := node_forecast(node)) is not None:
        table.add_row("if silent", forecast_text(expected, len(expected.leaves)).replace("; ", "\n"))
    return table


def _within(line: BudgetLine, whom: str) -> Text:
    share = "" if line.stat_ns is None else f" ({SHARE}: +-{duration_text(line.stat_ns)})"
    return Text.assemble((f"+-{duration_text(line.hard_ns)}", "bold"), f"{share} of ", plain_text(whom))


def _table(title: str, lines: Sequence[BudgetLine]) -> RenderableType:
    """Names as in the message, with spaces; sums stand out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(plain_text(title, "bold"), no_wrap=True, min_width=21)
    table.add_column("", width=34)
    for heading in ("hard", SHARE):
        table.add_column(Text(heading, "dim"), justify="right", no_wrap=True, min_width=8)
    told = ""
    for line in lines:
        is_sum = line.name in REFERENCES
        is_unknown = is_sum and line.hard_ns is None
        what = _unknown(line.what, told) if is_unknown else line.what
        told = line.what if is_unknown else told
        numbers = [
            Text("" if ns is None else duration_text(ns), "bold" if is_sum else "")
            for ns in (line.hard_ns, line.stat_ns)
        ]
        name = plain_text(line.name.replace("_", " "), "bold" if is_sum else "")
        table.add_row(name, plain_text(what, "yellow" if is_unknown else "dim"), *numbers)
    return table


def _unknown(why: str, told: str) -> str:
    """The reason is said once."""
    return f"unknown: {why}" if why and why != told else "unknown"


def _sources(node: NodeState) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, max_width=20, overflow="ellipsis")
    for source in node.sources:
        part, interval = selection_of(source, node), _interval(source)
        more = [Text(f"\n{interval}", "dim")] if interval else []
        if part:
            more.append(Text(f"; {part}" if interval else f"\n{part}", "bold red" if part.isupper() else "dim"))
        table.add_row(plain_text(source.name), Text.assemble(source_text(source, node.reason), *more))
    return table


def _interval(source: SourceState) -> str:
    """How far the clock may be off UTC by this source alone, at its sample."""
    known = source.utc is not None and source.utc.bound_ns is not None
    return f"by itself UTC +-{duration_text(source.utc.bound_ns)}" if source.utc and known else ""
