"""Every numbered pitfall has exactly one test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = [*TESTS.glob("unit/**/test_pitfall_*.py"), TESTS / "integration" / "test_pitfalls_real.py"]


def test_every_pitfall_is_tested_once_by_its_number() -> None:
    """The numbers 01 to 30 occur once each in the names of the tests of pitfalls."""
    numbers = [
        number
        for file in FILES
        for number in re.findall(r"^(?:async )?def test_pitfall_(\d+)_", file.read_text(), re.MULTILINE)
    ]

    assert sorted(numbers) == [f"{number:02}" for number in range(1, 31)]
