"""The script that a machine with a card runs: its part for the CPU, and what it leaves where a section fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_check.py"


def checked(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Its exit status, and what it wrote, by section."""
    command = [sys.executable, str(SCRIPT), "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    sections: dict[str, Any] = json.loads((folder / "result.json").read_text())["sections"]
    return done.returncode, sections


def test_the_part_without_a_card_measures_a_policy_and_a_straggler(tmp_path: Path) -> None:
    """Both ranks train, close and end with one model; the marks show the rank that sleeps; the sections for a card are left out."""
    names = "machine,anchors,barriers,policy:local_sgd,straggler:host"
    status, sections = checked(tmp_path, "--cpu", "--steps", "4", "--sections", names)

    assert status == 0
    assert list(sections) == ["machine", "barriers", "policy:local_sgd", "straggler:host"]
    for rank in sections["policy:local_sgd"]["ranks"]:
        assert (rank["close"], rank["replicas_equal"], rank["lost"], rank["is_done"]) == ("ok", True, 0, True)
    for rank in sections["straggler:host"]["ranks"]:
        assert rank["rank 1 late ms"]["p50"] >= 0.5 * rank["expected ms"]


def test_a_section_that_fails_leaves_its_error_and_the_others_run(tmp_path: Path) -> None:
    """Without a card: each section's error and output are kept, with what it found before it failed."""
    status, sections = checked(tmp_path, "--sections", "graph,machine,two_ranks")

    assert status == 1
    assert sections["graph"]["error"] == "rank 0 ended with 1"
    assert sections["machine"]["error"] == "rank 0 ended with 1"
    assert "torch" in sections["machine"]["ranks"][0]
    assert [rank["is_done"] for rank in sections["two_ranks"]["ranks"]] == [True, True]
    assert "==== graph, rank 0" in (tmp_path / "log.txt").read_text()
