"""Am I in sync, how well, to whom, since when, and if not, why not."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from timesyncd.commands._common import add_config_argument, load_config


def add_arguments(parser: ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument("--url", help="the daemon's status page (default: from the configuration)")
    parser.add_argument("--json", action="store_true", help="what the daemon answered, as one JSON object")


def run(args: Namespace) -> int:
    """0 when this node is SYNCHRONIZED, else 1; ConfigError when the daemon cannot be asked."""
    import json

    from rich.console import Console, Group

    from timesyncd.terminal import fetch, screen

    answer = fetch(args.url or _url(args))
    if args.json:
        print(json.dumps(answer))
    else:
        Console(highlight=False).print(Group(*screen(answer)))
    return 0 if answer["node"]["status"] == "SYNCHRONIZED" else 1


def _url(args: Namespace) -> str:
    from timesyncd.errors import ConfigError

    web = load_config(args).web
    if web is None or web.port == 0:
        raise ConfigError(
            f"{args.config}: web: no [web] section with a fixed port, so the daemon cannot be asked: give --url"
        )
    return f"http://{web.host}:{web.port}/"
