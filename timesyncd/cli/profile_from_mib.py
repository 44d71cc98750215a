"""Turn a vendor's MIB that you own into the skeleton of a profile."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

#: What the mib extra brings.
_EXTRA = ("pysmi", "lark", "jinja2")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("mib", type=Path, metavar="FILE.mib")
    parser.add_argument("--name", metavar="NAME", help="the profile's name (default: from the module's)")
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="the MIBs that it imports; no other place is looked at"
    )


def run(args: Namespace) -> int:
    """0; ConfigError when a MIB that it needs is not there, Malformed when it is no MIB."""
    try:
        from timesyncd.probe.mib import compiled
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        print("timesyncd profile-from-mib needs the mib extra: pip install 'timesyncd[daemon,mib]'", file=sys.stderr)
        return 2
    from timesyncd.probe.from_mib import skeleton

    mib = compiled(args.mib, args.source)
    for name in mib.not_found:
        print(f"timesyncd: {name} was not found, so its types are not known; --source names a folder", file=sys.stderr)
    print(skeleton(mib, args.name), end="")
    return 0
