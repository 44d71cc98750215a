"""What the daemon knows of leap seconds by the file of tzdata."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timesyncd.daemon.leap_table import MAX_RETRY_NS, READ_EVERY_NS, RETRY_NS, LeapTableReader, retry_ns
from timesyncd.model.leap import LeapTable

TEXT = "#@ 3707596800\n3644697600 36 # 1 Jul 2015\n3692217600 37 # 1 Jan 2017\n"
TABLE = LeapTable(((1_435_708_800, 36), (1_483_228_800, 37)), 1_498_608_000)
START_NS = 10**12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leap-seconds.list"


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Every open fails with EMFILE."""
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


def test_the_file_of_tzdata_is_the_table(path: Path) -> None:
    """As tzdata installs it."""
    path.write_text(TEXT)
    reader = LeapTableReader(path)
    reader.tick(START_NS)

    assert reader.table == TABLE


@pytest.mark.parametrize(("content", "lines"), [(None, 0), (b"", 1), (b"\xff\xfe", 1), (b"3692217600 many\n", 1)])
def test_a_file_that_is_missing_or_odd_stops_nothing(
    path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, lines: int
) -> None:
    """A container has no tzdata, which is no news; a broken file is reported, and is not taken for "no leap second"."""
    if content is not None:
        path.write_bytes(content)
    reader = LeapTableReader(path)
    with caplog.at_level(logging.INFO):
        for later_ns in (0, 2 * RETRY_NS, 4 * RETRY_NS):
            reader.tick(START_NS + later_ns)

    assert reader.table is None
    assert len(caplog.records) == lines


def test_a_read_without_a_file_descriptor_keeps_the_table_and_is_tried_again_in_seconds(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a day all descriptors may be in use at that moment: the table is not lost until the next day."""
    path.write_text(TEXT)
    reader = LeapTableReader(path)
    reader.tick(START_NS)
    newer = TEXT.replace("3707596800", "3717596800")
    path.write_text(newer)
    due_ns = START_NS + READ_EVERY_NS
    with caplog.at_level(logging.INFO), without_descriptors():
        reader.tick(due_ns)
        reader.tick(due_ns + RETRY_NS)
    kept = reader.table
    reader.tick(due_ns + 2 * RETRY_NS)
    early = reader.table
    with caplog.at_level(logging.INFO):
        reader.tick(due_ns + 3 * RETRY_NS)

    assert kept == early == TABLE
    assert reader.table is not None and reader.table.expires_s == TABLE.expires_s + 10_000_000
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "Too many open files; its last content counts" in caplog.records[0].message


def test_a_file_that_was_removed_leaves_the_table(path: Path) -> None:
    """An upgrade of tzdata may remove it for a moment."""
    path.write_text(TEXT)
    reader = LeapTableReader(path)
    reader.tick(START_NS)
    path.unlink()
    reader.tick(START_NS + READ_EVERY_NS)

    assert reader.table == TABLE


def test_retries_get_rarer() -> None:
    """A file that stays broken is looked at each hour."""
    waits = [retry_ns(failures) for failures in range(30)]

    assert waits[:3] == [RETRY_NS, 2 * RETRY_NS, 4 * RETRY_NS]
    assert waits == sorted(waits) and waits[-1] == MAX_RETRY_NS
