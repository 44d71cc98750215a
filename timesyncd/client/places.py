"""Where the daemon's runtime folder is."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT = Path("/run/timesyncd")


def runtime_dir(argument: Path | str | None = None) -> Path:
    """The argument, else TIMESYNCD_RUNTIME_DIR, else /run/timesyncd."""
    return Path(argument or os.environ.get("TIMESYNCD_RUNTIME_DIR") or DEFAULT)
