"""What is wrong with this node's timekeeping, and what to do about it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument

if TYPE_CHECKING:
    from rich.console import RenderableType

    from timesyncd.cli.doctor.checks import Result


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--url", help="the daemon's status page (default: from the configuration)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: Namespace) -> int:
    """0 when there is nothing to do, else 1. Looks and asks, and changes nothing."""
    import json
    from dataclasses import asdict

    from rich.console import Console, Group

    from timesyncd.cli.doctor.checks import checks, exit_status
    from timesyncd.cli.doctor.facts import gather

    results = checks(gather(args))
    if args.json:
        to_do = sum(result.state == "to do" for result in results)
        print(json.dumps({"to_do": to_do, "checks": [asdict(result) for result in results]}))
    else:
        Console(highlight=False).print(Group(*report(results)))
    return exit_status(results)


def report(results: list[Result]) -> list[RenderableType]:
    """A line a check, the groups that need something and in them what is worst at the end; then how much is to be done."""
    from rich.text import Text

    from timesyncd.cli.doctor.checks import RANKS

    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.group, []).append(result)
    parts: list[RenderableType] = []
    for name, members in sorted(groups.items(), key=lambda item: max(RANKS[each.rank] for each in item[1])):
        parts += [Text(name, "bold"), _table(sorted(members, key=lambda each: RANKS[each.rank]))]
    return [*parts, Text(), _sum(results)]


def _table(results: list[Result]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from timesyncd.cli.render import SEVERITIES, plain

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, width=16)
    table.add_column(no_wrap=True, width=16, overflow="ellipsis")
    for result in results:
        style = SEVERITIES[result.severity] if result.state == "to do" else "" if result.state == "ok" else "dim"
        state = result.state.upper() if result.state == "to do" else result.state
        table.add_row(Text(f"  {state}", style), plain(result.check), plain(result.what, style))
        if result.state == "to do":
            table.add_row("", "", plain(result.why, "dim"))
            table.add_row("", Text("do", "bold"), plain(result.command, "bold"))
    return table


def _sum(results: list[Result]) -> RenderableType:
    from rich.text import Text

    counts = {state: sum(result.state == state for result in results) for state in ("to do", "ok", "not looked at")}
    if not counts["to do"]:
        return Text(f"nothing to do: {counts['ok']} checks are well, {counts['not looked at']} not looked at", "green")
    things = "1 thing" if counts["to do"] == 1 else f"{counts['to do']} things"
    return Text(f"{things} to do; {counts['ok']} checks are well, {counts['not looked at']} not looked at", "bold")
