"""Which timesyncd this is."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from timesyncd import build

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        ({"HEAD": f"{COMMIT}\n"}, COMMIT[:12]),
        ({"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"}, COMMIT[:12]),
        ({"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack-refs\n{COMMIT} refs/heads/main\n"}, COMMIT[:12]),
        ({"HEAD": "ref: refs/heads/main\n", "packed-refs": f"{COMMIT} refs/heads/other\n^{COMMIT}\n"}, None),
        ({"HEAD": "ref: refs/heads/main\n"}, None),
        ({}, None),
    ],
)
def test_the_commit_is_the_one_that_is_checked_out(tmp_path: Path, files: dict[str, str], commit: str | None) -> None:
    """On a branch, packed or not, or detached; without git it is unknown."""
    for name, text in files.items():
        (tmp_path / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".git" / name).write_text(text)

    assert build._checked_out_commit(tmp_path / "timesyncd") == commit


def test_this_build_is_named_in_one_line() -> None:
    """Of the installation, and of the Python that runs it."""
    this = build.this_build()

    assert (this.version, this.python) == (version("timesyncd"), platform.python_version())
    assert str(build.Build("1.2.3", None, "3.11.2")) == "timesyncd 1.2.3 (unknown commit, Python 3.11.2)"
    assert str(build.Build("1.2.3", COMMIT[:12], "3.11.2")) == f"timesyncd 1.2.3 (commit {COMMIT[:12]}, Python 3.11.2)"
