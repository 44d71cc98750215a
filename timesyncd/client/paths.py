"""The daemon's runtime folder, and the folder of a rank's recorded marks."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT = Path("/run/timesyncd")


def runtime_dir(argument: Path | str | None = None) -> Path:
    """The argument, else TIMESYNCD_RUNTIME_DIR, else /run/timesyncd."""
    return Path(argument or os.environ.get("TIMESYNCD_RUNTIME_DIR") or DEFAULT)


def record_dir(argument: Path | str | None = None) -> Path | None:
    """The argument, else TIMESYNCD_RECORD, else None: the marks are not recorded."""
    folder = argument or os.environ.get("TIMESYNCD_RECORD")
    return Path(folder) if folder else None
