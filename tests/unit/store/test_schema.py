"""The migrations create the tables of tables.py."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from postgresql import location

from timesyncd.errors import StoreError
from timesyncd.store import engine
from timesyncd.store.engine import StoreLocation, migrate, writer_engine
from timesyncd.store.tables import REVISION, TIMED, clock_sample, has_current_tables, metadata

__all__ = ["location"]


def test_the_migrated_schema_is_the_tables(location: StoreLocation) -> None:
    """From nothing to the newest revision gives tables.py, and a second migration changes nothing."""
    migrate(location)
    migrate(location)
    engine = writer_engine(location)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        differences, revision = compare_metadata(context, metadata), context.get_current_revision()
        is_current = has_current_tables(connection)
    engine.dispose()

    assert (differences, revision, is_current) == ([], REVISION, True)


def test_the_files_folder_is_made(tmp_path: Path) -> None:
    """Where nothing was, the store makes what it needs."""
    path = tmp_path / "new folder" / "history.sqlite"
    migrate(StoreLocation(path=path))

    assert path.exists()


def test_what_a_reading_may_lack_may_be_null() -> None:
    """A port without Announce has samples, and no identities."""
    columns = clock_sample.c

    assert [columns[name].nullable for name in ("grandmaster_identity", "parent_identity")] == [True, True]


def test_every_table_of_samples_is_cut() -> None:
    """What has a source and a time is old one day: retention knows each such table, and keeps roll-ups longer."""
    with_both = [table for table in metadata.sorted_tables if {"source", "realtime_ns"} <= set(table.c.keys())]

    assert {table.name for table in with_both} == {table.name for table in TIMED} | {"rollup"}


@pytest.mark.parametrize("with_revision", [False, True])
def test_another_program_s_file_is_left_as_it_is(tmp_path: Path, with_revision: bool) -> None:
    """Also where that keeps its own revisions, as many programs do, and one of them has the number of one of ours."""
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE runs (id)")
        if with_revision:
            other.execute("CREATE TABLE alembic_version (version_num)")
            other.execute("INSERT INTO alembic_version VALUES ('0002')")
        other.commit()
        before = list(other.iterdump())

    with pytest.raises(StoreError, match=r"mlflow\.db: cannot create .*: another program's tables are there \(runs\)"):
        migrate(StoreLocation(path=path))
    with closing(sqlite3.connect(path)) as other:
        assert list(other.iterdump()) == before


def test_the_file_keeps_a_write_ahead_log(tmp_path: Path) -> None:
    """Readers do not wait for the writer, and a killed writer leaves a whole database."""
    path = tmp_path / "history.sqlite"
    migrate(StoreLocation(path=path))
    with closing(sqlite3.connect(path)) as connection:
        mode = connection.execute("PRAGMA journal_mode").fetchone()

    assert mode == ("wal",)


def test_an_added_table_keeps_an_earlier_version_writing(tmp_path: Path) -> None:
    """The revision stays the one that the earlier version knows, also where the table was once a revision."""
    path = tmp_path / "history.sqlite"
    migrate(StoreLocation(path=path))
    revisions = []
    for former in ("0001", "0002"):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (former,))
            connection.execute("DROP TABLE operator_note")
        migrate(StoreLocation(path=path))
        with closing(sqlite3.connect(path)) as connection:
            revisions += connection.execute("SELECT version_num FROM alembic_version").fetchall()
            assert connection.execute("SELECT count(*) FROM operator_note").fetchone() == (0,)

    assert revisions == [("0001",), ("0001",)]


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    """A file that a newer timesyncd made is left as it is, and the error reports it."""
    path = tmp_path / "history.sqlite"
    migrate(StoreLocation(path=path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(
        StoreError, match=r"history\.sqlite: cannot create or migrate the tables: .*9999.* newer timesyncd"
    ):
        migrate(StoreLocation(path=path))


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    """A foreign file under that name is an error, and remains unchanged."""
    path = tmp_path / "history.sqlite"
    path.write_text("not a database, but longer than nothing " * 10)

    with pytest.raises(StoreError, match="file is not a database"):
        migrate(StoreLocation(path=path))
    assert path.read_text().startswith("not a database")


def test_a_migration_is_all_or_nothing(tmp_path: Path) -> None:
    """A migration that fails at its last table leaves none of the others."""
    path = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE incarnation (a)")

    with pytest.raises(StoreError, match="table incarnation already exists"):
        migrate(StoreLocation(path=path))
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

    with pytest.raises(StoreError, match=r"file/history\.sqlite: cannot create or migrate the tables"):
        migrate(StoreLocation(path=tmp_path / "file" / "history.sqlite"))


def test_a_migration_that_does_not_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A locked store delays the daemon's history and nothing else: the error names the store and the limit."""
    monkeypatch.setattr(engine, "MIGRATION_LIMIT_S", 0.001)

    with pytest.raises(StoreError, match=r"history\.sqlite: cannot create or migrate the tables: .*timed out"):
        migrate(StoreLocation(path=tmp_path / "history.sqlite"))
