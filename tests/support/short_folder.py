"""A folder whose path is short enough for a socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a UNIX socket's address holds 107 octets."""
    path = tempfile.mkdtemp(prefix="ts-")
    yield Path(path)
    shutil.rmtree(path)
