"""A source's rows as a file."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from postgresql import location, ready
from samples import HEALTHY
from sqlalchemy import insert

from timesyncd.errors import ConfigError, StoreError
from timesyncd.store import export as exports
from timesyncd.store.backlog import RowBatch
from timesyncd.store.engine import StoreLocation
from timesyncd.store.export import export
from timesyncd.store.rows import ClockEntry
from timesyncd.store.session import insert_batch
from timesyncd.store.tables import incarnation, rollup

__all__ = ["location"]


@pytest.fixture
def filled(location: StoreLocation) -> Iterator[StoreLocation]:
    """Ten samples of ptp, a second apart from 0 on, without bounds; two minutes of n1 and one of n2."""
    with ready(location) as engine, engine.begin() as connection:
        samples = [
            replace(HEALTHY, as_of_ns=second, real_minus_boot_ns=0, offset_ns=-second, exchanges=())
            for second in range(10)
        ]
        insert_batch(connection, RowBatch([ClockEntry(sample, None, 0) for sample in samples], []))
        connection.execute(insert(incarnation).values(node="n1", incarnation=1, started_realtime_ns=1))
        same = {"source": "ptp", "quantity": "offset_ns", "span_s": 60, "count": 1, "p50": 0, "p99": 0}
        for node, at in (("n1", 0), ("n1", 60), ("n2", 0)):
            values = {"node": node, "realtime_ns": at, "minimum": -1, "maximum": at, "mean": 0}
            connection.execute(insert(rollup).values(**same, **values))
    yield location


def ignored(done: int, total: int) -> None:
    pass


def test_samples_become_csv(filled: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns' names, then the rows of the span, oldest first; NULL is empty, a flag 0 or 1; progress is reported by pieces."""
    monkeypatch.setattr(exports, "_CHUNK_ROWS", 4)
    reported: list[tuple[int, int]] = []
    count = export(filled, "ptp", "raw", 1, 10, tmp_path / "a.csv", "csv", lambda *at: reported.append(at))
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert (count, reported) == (9, [(4, 9), (8, 9), (9, 9)])
    assert [row["offset_ns"] for row in rows] == [str(-second) for second in range(1, 10)]
    assert (rows[0]["gm_bound_ns"], rows[0]["ptp_timescale"], rows[0]["port_state"]) == ("", "0", "SLAVE")
    assert [path.name for path in tmp_path.iterdir() if path.name != "history.sqlite"] == ["a.csv"]


def test_samples_become_parquet(filled: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are 64-bit, flags flags, absent absent, in as many pieces as it takes."""
    import pyarrow.parquet

    monkeypatch.setattr(exports, "_CHUNK_ROWS", 4)
    export(filled, "ptp", "raw", 0, 10, tmp_path / "a.parquet", "parquet", ignored)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")

    assert table.column("offset_ns").to_pylist() == [-second for second in range(10)]
    assert (table.column("ptp_timescale")[0].as_py(), table.column("gm_bound_ns")[0].as_py()) == (False, None)


def test_roll_ups_are_of_our_own_node_or_the_named(filled: StoreLocation, tmp_path: Path) -> None:
    """On a hub many nodes have a source of that name."""
    own = export(filled, "ptp", "minute", 0, 100, tmp_path / "own.csv", "csv", ignored)
    other = export(filled, "ptp", "minute", 0, 100, tmp_path / "other.csv", "csv", ignored, node="n2")
    hours = export(filled, "ptp", "hour", 0, 100, tmp_path / "hours.csv", "csv", ignored)

    assert (own, other, hours) == (2, 1, 0)
    assert (tmp_path / "other.csv").read_text() == (
        "node,source,quantity,span_s,realtime_ns,count,minimum,maximum,mean,p50,p99\nn2,ptp,offset_ns,60,0,1,-1,0,0,0,0\n"
    )


def test_no_file_is_replaced_unasked(filled: StoreLocation, tmp_path: Path) -> None:
    """Only `overwrite` replaces an existing file."""
    path = tmp_path / "a.csv"
    path.write_text("mine")

    with pytest.raises(ConfigError, match=r"a\.csv: the file exists; --force replaces it"):
        export(filled, "ptp", "raw", 0, 10, path, "csv", ignored)
    assert path.read_text() == "mine"
    assert export(filled, "ptp", "raw", 0, 10, path, "csv", ignored, overwrite=True) == 10


def test_what_fails_half_way_leaves_nothing(filled: StoreLocation, tmp_path: Path) -> None:
    """Neither a part under the name, nor one under another."""

    def tired(done: int, total: int) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        export(filled, "ptp", "raw", 0, 10, folder / "a.csv", "csv", tired)

    assert list(folder.iterdir()) == []


def test_parquet_without_pyarrow_names_the_extra(
    filled: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that states what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ConfigError, match=r"in timesyncd's source folder, pip install '\.\[parquet\]'"):
        export(filled, "ptp", "raw", 0, 10, tmp_path / "a.parquet", "parquet", ignored)


def test_an_unknown_source_or_folder_is_an_error(filled: StoreLocation, tmp_path: Path) -> None:
    """Each is one line."""
    with pytest.raises(StoreError, match="the store has no samples of source 'unknown'"):
        export(filled, "unknown", "raw", 0, 10, tmp_path / "a.csv", "csv", ignored)
    with pytest.raises(StoreError, match="no/a.csv: No such file or directory"):
        export(filled, "ptp", "raw", 0, 10, tmp_path / "no" / "a.csv", "csv", ignored)
