"""What the benches of grandmasters share: simulated ones, their part of a daemon's configuration, and a process's used time."""

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
"""What `timesyncd simulate --json` prints of one grandmaster."""

_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def simulated(*options: str) -> Iterator[list[Facts]]:
    """Grandmasters that run in a process of their own."""
    command = [sys.executable, "-m", "timesyncd", "simulate", "--json", *options]
    with subprocess.Popen(bed_host.dying_with_parent(command), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise SystemExit("timesyncd simulate ended")
            printed = json.loads(line)
            yield printed.get("grandmasters", [printed])
        finally:
            process.terminate()


def section(facts: Facts, folder: Path, *, v3: bool = False, **keys: float) -> str:
    """Its `[[grandmaster]]` table, with `keys` as they are; its secrets become files in the folder."""
    host, _, port = facts["snmp"].rpartition(":")
    written = {"name": facts["name"], "driver": "timeprovider", "host": host, "port": int(port), **keys}
    lines = ["[[grandmaster]]", *(f"{key} = {json.dumps(value)}" for key, value in written.items())]
    if v3:
        user = facts["v3"]
        passes = (f"{key} = {_secret(folder, facts, key, user[key])}" for key in ("auth_pass", "priv_pass"))
        kinds = (f'{key} = "{user[key]}"' for key in ("auth", "priv"))
        lines.append(f'user = {{ name = "{user["user"]}", {", ".join([*kinds, *passes])} }}')
    else:
        lines.append(f"community = {_secret(folder, facts, 'community', facts['community'])}")
    return "\n".join([*lines, "", ""])


def _secret(folder: Path, facts: Facts, key: str, secret: str) -> str:
    path = folder / f"{facts['name']}.{key}"
    path.write_text(secret)
    return f'{{ file = "{path}" }}'


def credentials(facts: Facts, v3: bool) -> list[str]:
    """The same for a command of net-snmp."""
    user = facts["v3"]
    if not v3:
        return ["-v2c", "-c", facts["community"]]
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
