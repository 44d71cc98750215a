"""
What was recorded of a real unit, to be played by the agent: a folder with `walk.snmprec`, and `https/` with one file an
answer. Neither says anything of how the unit changes: a recording stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from timesyncd.errors import ConfigError, Malformed
from timesyncd.simulation.grandmaster.mib import RecordedMib
from timesyncd.simulation.grandmaster.smi import Value
from timesyncd.snmp.snmprec import parse_snmprec

WALK = "walk.snmprec"


@dataclass(frozen=True)
class Recording:
    """`https` holds the bodies by file name."""

    mib: RecordedMib
    https: dict[str, bytes]


def load_recording(folder: Path) -> Recording:
    """Raises ConfigError when there is no such folder or its walk cannot be read."""
    try:
        rows = parse_snmprec((folder / WALK).read_text())
        bodies = {path.name: path.read_bytes() for path in sorted(folder.glob("https/*"))}
    except (OSError, UnicodeDecodeError, Malformed) as error:
        raise ConfigError(f"recording {folder}: {error}") from error
    return Recording(RecordedMib((row.oid, Value(row.tag, row.value)) for row in rows), bodies)
