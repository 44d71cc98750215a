"""`python -m timesyncd.store.migrate PATH|URL`: brings the store to this version's tables, all or nothing."""

from __future__ import annotations

import sqlite3
import sys

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.errors import StoreError
from timesyncd.store import sqlite
from timesyncd.store.engine import Place, store_error, writer_engine


def upgrade(place: Place) -> None:
    """To the newest revision, in one transaction. Raises OSError, SQLAlchemyError, sqlite3.Error, StoreError and CommandError."""
    if place.path is not None:
        sqlite.prepare(place.path)
    engine = writer_engine(place)
    config = Config()
    config.set_main_option("script_location", "timesyncd.store:migrations")
    try:
        with engine.begin() as transaction:
            if place.url is not None:
                transaction.exec_driver_sql("SET LOCAL statement_timeout = 0")
            config.attributes["connection"] = transaction
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def main() -> int:
    place = Place.named(sys.argv[1])
    try:
        upgrade(place)
    except (SQLAlchemyError, sqlite3.Error) as error:
        print(store_error(place, error), file=sys.stderr)
        return 1
    except CommandError as error:
        print(f"{error} (was the store made by a newer timesyncd?)", file=sys.stderr)
        return 1
    except (OSError, StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
