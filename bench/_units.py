"""What the benches of grandmasters share: simulated units, their part of a daemon's configuration, and what a process has used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timesyncd.simulation.bed import host as bed_host

Facts = dict[str, Any]
"""What `timesyncd simulate --json` tells of one unit."""

_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def simulated(*options: str) -> Iterator[list[Facts]]:
    """Units that run in a process of their own."""
    command = [sys.executable, "-m", "timesyncd", "simulate", "--json", *options]
    with subprocess.Popen(bed_host.dying_with_parent(command), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise SystemExit("timesyncd simulate ended")
            told = json.loads(line)
            yield told.get("grandmasters", [told])
        finally:
            process.terminate()


def section(unit: Facts, folder: Path, *, v3: bool = False, **keys: float) -> str:
    """Its `[[grandmaster]]` table, with `keys` as they are; its secrets become files in the folder."""
    host, _, port = unit["snmp"].rpartition(":")
    written = {"name": unit["name"], "driver": "timeprovider", "host": host, "port": int(port), **keys}
    lines = ["[[grandmaster]]", *(f"{key} = {json.dumps(value)}" for key, value in written.items())]
    if v3:
        user = unit["v3"]
        passes = (f"{key} = {_secret(folder, unit, key, user[key])}" for key in ("auth_pass", "priv_pass"))
        kinds = (f'{key} = "{user[key]}"' for key in ("auth", "priv"))
        lines.append(f'user = {{ name = "{user["user"]}", {", ".join([*kinds, *passes])} }}')
    else:
        lines.append(f"community = {_secret(folder, unit, 'community', unit['community'])}")
    return "\n".join([*lines, "", ""])


def _secret(folder: Path, unit: Facts, key: str, secret: str) -> str:
    path = folder / f"{unit['name']}.{key}"
    path.write_text(secret)
    return f'{{ file = "{path}" }}'


def credentials(unit: Facts, v3: bool) -> list[str]:
    """The same for a command of net-snmp."""
    user = unit["v3"]
    if not v3:
        return ["-v2c", "-c", unit["community"]]
    protected = ["-a", "SHA-256", "-A", user["auth_pass"], "-x", "AES", "-X", user["priv_pass"]]
    return ["-v3", "-l", "authPriv", "-u", user["user"], *protected]


def cpu_s(pid: int) -> float:
    """User and system time of a process since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def need(*programs: str) -> None:
    """Ends the bench where a peer is not installed."""
    if missing := [program for program in programs if shutil.which(program) is None]:
        raise SystemExit(f"not installed: {', '.join(missing)}: make bench-packages")
