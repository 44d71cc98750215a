"""Check this node's timekeeping, and print what to do about each fault."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, add_url_argument

if TYPE_CHECKING:
    from rich.console import RenderableType

    from timesyncd.cli.doctor.checks import CheckResult, State


EXAMPLES = (
    "timesyncd doctor",
    "timesyncd doctor --url hub-1:8319 --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    add_url_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: Namespace) -> int:
    """0 if nothing has to be done, else 1. Reads and asks, and changes nothing."""
    import json
    from dataclasses import asdict

    from rich.console import Console, Group

    from timesyncd.cli.doctor.checks import checks, exit_status
    from timesyncd.cli.doctor.facts import gather

    results = checks(gather(args))
    if args.json:
        to_do = sum(result.state == "to_do" for result in results)
        print(json.dumps({"to_do": to_do, "checks": [asdict(result) for result in results]}))
    else:
        Console(highlight=False).print(Group(*report(results)), crop=False)
    return exit_status(results)


def report(results: list[CheckResult]) -> list[RenderableType]:
    """One line per check. The most urgent groups and checks are last, then a summary."""
    from rich.text import Text

    from timesyncd.cli.doctor.checks import RANKS

    groups: dict[str, list[CheckResult]] = {}
    for result in results:
        groups.setdefault(result.group, []).append(result)
    parts: list[RenderableType] = []
    for name, members in sorted(groups.items(), key=lambda item: max(RANKS[each.rank] for each in item[1])):
        parts += [Text(name, "bold"), *_lines(sorted(members, key=lambda each: RANKS[each.rank]))]
    return [*parts, Text(), _summary(results)]


_STATE_TEXTS: dict[State, str] = {"ok": "ok", "to_do": "TO DO", "not_checked": "not checked"}


#: A check's name stays whole up to the longest id of a finding, and wraps beyond it.
_NAME_WIDTHS = (16, 28)


def _lines(results: list[CheckResult]) -> Iterator[RenderableType]:
    """A command is a line that is neither cut nor wrapped, so that it can be copied."""
    from rich.text import Text

    from timesyncd.cli.render import plain_text

    shortest, longest = _NAME_WIDTHS
    width = min(longest, max(shortest, *(len(each.check) for each in results)))
    for result in results:
        yield _table(result, width)
        if result.state == "to_do":
            do = Text.assemble(" " * 18, f"{'do':<{width}}  ", plain_text(result.command), style="bold")
            do.no_wrap, do.overflow = True, "ignore"
            yield do


def _table(result: CheckResult, width: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from timesyncd.cli.render import SEVERITIES, plain_text

    style = SEVERITIES[result.severity] if result.state == "to_do" else "" if result.state == "ok" else "dim"
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, width=16)
    table.add_column(width=width, overflow="fold")
    table.add_column(overflow="fold")
    table.add_row(
        Text(f"  {_STATE_TEXTS[result.state]}", style), plain_text(result.check), plain_text(result.what, style)
    )
    if result.state == "to_do":
        table.add_row("", "", plain_text(result.why, "dim"))
    return table


def _summary(results: list[CheckResult]) -> RenderableType:
    from rich.text import Text

    counts = {state: sum(result.state == state for result in results) for state in _STATE_TEXTS}
    rest = f"{counts['ok']} checks passed, {counts['not_checked']} not checked"
    if not counts["to_do"]:
        return Text(f"nothing to do: {rest}", "green")
    things = "1 thing" if counts["to_do"] == 1 else f"{counts['to_do']} things"
    return Text(f"{things} to do; {rest}", "bold")
