"""`pytest --database postgresql` repeats on PostgreSQL every test whose store a fixture provides; without it they run on SQLite."""

from __future__ import annotations

import pytest

DATABASES = ("sqlite", "postgresql")

#: The fixtures that make a store of the chosen kind.
FIXTURES = {"place", "engine"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=DATABASES, default="sqlite", help="what the store's tests run on")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL only the tests with such a fixture remain: the others do not touch a store, and ran on the first pass."""
    if config.getoption("--database") == "postgresql":
        items[:] = [item for item in items if FIXTURES & set(getattr(item, "fixturenames", ()))]
