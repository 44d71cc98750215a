"""Migrations make what tables.py says."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from postgresql import place
from samples import HEALTHY

from timesyncd.errors import StoreError
from timesyncd.store import history
from timesyncd.store.engine import Place, migrate, writer_engine
from timesyncd.store.rows import CLOCK_COLUMNS, clock_values
from timesyncd.store.tables import TIMED, metadata

__all__ = ["place"]


def test_the_migrated_schema_is_the_tables(place: Place) -> None:
    """From nothing to the newest revision gives tables.py, and a second migration changes nothing."""
    migrate(place)
    migrate(place)
    engine = writer_engine(place)
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()

    assert differences == []


def test_the_files_folder_is_made(tmp_path: Path) -> None:
    """Where nothing was, the store makes what it needs."""
    path = tmp_path / "new folder" / "history.sqlite"
    migrate(Place(path=path))

    assert path.exists()


def test_every_table_of_samples_is_cut() -> None:
    """What has a source and a time is old one day: retention knows each such table, and keeps roll-ups longer."""
    with_both = [table for table in metadata.sorted_tables if {"source", "realtime_ns"} <= set(table.c.keys())]

    assert {table.name for table in with_both} == {table.name for table in TIMED} | {"rollup"}


def made_at(revision: str, path: Path) -> None:
    """The file as a timesyncd of that revision made it."""
    config = Config()
    config.set_main_option("script_location", "timesyncd.store:migrations")
    engine = writer_engine(Place(path=path))
    with engine.begin() as transaction:
        config.attributes["connection"] = transaction
        command.upgrade(config, revision)
    engine.dispose()


def test_a_file_of_the_first_version_keeps_its_rows(tmp_path: Path) -> None:
    """What 0001 stored is read as before, its rows whole; what 0002 adds is NULL in them."""
    path = tmp_path / "history.sqlite"
    made_at("0001", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO grandmaster_sample (source, realtime_ns, boottime_ns, clock_class, model, satellites)"
            """ VALUES ('gm', 5, 6, 6, 'TP', '[{"number": 3}]')"""
        )
        connection.execute("INSERT INTO finding VALUES ('a', 'b', 1, NULL, 'info', 'e', 'c', 'r')")
    migrate(Place(path=path))
    [record] = history.samples(Place(path=path), "gm", 0, 10)
    with closing(sqlite3.connect(path)) as connection:
        finding = connection.execute("SELECT finding_id, remedy, chain FROM finding").fetchall()

    assert (record["clock_class"], record["model"], record["satellites"]) == (6, "TP", [{"number": 3}])
    assert (record["ports"], record["leap"], record["alarms"]) == (None, None, None)
    assert finding == [("a", "r", None)]


def test_a_file_of_the_second_version_keeps_its_samples(tmp_path: Path) -> None:
    """A clock's samples are read as before; what 0003 adds is NULL in them, and its tables are there and empty."""
    path = tmp_path / "history.sqlite"
    made_at("0002", path)
    row = dict(zip(CLOCK_COLUMNS, clock_values(HEALTHY, None), strict=True))
    old = {name: value for name, value in row.items() if name not in (*ADDED_BY_0003, "domain") and value is not None}
    with closing(sqlite3.connect(path)) as connection, connection:
        names, marks = ", ".join(old), ", ".join("?" * len(old))
        connection.execute(f"INSERT INTO clock_sample ({names}) VALUES ({marks})", list(old.values()))
    migrate(Place(path=path))
    [record] = history.samples(Place(path=path), HEALTHY.source, 0, 2**62)

    assert {name: record[name] for name in old} == old
    assert [record[name] for name in ADDED_BY_0003] == [None] * len(ADDED_BY_0003)
    assert history.sources(Place(path=path)) == {HEALTHY.source: "clock"}


ADDED_BY_0003 = (
    "read_ns", "exchanges", "parent_stat_bound_ns", "parent_stat_growth_ppb", "gm_stat_bound_ns", "gm_stat_growth_ppb",
    "utc_stat_bound_ns", "utc_stat_growth_ppb", "stat_terms", "rates",
)  # fmt: skip


def test_the_file_keeps_a_write_ahead_log(tmp_path: Path) -> None:
    """Readers do not wait for the writer, and a killed writer leaves a whole database."""
    path = tmp_path / "history.sqlite"
    migrate(Place(path=path))
    with closing(sqlite3.connect(path)) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()

    assert mode == ("wal",)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    """A file that a newer timesyncd made is left as it is, and the error says so."""
    path = tmp_path / "history.sqlite"
    migrate(Place(path=path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(StoreError, match=r"history\.sqlite: cannot be made ready: .*9999.* newer timesyncd"):
        migrate(Place(path=path))


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    """Somebody's own file under that name is an error, and unharmed."""
    path = tmp_path / "history.sqlite"
    path.write_text("not a database, but longer than nothing " * 10)

    with pytest.raises(StoreError, match="file is not a database"):
        migrate(Place(path=path))
    assert path.read_text().startswith("not a database")


def test_a_migration_is_all_or_nothing(tmp_path: Path) -> None:
    """A migration that fails at its last table leaves none of the others."""
    path = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE incarnation (a)")

    with pytest.raises(StoreError, match="table incarnation already exists"):
        migrate(Place(path=path))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("incarnation",)]


def test_the_writer_imports_no_alembic() -> None:
    """Alembic costs the daemon no memory: only the process that migrates imports it."""
    script = (
        "import sys, timesyncd.store.writer, timesyncd.store.history; print({'alembic', 'rich'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout

    assert printed == "set()\n"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """The path's folder is made; where it cannot be, the error names the path."""
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match=r"file/history\.sqlite: cannot be made ready"):
        migrate(Place(path=tmp_path / "file" / "history.sqlite"))
