"""Text and keys as TOML writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence


def quoted(text: str) -> str:
    """A basic string of one line. JSON writes it alike, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quoted(name)


def array(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"


def inline(table: Mapping[str, str]) -> str:
    """A table of texts, on one line."""
    return f"{{ {', '.join(f'{key(name)} = {quoted(text)}' for name, text in table.items())} }}"
