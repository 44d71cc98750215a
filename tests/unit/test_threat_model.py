"""The threat model names the tests that prove it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threat-model.md").read_text()
SURFACE = TEXT.partition("## Surface\n")[2].partition("\n## ")[0]
PARTS = {part.partition("\n")[0]: part for part in SURFACE.split("\n### ")[1:]}
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def limits_of(part: str) -> list[str]:
    """The items of the list after this line."""
    return re.findall(r"^- (.*)", part.partition("\nWhat limits that:\n")[2].partition("\n\n")[0], re.MULTILINE)


@pytest.mark.parametrize("name", PARTS)
def test_each_limit_names_tests_that_exist(name: str) -> None:
    """After its sentence it has at least one `file::test` below tests/, and each is a test of that file."""
    assert "\nAn attacker can:\n- " in PARTS[name]
    assert limits_of(PARTS[name])
    for limit in limits_of(PARTS[name]):
        sentence, _, tests = limit.partition(". `")
        named = TEST.findall(f"`{tests}")
        missing = [
            f"{file}::{test}" for file, test in named
            if not re.search(rf"^(    )?(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
        ]  # fmt: skip

        assert named, sentence
        assert missing == []
        assert TEST.sub("", f"`{tests}").strip(", ") == "", limit


def test_no_part_was_lost() -> None:
    """Every test that the page names is named by a limit, so none hides in a list that is not checked."""
    assert {test for part in PARTS.values() for limit in limits_of(part) for test in TEST.findall(limit)} == set(
        TEST.findall(TEXT)
    )
