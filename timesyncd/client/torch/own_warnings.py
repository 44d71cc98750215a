"""The meter's warnings: Python's own, except under run-audit, which collects them: there the output is the script's."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_collecting = threading.local()


def warn(text: str, stacklevel: int) -> None:
    """As `warnings.warn`; the levels are counted from the caller."""
    texts: list[str] | None = getattr(_collecting, "texts", None)
    if texts is None:
        warnings.warn(text, stacklevel=stacklevel + 1)
    else:
        texts.append(text)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """
    The texts of this thread's warnings inside `with`.

    Python's filters stay as they are: after each change of them Python shows again what it has shown of the script's.
    """
    texts: list[str] = []
    former = getattr(_collecting, "texts", None)
    _collecting.texts = texts
    try:
        yield texts
    finally:
        _collecting.texts = former
