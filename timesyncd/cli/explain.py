"""Explain the bound term by term, what it assumes, and forecast it without new samples."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from timesyncd.cli._common import add_config_argument, add_url_argument, page_url, parsed_reply
from timesyncd.errors import ConfigError, Malformed, Unreachable

if TYPE_CHECKING:
    from timesyncd.messages.node import NodeState


EXAMPLES = (
    "timesyncd explain",
    "timesyncd explain --url hub-1:8319",
)


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    add_url_argument(parser)
    parser.add_argument(
        "--runtime-dir",
        type=Path,
        metavar="DIR",
        help="read the clock segment in this folder instead of asking a daemon",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object; integer nanoseconds")


def run(args: Namespace) -> int:
    """0 if the main bound is known now, else 1. Raises Unreachable if the daemon of `--url` does not reply."""
    from timesyncd.cli.assumptions import assumptions_json
    from timesyncd.cli.budget import as_json, current_bound_ns

    node, warning = _node_state(args)
    if args.json:
        print(json.dumps(as_json(node) | {"assumptions": assumptions_json(node)}))
    else:
        _print(node)
    if warning:
        print(f"timesyncd: {warning}", file=sys.stderr)
    return 0 if current_bound_ns(node.main_bound, node.main_status, node.age_ns) is not None else 1


def _node_state(args: Namespace) -> tuple[NodeState, str]:
    """The daemon's reply; without one, the clock segment's content and a warning that says so."""
    from timesyncd.cli._segment_node import segment_node
    from timesyncd.client.api import fetch_part
    from timesyncd.messages.node import NodeState

    if args.runtime_dir is not None:
        return segment_node(args.runtime_dir), ""
    try:
        url = args.url or page_url(args)
        reply = fetch_part(url, "node")
        return parsed_reply(lambda: NodeState.model_validate(reply), url, "node"), ""
    except (ConfigError, Unreachable, Malformed) as error:
        if args.url is not None:
            raise
        warning = (
            f"{error}; the clock segment was read instead: it has no statistical terms, rates, sources or assumptions"
        )
        return segment_node(None), warning


def _print(node: NodeState) -> None:
    from rich.console import Console, Group

    from timesyncd.cli._tables import budget_tables

    Console(highlight=False).print(Group(*budget_tables(node)))
