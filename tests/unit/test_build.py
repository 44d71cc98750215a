"""Which timesyncd this is."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

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


def build_backend() -> Any:
    spec = spec_from_file_location("build_page", Path(__file__).parents[2] / "page" / "build_page.py")
    assert spec is not None and spec.loader is not None
    backend = module_from_spec(spec)
    spec.loader.exec_module(backend)
    return backend


@pytest.mark.parametrize("is_clone", [True, False])
def test_a_wheel_of_a_clone_names_its_commit(tmp_path: Path, is_clone: bool) -> None:
    """While the wheel is built, and not afterwards; source without git names none."""
    (tmp_path / "timesyncd").mkdir()
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    head = ""
    if is_clone:
        for words in (["init", "--quiet"], [*author, "commit", "--quiet", "--allow-empty", "--message", "first"]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
    file = tmp_path / "timesyncd" / "commit.txt"
    with build_backend().named_commit(tmp_path):
        assert (file.read_text() if file.exists() else "") == head

    assert not file.exists()
    assert (len(head.strip()) == 40) == is_clone
