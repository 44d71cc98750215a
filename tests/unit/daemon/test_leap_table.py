"""What the daemon knows of leap seconds by the file of tzdata."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from timesyncd.daemon.daemon import leap_table_of
from timesyncd.model.leap import LeapTable


def test_the_file_of_tzdata_is_the_table(tmp_path: Path) -> None:
    """As tzdata installs it."""
    path = tmp_path / "leap-seconds.list"
    path.write_text("#@ 3707596800\n3644697600 36 # 1 Jul 2015\n3692217600 37 # 1 Jan 2017\n")

    assert leap_table_of(path) == LeapTable(((1_435_708_800, 36), (1_483_228_800, 37)), 1_498_608_000)


@pytest.mark.parametrize(("content", "lines"), [(None, 0), (b"", 1), (b"\xff\xfe", 1), (b"3692217600 many\n", 1)])
def test_a_file_that_is_missing_or_odd_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, lines: int
) -> None:
    """A container has no tzdata, which is no news; a broken file is reported, and is not taken for "no leap second"."""
    path = tmp_path / "leap-seconds.list"
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        table = leap_table_of(path)

    assert table is None
    assert len(caplog.records) == lines
