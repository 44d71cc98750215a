"""`python -m timesyncd.store.migrate PATH|URL`: brings the store to this version's tables, in one transaction."""

from __future__ import annotations

import sqlite3
import sys

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.errors import StoreError
from timesyncd.store.damage import is_damage
from timesyncd.store.engine import DAMAGED_STATUS, StoreLocation, prepare_file, store_error, writer_engine
from timesyncd.store.tables import metadata

#: So many of another program's tables are listed in an error.
_LISTED = 5


def upgrade(location: StoreLocation) -> None:
    """To the newest revision, in one transaction. Raises OSError, SQLAlchemyError, sqlite3.Error, StoreError and CommandError."""
    if location.path is not None:
        prepare_file(location.path)
    engine = writer_engine(location)
    config = Config()
    config.set_main_option("script_location", "timesyncd.store:migrations")
    try:
        with engine.begin() as transaction:
            if location.url is not None:
                transaction.exec_driver_sql("SET LOCAL statement_timeout = 0")
            config.attributes["connection"] = transaction
            _check_owner(location, transaction)
            _forget_revision_of_added_table(transaction)
            command.upgrade(config, "head")
            # A table that a version only adds has no revision: an earlier version does not notice it, and writes on.
            metadata.create_all(transaction)
    finally:
        engine.dispose()


def _check_owner(location: StoreLocation, connection: Connection) -> None:
    """
    Raises StoreError for another program's file, or for a schema whose revisions are another program's: many programs keep such
    ones. In a schema of PostgreSQL without revisions other tables may be.
    """
    names = set(inspect(connection).get_table_names())
    others = names - metadata.tables.keys() - {"alembic_version"}
    is_shared = location.path is None and "alembic_version" not in names
    if others and names.isdisjoint(metadata.tables) and not is_shared:
        listed = ", ".join(sorted(others)[:_LISTED])
        raise StoreError(f"another program's tables are there ({listed}): name another store")


def _forget_revision_of_added_table(connection: Connection) -> None:
    """For a day the table of operators' notes was a revision of its own, which kept earlier versions from the store."""
    if inspect(connection).has_table("alembic_version"):
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001' WHERE version_num = '0002'")


def main() -> int:
    location = StoreLocation.named(sys.argv[1])
    try:
        upgrade(location)
    except (SQLAlchemyError, sqlite3.Error) as error:
        print(store_error(location, error), file=sys.stderr)
        return DAMAGED_STATUS if is_damage(getattr(error, "orig", None) or error) else 1
    except CommandError as error:
        print(f"{error}: a newer timesyncd made this store; run that version or name another store", file=sys.stderr)
        return 1
    except (OSError, StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
