"""What CI runs fails unless every test ran."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"

#: Has no `test-more`, and prints what the test gives for `test`.
MAKE = """#!/bin/sh
case "$*" in
--question*) exit {known} ;;
test) cat '{log}'; exit {status} ;;
test-more) echo "========= 3 passed in 1.00s ========="; exit {status} ;;
esac
"""


def ci(folder: Path, log: str, status: int = 0, known: int = 2) -> tuple[int, str]:
    """Its exit status and output where `make test` prints `log` and ends with `status`."""
    (folder / "log").write_text(log)
    make = folder / "make"
    make.write_text(MAKE.format(known=known, log=folder / "log", status=status))
    make.chmod(0o755)
    environ = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run([RUN], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "log",
    [
        "6809 passed in 224.52s (0:03:44)\n",
        "=== 12 passed, 1 warning in 3.00s ===\nnext\n=== 1319 passed in 600.00s (0:10:00) ===\n",
        "a log line: 3 skipped frames in 4s\n=== 12 passed in 3.00s ===\n",
    ],
)
def test_all_passed_is_success(tmp_path: Path, log: str) -> None:
    """Only the summaries of pytest count."""
    assert ci(tmp_path, log)[0] == 0


@pytest.mark.parametrize("kind", ["skipped", "deselected", "xfailed", "xpassed"])
@pytest.mark.parametrize(
    "line", ["12 passed, 1 {} in 3.00s", "==== 12 passed, 1 {}, 2 warnings in 63.00s (0:01:03) ===="]
)
@pytest.mark.parametrize("after", ["", "=== 1319 passed in 600.00s (0:10:00) ===\n"])
def test_a_test_that_did_not_run_is_a_failure_in_whichever_summary(
    tmp_path: Path, kind: str, line: str, after: str
) -> None:
    """The first of several runs counts as the last does."""
    assert ci(tmp_path, f"{line.format(kind)}\n{after}")[0] == 1


def test_a_failed_test_is_a_failure(tmp_path: Path) -> None:
    """`make` decides."""
    assert ci(tmp_path, "=== 1 failed, 12 passed in 3.00s ===\n", status=2)[0] == 1


def test_what_later_tests_need_runs_too(tmp_path: Path) -> None:
    """`make test-more` follows `make test` where the Makefile has it."""
    assert "3 passed" in ci(tmp_path, "=== 12 passed in 3.00s ===\n", known=1)[1]
    assert "3 passed" not in ci(tmp_path, "=== 12 passed in 3.00s ===\n", known=2)[1]
