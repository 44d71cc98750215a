"""Show this node's synchronization: its status, grandmaster and bound, or the reason of a fault."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from timesyncd.cli._common import add_config_argument, add_url_argument, page_url, parsed_reply
from timesyncd.cli._log_output import print_error
from timesyncd.errors import TimesyncdError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from timesyncd.cli._nagios import Check
    from timesyncd.cli.render import DaemonReplies
    from timesyncd.messages.jobs import JobState
    from timesyncd.messages.node import GrandmasterState, NodeState


#: So many names are offered in place of an unknown one.
NEAREST = 3

#: The columns of what is no terminal: no line there is cut or wrapped.
UNCUT = 10_000

EXAMPLES = (
    "timesyncd status",
    "timesyncd status gm-a --json",
    "timesyncd status --nagios",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show all fields of one grandmaster, node or job")
    add_config_argument(parser)
    add_url_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the daemon's reply as one JSON object")
    form.add_argument(
        "--nagios", action="store_true", help="print one line with performance data, for Nagios, Icinga and Checkmk"
    )


def run(args: Namespace) -> int:
    """
    0 if this node is SYNCHRONIZED (against UTC where it knows no grandmaster), else 1.

    With --nagios: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, which covers whatever is raised otherwise.

    With NAME: 0 if that node is synchronized, the grandmaster reachable and locked, or the job without straggler and
    its clocks comparable, else 1; 2 for an unknown name. Raises ConfigError without the address of a daemon,
    Unreachable without its reply.
    """
    if args.nagios:
        return _nagios(args)
    from timesyncd.cli.render import screen

    answer, replies = _fetched(args.url or page_url(args))
    if args.name is not None:
        return _one(answer, replies.node_limit_ns, args.name, args.json)
    _show(answer, args.json, screen(answer))
    return 0 if replies.node.main_status == "SYNCHRONIZED" else 1


def _fetched(url: str) -> tuple[dict[str, Any], DaemonReplies]:
    """The daemon's replies as they came, and as messages. Raises Unreachable and Malformed."""
    from timesyncd.cli.render import DaemonReplies
    from timesyncd.client.api import fetch_all

    answer = fetch_all(url)
    return answer, parsed_reply(lambda: DaemonReplies.of(answer), url, "node, nodes, grandmasters, jobs, findings")


def _nagios(args: Namespace) -> int:
    """Also what fails is a state of the check: without it a monitoring system would report a warning."""
    from timesyncd.cli._nagios import Check, State

    try:
        check = _check(args.url or page_url(args), args.name)
    except TimesyncdError as error:
        check = Check(State.UNKNOWN, str(error))
    print(check.line)
    return int(check.state)


def _check(url: str, name: str | None) -> Check:
    """Of this node, on a hub without a clock of the fleet, or of what has this name. Raises Unreachable and Malformed."""
    from timesyncd.cli import _nagios
    from timesyncd.client import api
    from timesyncd.messages.node import GrandmasterState, NodeState
    from timesyncd.messages.overview import Overview

    answer, replies = _fetched(url)
    handled = api.fetch_list(url, "findings/handled")
    overview = parsed_reply(lambda: Overview.model_validate(answer["overview"]), url, "fleet/overview")
    headline, own = overview.headline, replies.node
    named = _named(answer, own.node if name is None else name)
    if isinstance(named, str):
        return _nagios.Check(_nagios.State.UNKNOWN, named)
    found = own if name is None else named[1]
    if name is None and not own.sources:
        check = _nagios.fleet_check(headline)
    elif isinstance(found, GrandmasterState):
        check = _nagios.grandmaster_check(found)
    elif isinstance(found, NodeState):
        check = _nagios.node_check(found, headline.limits)
    else:
        check = _nagios.job_check(found, headline.limits)
    return _nagios.with_findings(check, _nagios.open_findings(answer, handled, name))


def _one(answer: dict[str, Any], limit_ns: int | None, name: str, as_json: bool) -> int:
    """The exit status. `limit_ns`: the operator's limit of a node's bound."""
    from timesyncd.cli._tables import grandmaster_tables, job_tables, node_tables
    from timesyncd.messages.node import GrandmasterState, NodeState

    named = _named(answer, name)
    if isinstance(named, str):
        print_error(f"timesyncd: {named}")
        return 2
    reply, found = named
    if isinstance(found, GrandmasterState):
        tables, is_good = grandmaster_tables(found), found.reachable and found.clock_state == "locked"
    elif isinstance(found, NodeState):
        tables, is_good = node_tables(found, limit_ns), found.main_status == "SYNCHRONIZED"
    else:
        tables, is_good = job_tables(found), found.straggler_rank is None and found.alignment_ns is not None
    _show(reply, as_json, tables)
    return 0 if is_good else 1


def _named(answer: dict[str, Any], name: str) -> tuple[dict[str, Any], GrandmasterState | NodeState | JobState] | str:
    """
    What has this name, as it came and as a message; a text: nothing has it, and the nearest names.

    A grandmaster precedes a node of the same name, and a node a job; a job has a name and an id.
    """
    from timesyncd.messages.jobs import JobState
    from timesyncd.messages.node import GrandmasterState, NodeState

    grandmasters = {each["name"]: each for each in answer["grandmasters"]}
    nodes = {each["node"]: each for each in answer["nodes"]} | {answer["node"]["node"]: answer["node"]}
    # Of several jobs of one name, the one with the newest state; an id is unique.
    newest = sorted(answer["jobs"], key=lambda each: each["published_realtime_ns"])
    jobs = {each[key]: each for key in ("job", "job_id") for each in newest}
    if name in grandmasters:
        return grandmasters[name], GrandmasterState.model_validate(grandmasters[name])
    if name in nodes:
        return nodes[name], NodeState.model_validate(nodes[name])
    if name in jobs:
        return jobs[name], JobState.model_validate(jobs[name])
    names = list(dict.fromkeys([*grandmasters, *nodes, *(each["job"] for each in answer["jobs"])]))
    known = f"{len(names):,} names are known" if len(names) > NEAREST else "these are all"
    near = ", ".join(nearest(name, names))
    return f"no grandmaster, node or job is named {name!r}; nearest: {near}; {known}"


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """The names that are most like this one, the most like first."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in names}
    return [by_lower[each] for each in get_close_matches(name.lower(), by_lower, NEAREST, cutoff=0.0)]


def _show(answer: dict[str, Any], as_json: bool, parts: list[RenderableType]) -> None:
    import json

    from rich.console import Console, Group

    if as_json:
        print(json.dumps(answer))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else UNCUT).print(Group(*parts))
