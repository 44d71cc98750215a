"""Show this node's synchronization: its status, grandmaster and bound, or the reason of a fault."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from timesyncd.cli._common import add_config_argument, add_url_argument, page_url

if TYPE_CHECKING:
    from rich.console import RenderableType


#: So many names are offered in place of an unknown one.
NEAREST = 3

EXAMPLES = (
    "timesyncd status",
    "timesyncd status gm-a --json",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show all fields of one grandmaster, node or job")
    add_config_argument(parser)
    add_url_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the daemon's reply as one JSON object")


def run(args: Namespace) -> int:
    """
    0 if this node is SYNCHRONIZED (against UTC where it knows no grandmaster), else 1.

    With NAME: 0 if that node is synchronized, the grandmaster reachable and locked, or the job without straggler and
    its clocks comparable, else 1; 2 for an unknown name. Raises ConfigError without the address of a daemon,
    Unreachable without its reply.
    """
    from timesyncd.cli.render import screen
    from timesyncd.client.api import fetch_all
    from timesyncd.messages.node import NodeState

    answer = fetch_all(args.url or page_url(args))
    if args.name is not None:
        return _one(answer, args.name, args.json)
    _show(answer, args.json, screen(answer))
    return 0 if NodeState.model_validate(answer["node"]).main_status == "SYNCHRONIZED" else 1


def _one(answer: dict[str, Any], name: str, as_json: bool) -> int:
    """The exit status. A grandmaster precedes a node of the same name, and a node a job; a job has a name and an id."""
    from timesyncd.cli._tables import grandmaster_tables, job_tables, node_tables
    from timesyncd.messages.jobs import JobState
    from timesyncd.messages.node import GrandmasterState, NodeState

    grandmasters = {each["name"]: each for each in answer["grandmasters"]}
    nodes = {each["node"]: each for each in answer["nodes"]} | {answer["node"]["node"]: answer["node"]}
    # Of several jobs of one name, the one with the newest state; an id is unique.
    newest = sorted(answer["jobs"], key=lambda each: each["published_realtime_ns"])
    jobs = {each[key]: each for key in ("job", "job_id") for each in newest}
    if name in grandmasters:
        grandmaster = GrandmasterState.model_validate(grandmasters[name])
        _show(grandmasters[name], as_json, grandmaster_tables(grandmaster))
        return 0 if grandmaster.reachable and grandmaster.clock_state == "locked" else 1
    if name in nodes:
        node = NodeState.model_validate(nodes[name])
        _show(nodes[name], as_json, node_tables(node))
        return 0 if node.main_status == "SYNCHRONIZED" else 1
    if name in jobs:
        job = JobState.model_validate(jobs[name])
        _show(jobs[name], as_json, job_tables(job))
        return 0 if job.straggler_rank is None and job.alignment_ns is not None else 1
    names = list(dict.fromkeys([*grandmasters, *nodes, *(each["job"] for each in answer["jobs"])]))
    known = f"{len(names):,} names are known" if len(names) > NEAREST else "these are all"
    near = ", ".join(nearest(name, names))
    print(f"timesyncd: no grandmaster, node or job is named {name!r}; nearest: {near}; {known}", file=sys.stderr)
    return 2


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
        Console(highlight=False).print(Group(*parts))
