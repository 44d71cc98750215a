"""A real PostgreSQL of our own, once a session, and the places that a test of the store is run on."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.config import StoreSettings as Settings
from timesyncd.store import writer
from timesyncd.store.engine import StoreLocation, reading, store_error, writer_engine
from timesyncd.store.migrate import upgrade
from timesyncd.store.tables import metadata

USER = "postgres"
#: A client that connects as this user needs a password.
GUARDED_USER = "guarded"


class Server:
    """Reached by a UNIX socket in its own folder. It refuses to run as root. `primary`: it replicates that one and is read-only."""

    def __init__(self, primary: Server | None = None) -> None:
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not installed:
            pytest.skip("PostgreSQL's server is not installed")
        self.binaries = installed[-1]
        self.folder = Path(tempfile.mkdtemp())
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
        self.folder.chmod(0o755)
        if primary is None:
            self._run("initdb", "--no-sync", "--auth=trust", f"--username={USER}", "-D", self._data)
            hba = self.folder / "data" / "pg_hba.conf"
            hba.write_text(f"local all {GUARDED_USER} scram-sha-256\n" + hba.read_text())
        else:
            at = ("-h", str(primary.folder), "-U", USER, "-D", self._data)
            self._run("pg_basebackup", *at, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self.start()

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        """Returns when it answers."""
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command("postgres", "-D", self._data, *options), stderr=log)
        until_s = time.monotonic() + 60
        while self._is_away():
            assert time.monotonic() < until_s, (self.folder / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """As kill -9 does; its other processes end by themselves when they see it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def promote(self) -> None:
        """A standby: returns when it accepts writes."""
        self._run("pg_ctl", "promote", "-D", self._data)

    def remove(self) -> None:
        """Stopped so that it leaves no shared memory behind."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def database(self) -> StoreLocation:
        """A new and empty one."""
        name = f"store_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return StoreLocation(url=self.url(name))

    def url(self, name: str, user: str = USER) -> str:
        return f"postgresql://{user}@localhost/{name}?host={self.folder}"

    def sql(self, command: str, database: str = USER) -> None:
        options = ("-h", str(self.folder), "-U", USER, "-d", database, "-v", "ON_ERROR_STOP=1")
        self._run("psql", *options, "-qc", command)

    def _is_away(self) -> bool:
        command = self._command("pg_isready", "-q", "-h", str(self.folder))
        return subprocess.run(command, check=False).returncode != 0

    def _run(self, *command: str) -> None:
        subprocess.run(self._command(*command), check=True, stdout=subprocess.DEVNULL, cwd="/")

    def _command(self, program: str, *options: str) -> list[str]:
        """It ends with us, however we end."""
        unprivileged = ["--reuid", USER, "--regid", str(pwd.getpwnam(USER).pw_gid), "--clear-groups"]
        identity = unprivileged if os.geteuid() == 0 else []
        return ["setpriv", *identity, "--pdeathsig", "QUIT", str(self.binaries / program), *options]


@cache
def shared_server() -> Server:
    server = Server()
    atexit.register(server.remove)
    return server


@contextmanager
def own_server(primary: Server | None = None) -> Iterator[Server]:
    server = Server(primary)
    try:
        yield server
    finally:
        server.remove()


_migration = Lock()


def migrate_here(location: StoreLocation) -> None:
    """`engine.migrate` without its child process, which loads Alembic for most of a second; test_schema.py tests that one."""
    with _migration:
        try:
            upgrade(location)
        except SQLAlchemyError as error:
            raise store_error(location, error) from error


@pytest.fixture
def location(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreLocation:
    """An empty store of the kind that `--database` names. A writer that is started makes its tables in this process."""
    monkeypatch.setattr(writer, "migrate", migrate_here)
    if database == "sqlite":
        return StoreLocation(path=tmp_path / "history.sqlite")
    return shared_server().database()


def database_of(location: StoreLocation) -> str:
    """Its name on the server."""
    return str(make_url(str(location)).database)


def settings_of(location: StoreLocation, **more: Any) -> Settings:
    where = {"path": location.path} if location.url is None else {"url": location.url}
    return Settings.model_validate(where | more)


@contextmanager
def ready(location: StoreLocation) -> Iterator[Engine]:
    """With all tables, made without the process that migrates."""
    engine = writer_engine(location)
    try:
        with engine.begin() as connection:
            metadata.create_all(connection)
        yield engine
    finally:
        engine.dispose()


def rows_of(location: StoreLocation, sql: str) -> list[tuple[Any, ...]]:
    """The rows that the database itself returns."""
    with reading(location) as connection:
        return [tuple(row) for row in connection.execute(text(sql))]


@contextmanager
def locked(location: StoreLocation, *tables: str) -> Iterator[None]:
    """No other connection can write to these tables; in SQLite, to none. It waits for the lock, however short the store's intervals are."""
    if location.path is not None:
        with closing(sqlite3.connect(location.path, isolation_level=None, timeout=60)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
        return
    engine = writer_engine(location)
    try:
        with engine.begin() as transaction:
            transaction.execute(text("SET lock_timeout = '30s'"))
            transaction.execute(text(f"LOCK TABLE {', '.join(tables)} IN EXCLUSIVE MODE"))
            yield
    finally:
        engine.dispose()


def locked_error(location: StoreLocation) -> str:
    return f"{location}: {'database is locked' if location.url is None else 'canceling statement due to lock timeout'}"
