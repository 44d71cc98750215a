"""What the two audit commands share."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_EXTRA = ("jinja2", "matplotlib", "pydantic")


def lacks_extra(command: str) -> bool:
    """Says which extra is missing, where one is; nothing is imported, so that a script need not wait for it."""
    if all(find_spec(name) is not None for name in _EXTRA):
        return False
    print(f"timesyncd {command} needs the audit extra: pip install 'timesyncd[audit]'", file=sys.stderr)
    return True
