"""A store as a command line names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from timesyncd.errors import ConfigError
from timesyncd.store.engine import StoreLocation


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("history.sqlite", StoreLocation(path=Path("history.sqlite"))),
        ("/var/lib/a:b@c/history.sqlite", StoreLocation(path=Path("/var/lib/a:b@c/history.sqlite"))),
        ("postgresql://reader@db:5432/n1", StoreLocation(url="postgresql://reader@db:5432/n1")),
        ("postgresql://db/n1?host=/run/a@b", StoreLocation(url="postgresql://db/n1?host=/run/a@b")),
    ],
)
def test_a_path_or_a_url(text: str, location: StoreLocation) -> None:
    """What has no scheme is a file."""
    assert StoreLocation.named(text) == location


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:swordfish@db/t",
        "postgres://me:swordfish@db/t",
        "postgresql+psycopg://me:swordfish@db/t",
        "postgresql://me:swordfish@db",
        "postgresql://me:sword/fish@db",
        "postgresql://me:sword/fish@db/t",
        "postgresql://me:sword?fish@db/t",
        "postgresql://db/t?password=swordfish",
        "postgres://db/swordfish",
        "mysql://db/swordfish",
        "postgresql://",
    ],
)
def test_another_url_is_refused(text: str) -> None:
    """It is not taken for a file, and the error does not contain the password."""
    with pytest.raises(ConfigError, match="postgresql://user@host") as refused:
        StoreLocation.named(text)

    assert "fish" not in str(refused.value)
