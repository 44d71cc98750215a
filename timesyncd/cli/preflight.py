"""Check before a job starts whether the clocks of its nodes agree within a limit, by asking a hub."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from timesyncd.cli._common import add_config_argument, add_url_argument, is_missing, load_config, page_url
from timesyncd.client.files import read_file
from timesyncd.client.preflight_check import DEFAULT_URL, PreflightNode, PreflightResult, preflight
from timesyncd.errors import ConfigError
from timesyncd.units import duration_text, limit_text, span_ns

#: The number of nodes that fit a screen of 24 lines with the verdict.
MAX_NODES_SHOWN = 18

HEADINGS = ("node", "status", "within", "")


EXAMPLES = (
    "timesyncd preflight --nodes node-1,node-2 --max-alignment 1us",
    "scontrol show hostnames | timesyncd preflight --nodes - --max-alignment 10us --url hub-1:8319",
)


def add_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--nodes", metavar="A,B,C", help="names of the nodes; -: read them from standard input")
    which.add_argument("--job", metavar="JOB", help="the nodes of this job")
    parser.add_argument(
        "--max-alignment",
        type=span_ns,
        required=True,
        metavar="SPAN",
        help="the largest allowed difference of two clocks, such as 500ns, 1us, 2ms",
    )
    parser.add_argument(
        "--timeout",
        type=span_ns,
        default="30s",
        metavar="SPAN",
        help="repeat the query this long while the alignment is unknown (default: %(default)s)",
    )
    add_url_argument(parser, "a hub's page (default: this machine's daemon, or the hub that it names)")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the hub's token (default: environment variable TIMESYNCD_TOKEN)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object; integer nanoseconds")
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0 if the clocks agree, 1 if they do not or the alignment is unknown. Raises ConfigError for a usage error."""
    progress = _Progress(sys.stderr.isatty() and not args.json)
    try:
        result = preflight(
            nodes=None if args.nodes is None else _names(args.nodes),
            job=args.job,
            max_alignment_ns=args.max_alignment,
            timeout_s=args.timeout / 1e9,
            url=args.url or _local_url(args),
            token=_token(args.token_file),
            on_wait=progress.show,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    progress.clear()
    if args.json:
        print(json.dumps(asdict(result) | {"max_alignment_ns": args.max_alignment}))
    else:
        print("\n".join(screen(result, args.max_alignment)))
    return 0 if result.ok else 1


def _names(text: str) -> list[str]:
    """
    Names separated by commas; on standard input also by blanks or line ends, as `scontrol show hostnames` prints them.
    """
    return sys.stdin.read().replace(",", " ").split() if text == "-" else [name.strip() for name in text.split(",")]


def screen(result: PreflightResult, max_ns: int) -> list[str]:
    """The nodes, the worst first, then the verdict. Strings that came over the network are printed as text."""
    rows = [HEADINGS, *map(_row, result.nodes[:MAX_NODES_SHOWN])] if result.nodes else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if (more := len(result.nodes) - MAX_NODES_SHOWN) > 0:
        lines.append(f"and {more} more nodes with smaller bounds")
    return [*lines, *([""] if lines else []), _plain(verdict_text(result, max_ns))]


def verdict_text(result: PreflightResult, max_ns: int) -> str:
    if not result.ok:
        return f"FAIL: {result.reason}"
    count = "1 node" if len(result.nodes) == 1 else f"{len(result.nodes)} nodes"
    by = f" ({result.reason})" if result.reason else ""
    agreed = f"clocks agree within {duration_text(result.alignment_ns)}, limit {limit_text(max_ns)}"
    return f"PASS: {count}, {agreed}{by}"


def _row(node: PreflightNode) -> tuple[str, str, str, str]:
    within = "unknown" if node.bound_ns is None else f"+-{duration_text(node.bound_ns)}"
    return _plain(node.node), _plain(node.status), within, _plain(node.reason)


def _plain(text: str) -> str:
    """The text with "?" for each control character."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _local_url(args: Namespace) -> str:
    """The URL of this machine's daemon; its default one without a configuration. Raises ConfigError."""
    if is_missing(args.config):
        return DEFAULT_URL
    try:
        load_config(args)
    except ConfigError as error:
        raise ConfigError(f"{error}; or name a hub with --url") from error
    return page_url(args)


_PIPE_S = 5.0


def _token(path: Path | None) -> str | None:
    """The token in the file; None: no file is given. Raises ConfigError."""
    if path is None:
        return None
    try:
        token = read_file(path, pipe_s=_PIPE_S).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"--token-file {path}: cannot be read: {why}") from error
    if not token:
        raise ConfigError(f"--token-file {path}: the file is empty")
    return token


class _Progress:
    """One line on a terminal, which each update overwrites; no output without a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def show(self, result: PreflightResult) -> None:
        if self._is_terminal:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            print(f"\r\x1b[K{_plain(f'waiting: {result.reason}')[:width]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
