"""The threat model names the tests that prove it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threat-model.md").read_text()
SURFACE = [line for line in TEXT.partition("## Surface")[2].partition("\n## ")[0].splitlines() if line.startswith("| ")]
LINES = [[cell.strip() for cell in re.split(r"(?<!\\) \| ", line.strip("| "))] for line in SURFACE[2:]]


@pytest.mark.parametrize("cells", LINES, ids=[cells[0] for cells in LINES])
def test_each_line_names_tests_that_exist(cells: list[str]) -> None:
    """Its last column has at least one `file::test` below tests/, and each is a test of that file."""
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", cells[-1])
    missing = [
        f"{file}::{name}" for file, name in named
        if not re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    ]  # fmt: skip

    assert len(cells) == 5
    assert named and missing == []
    assert re.sub(r"`[\w/]+\.py::test_\w+`", "", cells[-1]).strip(", ") == ""
