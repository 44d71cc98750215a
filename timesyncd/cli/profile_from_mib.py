"""Convert a vendor's MIB into the skeleton of a firmware profile."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

#: The packages of the mib extra.
_EXTRA = ("pysmi", "lark", "jinja2")


EXAMPLES = (
    "timesyncd profile-from-mib VENDOR.mib",
    "timesyncd profile-from-mib VENDOR.mib --name vendor --source /usr/share/snmp/mibs",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("mib", type=Path, metavar="FILE.mib")
    parser.add_argument("--name", metavar="NAME", help="name of the profile (default: from that of the module)")
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="folder with the MIBs that it imports; no other folder is searched"
    )


def run(args: Namespace) -> int:
    """
    0; 2 without the mib extra. Raises ConfigError if a required MIB is missing, Malformed if the file is not a MIB.
    """
    try:
        from timesyncd.probe.mib import compiled
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        print(
            "timesyncd profile-from-mib: the mib extra is missing: in timesyncd's source folder, pip install '.[daemon,mib]'",
            file=sys.stderr,
        )
        return 2
    from timesyncd.probe.from_mib import skeleton

    mib = compiled(args.mib, args.source)
    for name in mib.not_found:
        print(
            f"timesyncd: MIB {name} was not found, so its types are unknown; name its folder with --source",
            file=sys.stderr,
        )
    print(skeleton(mib, args.name), end="")
    return 0
