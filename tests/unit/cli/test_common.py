"""What several commands share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from timesyncd.cli._common import is_missing


def test_a_path_that_may_not_be_looked_up_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader reports the permission; a command that took it for missing would ask another daemon instead."""
    (tmp_path / "file").touch()

    def refuse(self: Path, **_: object) -> os.stat_result:
        raise PermissionError

    assert (is_missing(tmp_path / "file"), is_missing(tmp_path / "no"), is_missing(tmp_path / "file/no")) == (
        False,
        True,
        True,
    )
    monkeypatch.setattr(Path, "stat", refuse)
    assert not is_missing(tmp_path / "file")
