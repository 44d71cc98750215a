"""The soak as a program: each kind of scenario can be judged and printed by its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import soak

SCRIPT = Path(__file__).with_name("soak.py")


@pytest.mark.parametrize(
    "name", ["quiet", "hw: slow reroute at once", "T-BC holdover", "a receiver, declared", "leap: both flags"]
)
def test_a_scenario_of_each_kind_is_judged_and_printed(name: str) -> None:
    """The command that a report of a miss prints has to work, without what pytest adds to the path."""
    line = soak.soak((name, 1))
    shown = subprocess.run(
        [sys.executable, SCRIPT, "--show", name, "1"], capture_output=True, text=True, check=True, timeout=120
    )

    assert name in soak.NAMES
    assert soak.Line.parse(f"{line}\n") == line and line.misses == 0
    assert len(shown.stdout.splitlines()) > 100


def test_a_name_is_one_scenario() -> None:
    """The state file knows a scenario by its name."""
    assert len(set(soak.NAMES)) == len(soak.NAMES)
