"""Where a store is: a file of SQLite, or a database of PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from timesyncd.errors import ConfigError
from timesyncd.sections import Store as Settings
from timesyncd.sections import check_store_url


@dataclass(frozen=True, slots=True)
class Place:
    """Either `path` or `url` is given. As text it names the store in messages to people, without the password."""

    path: Path | None = None
    url: str | None = None
    password: SecretStr | None = None

    @classmethod
    def of(cls, settings: Settings) -> Place:
        """Reads the password. Raises ConfigError."""
        if settings.url is None:
            return cls(path=settings.path)
        return cls(url=settings.url, password=settings.password.reveal() if settings.password else None)

    @classmethod
    def named(cls, text: str) -> Place:
        """
        As somebody wrote it on a command line: a path or a URL. The password is then PGPASSWORD's, or that of ~/.pgpass. Raises
        ConfigError for any other URL.
        """
        if "://" not in text:
            return cls(path=Path(text))
        try:
            check_store_url(text)
        except ValueError:
            raise ConfigError(
                "store: neither a path nor postgresql://user@host:5432/database, whose password is in PGPASSWORD or ~/.pgpass"
            ) from None
        return cls(url=text)

    def __str__(self) -> str:
        return str(self.path) if self.url is None else self.url
