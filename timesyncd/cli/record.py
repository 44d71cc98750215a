"""Record all objects that a grandmaster serves, for the simulator and for tests."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from timesyncd.cli._access import access_of, add_access_arguments, progress
from timesyncd.cli._common import count_of

MASKS = ("serials", "positions", "names", "addresses")
MAX_OBJECTS = 100_000


EXAMPLES = (
    "timesyncd record 192.0.2.1 recording --community-file gm-a.community",
    "timesyncd record 192.0.2.1 recording --user monitor --auth-pass-file a --priv-pass-file b",
)


def add_arguments(parser: ArgumentParser) -> None:
    add_access_arguments(parser)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new or empty folder")
    parser.add_argument(
        "--mask",
        type=_masks,
        default=(),
        metavar="WHAT",
        help=f"values to replace by invented ones: {','.join(MASKS)}, or all",
    )
    parser.add_argument(
        "--rows",
        type=count_of,
        default=MAX_OBJECTS,
        metavar="N",
        help="largest number of SNMP objects (default: %(default)s)",
    )


def run(args: Namespace) -> int:
    """0. Raises ConfigError if the folder is not empty, SourceError without a reply; then nothing is written."""
    from timesyncd.probe.record import record, refuse_unless_empty, write

    refuse_unless_empty(args.folder)
    access = access_of(args)
    recording = asyncio.run(record(access, args.mask, args.rows, progress))
    write(args.folder, recording)
    for line in recording.summary(args.folder):
        print(line)
    return 0


def _masks(text: str) -> tuple[str, ...]:
    kinds = MASKS if text == "all" else tuple(dict.fromkeys(text.split(",")))
    if unknown := set(kinds) - set(MASKS):
        raise ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(MASKS)}, or all")
    return kinds
