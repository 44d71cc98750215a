"""The command line: finds the command and converts errors into exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version

from timesyncd.cli._journal import print_error
from timesyncd.errors import ConfigError, TimesyncdError

COMMANDS = (
    "run", "check-config", "doctor", "status", "explain", "now", "preflight", "policy", "history", "export", "store", "replay", "merge-traces", "audit", "run-audit", "probe", "record",
    "profile-from-mib", "broker-config", "simulate", "demo", "drivers",
)  # fmt: skip

#: The packages of the extras daemon and demo.
NEEDS_EXTRA = {
    "aiohttp", "aiomqtt", "alembic", "cryptography", "paho", "prometheus_client", "pyasn1", "pydantic", "pydantic_core",
    "pysnmp", "rich", "sqlalchemy", "tomli_w",
}  # fmt: skip

#: Commands that need more than the daemon extra.
_EXTRAS = {"demo": "daemon,demo", "simulate": "daemon,demo"}


class _PrintVersion(argparse.Action):
    """Looks the version up only when it is asked for, since that reads the files of the installation."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"timesyncd {version('timesyncd')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="timesyncd",
        description="Monitors a node's PTP clocks, bounds their error, and measures what synchronization costs training jobs. "
        "Exit status: 0: success, or the answer is yes; 1: the answer is no, or a failure; 2: usage or configuration error; "
        "130: interrupted.",
    )
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and end")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"timesyncd.cli.{name.replace('-', '_')}")
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(name, help=text.splitlines()[0], description=text)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """
    Exit status 0: success, or the answer is yes; 1: the answer is no, or a failure; 2: usage or configuration error;
    130: interrupted.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()
        return 130


def _discard_output() -> None:
    """What was not written stays buffered in Python 3.14; its flush at exit would print an error and end with 120."""
    with suppress(OSError):  # standard output that is no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NEEDS_EXTRA:
            raise
        extras = _EXTRAS.get(args.command, "daemon")
        print_error(f"timesyncd {args.command}: the package {error.name} is missing: pip install 'timesyncd[{extras}]'")
        return 2
    except TimesyncdError as error:
        print_error(f"timesyncd: {error}")
        return 2 if isinstance(error, ConfigError) else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
