"""The folder that a segment lies in."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from timesyncd.ipc.clockbound import ClockBoundWriter
from timesyncd.ipc.seqlock import make_folder


@pytest.fixture
def _strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def _modes(path: Path, top: Path) -> list[int]:
    return [stat.S_IMODE(each.stat().st_mode) for each in (path, *path.parents) if top in each.parents]


@pytest.mark.usefixtures("_strict_umask")
def test_every_user_may_enter_a_folder_whatever_the_umask(tmp_path: Path) -> None:
    """Each folder that is created is 0755, as jobs of other users look for the segment in it."""
    make_folder(tmp_path / "a" / "b")
    ClockBoundWriter(tmp_path / "c" / "d" / "shm0")

    assert _modes(tmp_path / "a" / "b", tmp_path) == [0o755, 0o755]
    assert _modes(tmp_path / "c" / "d" / "shm0", tmp_path) == [0o644, 0o755, 0o755]


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    """An operator may have given it to a group."""
    (tmp_path / "a").mkdir(mode=0o750)
    make_folder(tmp_path / "a")

    assert _modes(tmp_path / "a", tmp_path) == [0o750]


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    """It is not removed."""
    (tmp_path / "a").touch()

    with pytest.raises(OSError, match="a"):
        make_folder(tmp_path / "a" / "b")
