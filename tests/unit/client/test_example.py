"""The clock's example, run as a user runs it, and docs/client.md, which shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from published import publish

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "clock.py"


def run_example(folder: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(EXAMPLE), "--runtime-dir", str(folder))
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_the_example_waits_starts_and_translates(tmp_path: Path) -> None:
    """With a published bound, it prints four lines, each with its result."""
    publish(tmp_path, holdover_after_ns=60_000_000_000)
    done = run_example(tmp_path)
    printed = done.stdout.splitlines()

    assert (done.returncode, len(printed)) == (0, 4), done.stderr
    assert printed[0].endswith("ns (SYNCHRONIZED)")
    assert printed[1] == "the timestamp has certainly passed: True"


def test_the_example_prints_the_reason_of_an_unknown_clock(tmp_path: Path) -> None:
    """Without a daemon it ends with the reason."""
    done = run_example(tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("the clock is not trusted: no clock segment")


def test_the_page_shows_the_example_as_it_is() -> None:
    """docs/client.md contains all of the code, word for word."""
    shown = (ROOT / "docs" / "client.md").read_text()
    code = EXAMPLE.read_text().split("\n\n", 2)[2]

    assert code in shown
