"""`python -m timesyncd.store.migrate PATH`: brings the store's file to this version's tables, all or nothing."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.store.database import BUSY_S, store_error, writer_engine


def upgrade(path: Path) -> None:
    """To the newest revision, in one transaction. Raises SQLAlchemyError, sqlite3.Error and CommandError."""
    with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    engine = writer_engine(path)
    config = Config()
    config.set_main_option("script_location", "timesyncd.store:migrations")
    try:
        with engine.begin() as transaction:
            config.attributes["connection"] = transaction
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def main() -> int:
    path = Path(sys.argv[1])
    try:
        upgrade(path)
    except (SQLAlchemyError, sqlite3.Error) as error:
        print(store_error(path, error), file=sys.stderr)
        return 1
    except CommandError as error:
        print(f"{error} (was the file made by a newer timesyncd?)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
