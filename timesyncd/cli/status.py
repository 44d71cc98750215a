"""Am I in sync, how well, to whom, since when, and if not, why not."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from timesyncd.cli._common import add_config_argument, page_url

if TYPE_CHECKING:
    from rich.console import RenderableType


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="all that is known of one grandmaster, node or job")
    add_config_argument(parser)
    parser.add_argument("--url", help="the daemon's status page (default: from the configuration)")
    parser.add_argument("--json", action="store_true", help="what the daemon answered, as one JSON object")


def run(args: Namespace) -> int:
    """
    0 when this node is SYNCHRONIZED, against UTC where it knows no grandmaster (of a NAME: that node, or the unit answers and is locked, or the job has no slow rank and
    its clocks are comparable), else 1; 2 for a name that is not known. ConfigError when the daemon cannot be asked.
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
    """A grandmaster goes before a node of the same name, and that before a job, which has a name and an id."""
    from timesyncd.cli._status_tables import grandmaster_tables, job_tables, node_tables
    from timesyncd.messages.jobs import JobState
    from timesyncd.messages.node import GrandmasterState, NodeState

    units = {each["name"]: each for each in answer["grandmasters"]}
    nodes = {each["node"]: each for each in answer["nodes"]} | {answer["node"]["node"]: answer["node"]}
    # Of several jobs of one name the one that was told of last; an id is itself.
    newest = sorted(answer["jobs"], key=lambda each: each["published_realtime_ns"])
    jobs = {each[key]: each for key in ("job", "job_id") for each in newest}
    if name in units:
        unit = GrandmasterState.model_validate(units[name])
        _show(units[name], as_json, grandmaster_tables(unit))
        return 0 if unit.reachable and unit.clock_state == "locked" else 1
    if name in nodes:
        node = NodeState.model_validate(nodes[name])
        _show(nodes[name], as_json, node_tables(node))
        return 0 if node.main_status == "SYNCHRONIZED" else 1
    if name in jobs:
        job = JobState.model_validate(jobs[name])
        _show(jobs[name], as_json, job_tables(job))
        return 0 if job.straggler_rank is None and job.alignment_ns is not None else 1
    names = ", ".join([*units, *nodes, *dict.fromkeys(each["job"] for each in answer["jobs"])])
    print(f"timesyncd: there is no {name!r}; there are: {names}", file=sys.stderr)
    return 2


def _show(answer: dict[str, Any], as_json: bool, parts: list[RenderableType]) -> None:
    import json

    from rich.console import Console, Group

    if as_json:
        print(json.dumps(answer))
    else:
        Console(highlight=False).print(Group(*parts))
