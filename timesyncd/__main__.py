"""The command line: finds the command and converts errors into exit statuses."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

from timesyncd.cli._log_output import print_error
from timesyncd.cli._parser import CommandLine
from timesyncd.errors import ConfigError, TimesyncdError

GROUPS = {
    "See how the clocks are": (
        "status",
        "top",
        "explain",
        "now",
        "wait",
        "history",
        "stability",
        "export",
        "postmortem",
        "doctor",
    ),
    "Make a training job faster": (
        "run-audit",
        "audit",
        "advise",
        "claim",
        "preflight",
        "policy",
        "roadmap",
        "merge-traces",
    ),
    "Run the daemon": ("run", "check-config", "drivers", "broker-config", "store", "kubernetes-controller"),
    "Work with a grandmaster": ("probe", "record", "profile-from-mib"),
    "Try it without hardware": ("demo", "simulate", "replay"),
}

COMMANDS = tuple(name for names in GROUPS.values() for name in names)

#: The packages of the extras daemon and demo.
NEEDS_EXTRA = {
    "aiohttp", "aiomqtt", "alembic", "cryptography", "paho", "prometheus_client", "pyasn1", "pydantic", "pydantic_core",
    "pysnmp", "rich", "sqlalchemy", "textual", "tomli_w",
}  # fmt: skip

#: Commands that need more than the daemon extra.
_EXTRAS = {"top": "daemon,tui", "demo": "daemon,demo", "simulate": "daemon,demo"}


class _PrintVersion(argparse.Action):
    """Looks the version up only when it is asked for, since that reads the files of the installation."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from timesyncd.build import this_build

        print(this_build())
        parser.exit()


def parser() -> CommandLine:
    top = CommandLine(
        GROUPS,
        prog="timesyncd",
        description="Monitors a node's PTP clocks, bounds their error, and measures what synchronization costs training jobs. "
        "Exit status: 0: success, or the answer is yes; 1: the answer is no, or a failure; 2: usage or configuration error; "
        "130: interrupted.",
    )
    top.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and end")
    for name in COMMANDS:
        module = import_module(f"timesyncd.cli.{name.replace('-', '_')}")
        command = top.add_command(name, (module.__doc__ or "").strip(), module.EXAMPLES)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """
    Exit status 0: success, or the answer is yes; 1: the answer is no, or a failure; 2: usage or configuration error;
    130: interrupted.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: a file's name may be no text
    try:
        try:
            return _run(argv)
        finally:
            # Else a full disk, or a reader that has gone, shows at the interpreter's exit, as a traceback and status 120.
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()
        return 130
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _discard_output()
        print_error(
            f"timesyncd: the output cannot be written: {error.strerror}; free space there, or name another place"
        )
        return 1


#: What a write reports where the disk, the user's quota, or the largest allowed file is full.
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _discard_output() -> None:
    """What was not written stays buffered in Python 3.14; its flush at exit would print an error and end with 120."""
    with suppress(OSError):  # standard output that is no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    top = parser()
    args = top.parse_args(argv)
    if args.command is None:
        top.print_help()
        return 0
    try:
        status: int = args.run(args)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NEEDS_EXTRA:
            raise
        extras = _EXTRAS.get(args.command, "daemon")
        print_error(
            f"timesyncd {args.command}: the package {error.name} is missing: in timesyncd's source folder, pip install '.[{extras}]'"
        )
        return 2
    except TimesyncdError as error:
        print_error(f"timesyncd: {error}")
        return 2 if isinstance(error, ConfigError) else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
