"""The connection to PostgreSQL."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr
from sqlalchemy import Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from timesyncd.errors import StoreError

if TYPE_CHECKING:
    import psycopg

#: How long a statement waits for another connection's lock before it fails.
BUSY_S = 5.0
#: Longer than any statement of the writer takes; a migration has no limit.
STATEMENT_S = 60.0
#: A server that vanishes closes no connection: after so long without an acknowledgement the connection is given up.
GONE_S = 10.0
_CONNECT_S = 5


def writer_engine(url: str, password: SecretStr | None) -> Engine:
    """A commit is on the server's disk when it returns, as its configuration says. Raises StoreError."""
    return _engine(url, password, read_only=False)


def reader_engine(url: str, password: SecretStr | None) -> Engine:
    """Raises StoreError."""
    return _engine(url, password, read_only=True, poolclass=NullPool)


def _engine(url: str, password: SecretStr | None, *, read_only: bool, **pooling: Any) -> Engine:
    try:
        engine = create_engine(
            _with_password(url, password),
            connect_args={"connect_timeout": _CONNECT_S, "application_name": "timesyncd"} | _gone_after(GONE_S),
            paramstyle="format",
            json_serializer=partial(json.dumps, separators=(",", ":")),
            **pooling,
        )
    except ImportError as error:
        raise StoreError(f"{url}: psycopg is not installed: pip install 'timesyncd[postgresql]'") from error
    except (SQLAlchemyError, ValueError) as error:
        raise StoreError(f"{url}: not a database URL; give postgresql://user@host:5432/database") from error

    @event.listens_for(engine, "connect")
    def _connected(connection: psycopg.Connection[Any], _: Any) -> None:
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = {round(BUSY_S * 1_000)}")
        if not read_only:
            connection.execute(f"SET statement_timeout = {round(STATEMENT_S * 1_000)}")
        connection.autocommit = False
        connection.read_only = read_only
        _replace_nul(connection)

    return engine


def _gone_after(seconds: float) -> dict[str, int]:
    """libpq's keepalive options; its default is two hours."""
    every_s = max(1, round(seconds / 5))
    idle = {"keepalives_idle": every_s, "keepalives_interval": every_s, "keepalives_count": 4}
    return idle | {"tcp_user_timeout": round(seconds * 1_000)}


def _with_password(url: str, password: SecretStr | None) -> URL:
    at = make_url(url).set(drivername="postgresql+psycopg")
    return at if password is None else at.set(password=password.get_secret_value())


def _replace_nul(connection: psycopg.Connection[Any]) -> None:
    """PostgreSQL text cannot contain U+0000; a device's text that does must not fail a whole batch."""
    from psycopg.types.string import StrDumperUnknown

    class WithoutNul(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    connection.adapters.register_dumper(str, WithoutNul)
