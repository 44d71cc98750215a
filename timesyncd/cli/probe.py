"""Query what a grandmaster serves, and print the configuration for it."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace

from timesyncd.cli._access import access_of, add_access_arguments, progress
from timesyncd.cli._log_output import print_error
from timesyncd.cli._parser import FileName

EXAMPLES = (
    "timesyncd probe 192.0.2.1 --community-file gm-a.community",
    "timesyncd probe 192.0.2.1 --user monitor --auth-pass-file a --priv-pass-file b --https-username monitor --ca gm.pem",
)


def add_arguments(parser: ArgumentParser) -> None:
    add_access_arguments(parser)
    parser.add_argument(
        "--profile",
        action="append",
        type=FileName,
        default=[],
        metavar="PATH",
        help="a profile of your own, in addition to the shipped ones",
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")


def run(args: Namespace) -> int:
    """0; 1 if SNMP or HTTPS was queried and did not reply. Raises ConfigError for a usage error."""
    import json

    from rich.console import Console, Group

    from timesyncd.cli.render_probe import as_json, tables
    from timesyncd.drivers.timeprovider._profiles import DEFAULT, load_all
    from timesyncd.probe.probe import probe
    from timesyncd.probe.suggestion import suggestion

    profiles = load_all([*args.profile, *DEFAULT])
    found = asyncio.run(probe(access_of(args), profiles, progress))
    if args.json:
        print(json.dumps(as_json(found, args.profile)))
    elif found.snmp is not None or found.web is not None:
        Console(highlight=False).print(Group(*tables(found)))
        print(f"\nConfiguration for the daemons that poll it:\n\n{suggestion(found, args.profile)}")
    for error in found.errors:
        print_error(f"timesyncd: {error}")
    return 1 if found.errors else 0
