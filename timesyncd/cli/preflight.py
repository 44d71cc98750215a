"""May a job start: do the clocks of these nodes agree within so much? Asks a hub."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from timesyncd.cli._common import add_config_argument, page_url
from timesyncd.client.preflight_check import DEFAULT_URL, PreflightNode, PreflightResult, preflight
from timesyncd.errors import ConfigError
from timesyncd.units import duration_text, limit_text, span_ns

#: So many nodes leave room for the verdict on a screen of 24 lines.
MAX_NODES_SHOWN = 18

HEADINGS = ("node", "status", "within", "")


def add_arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--nodes", metavar="A,B,C", help="nodes by their names; -: they are read from standard input")
    which.add_argument("--job", metavar="JOB", help="the nodes of this job")
    parser.add_argument(
        "--max-alignment",
        type=span_ns,
        required=True,
        metavar="SPAN",
        help="how far apart they may be, as 500ns, 1us, 2ms",
    )
    parser.add_argument(
        "--timeout",
        type=span_ns,
        default="30s",
        metavar="SPAN",
        help="ask until then while it is unknown (%(default)s)",
    )
    parser.add_argument("--url", help="a hub's page (default: the daemon of this machine, or the hub that it knows)")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="the hub's token (default: the environment's TIMESYNCD_TOKEN)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object; integer nanoseconds")
    add_config_argument(parser)


def run(args: Namespace) -> int:
    """0 when they agree, 1 when they do not or nobody knows, ConfigError when it cannot be asked so."""
    progress = _Progress(sys.stderr.isatty() and not args.json)
    try:
        answer = preflight(
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
        print(json.dumps(asdict(answer) | {"max_alignment_ns": args.max_alignment}))
    else:
        print("\n".join(screen(answer, args.max_alignment)))
    return 0 if answer.ok else 1


def _names(text: str) -> list[str]:
    """Of standard input with commas, blanks or line ends between, as `scontrol show hostnames` writes them: there may be many."""
    return sys.stdin.read().replace(",", " ").split() if text == "-" else [name.strip() for name in text.split(",")]


def screen(answer: PreflightResult, max_ns: int) -> list[str]:
    """The nodes, the worst first, and under them the verdict. What came over a wire is shown as text."""
    rows = [HEADINGS, *map(_row, answer.nodes[:MAX_NODES_SHOWN])] if answer.nodes else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if (more := len(answer.nodes) - MAX_NODES_SHOWN) > 0:
        lines.append(f"and {more} more, none of them worse")
    return [*lines, *([""] if lines else []), _plain(verdict(answer, max_ns))]


def verdict(answer: PreflightResult, max_ns: int) -> str:
    if not answer.ok:
        return f"FAIL: {answer.reason}"
    count = "1 node" if len(answer.nodes) == 1 else f"{len(answer.nodes)} nodes"
    by = f" ({answer.reason})" if answer.reason else ""
    agreed = f"clocks agree within {duration_text(answer.alignment_ns)}, {limit_text(max_ns)} is allowed"
    return f"PASS: {count}, {agreed}{by}"


def _row(node: PreflightNode) -> tuple[str, str, str, str]:
    within = "unknown" if node.bound_ns is None else f"+-{duration_text(node.bound_ns)}"
    return _plain(node.node), _plain(node.status), within, _plain(node.reason)


def _plain(text: str) -> str:
    """Nothing that a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _local_url(args: Namespace) -> str:
    """Of this machine's daemon; where there is no configuration, its usual address. Raises ConfigError."""
    if not args.config.exists():
        return DEFAULT_URL
    try:
        return page_url(args)
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if "--url" in told else f"{told}; or name a hub with --url") from error


def _token(path: Path | None) -> str | None:
    """Raises ConfigError."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--token-file {path}: cannot be read: {why}") from error
    if not token:
        raise ConfigError(f"--token-file {path}: it is empty")
    return token


class _Progress:
    """One line on a terminal that is written over; nothing elsewhere."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown = is_shown

    def show(self, answer: PreflightResult) -> None:
        if self._is_shown:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            print(f"\r\x1b[K{_plain(f'waiting: {answer.reason}')[:width]}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
