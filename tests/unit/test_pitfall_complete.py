"""Every trap that is numbered has its test, and no number has two."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = [*TESTS.glob("unit/**/test_pitfall_*.py"), TESTS / "integration" / "test_traps_real.py"]


def test_every_trap_is_tested_once_by_its_number() -> None:
    """01 to 30, each in one test's name, over all the files of traps."""
    numbers = [
        number
        for file in FILES
        for number in re.findall(r"^(?:async )?def test_trap_(\d+)_", file.read_text(), re.MULTILINE)
    ]

    assert sorted(numbers) == [f"{number:02}" for number in range(1, 31)]
