"""What was imported and collected before the first test is no garbage: Python's collector need not walk it again and again."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
