"""Export a span of time as a post-mortem in Markdown: findings, changes of state, operators' notes."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from timesyncd.cli._common import add_config_argument, add_url_argument, page_url
from timesyncd.cli._log_output import print_error
from timesyncd.errors import ConfigError

EXAMPLES = (
    "timesyncd postmortem --from 2026-03-01T03:00:00Z --to 2026-03-01T04:30:00Z",
    "timesyncd postmortem --from 2h --url hub-1:8319",
)

#: A long span of a large fleet is read from many rows.
RESPONSE_TIMEOUT_S = 60.0


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    add_url_argument(parser)
    parser.add_argument(
        "--from",
        dest="since",
        required=True,
        metavar="TIME",
        help="RFC 3339, or a span before now: 90s, 15m, 2h, 1d",
    )
    parser.add_argument("--to", dest="until", metavar="TIME", help="the same (default: now)")


def time_ns_of(text: str) -> int:
    """A time of CLOCK_REALTIME in ns. Raises ConfigError."""
    from time import time_ns

    from timesyncd.units import span_ns
    from timesyncd.web.query import parse_time_ns

    try:
        return parse_time_ns(text)
    except ValueError:
        pass
    try:
        return time_ns() - span_ns(text)
    except ArgumentTypeError as error:
        raise ConfigError(f"{text!r} is no time; write 2026-03-01T03:00:00Z, or 2h for two hours ago") from error


def _document(page: str, body: bytes) -> str:
    """Raises Malformed for what is no post-mortem, so that none is saved for one."""
    from timesyncd.client.api import unlike_timesyncd

    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("# Post-mortem"):
        raise unlike_timesyncd(page, "postmortem", "no document in Markdown")
    return text


def run(args: Namespace) -> int:
    """
    0 if the document was made, else 1. Raises ConfigError for no time, Unreachable without a daemon's reply, and Malformed
    for a reply that is no document.
    """
    import json
    import os

    from timesyncd.client.api import get

    since_ns = time_ns_of(args.since)
    until_ns = time_ns_of("0s" if args.until is None else args.until)
    if since_ns >= until_ns:
        raise ConfigError(f"--from {args.since} is not before --to {args.until or 'now'}: give an earlier --from")
    page = (args.url or page_url(args)).rstrip("/")
    until = "" if args.until is None else f"&until={until_ns}"
    url = f"{page}/api/v1/postmortem?since={since_ns}{until}"
    status, body = get(url, os.environ.get("TIMESYNCD_TOKEN"), RESPONSE_TIMEOUT_S)
    if status == 200:
        print(_document(page, body), end="")
        return 0
    try:
        text = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        text = f"it responded with status {status}"
    print_error(f"timesyncd postmortem: {page}: {text}")
    return 1
