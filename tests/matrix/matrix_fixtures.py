"""The tests of the matrix run inside a row: `make matrix`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems() -> None:
    """Without the row's programs these tests would measure this machine's."""
    if "TIMESYNCD_MATRIX_SUITE" not in os.environ:
        raise pytest.UsageError("tests/matrix runs inside a row of the matrix: make matrix")


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that another user may reach."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    tmp_path.chmod(0o777)
    return tmp_path
