"""
`pytest --database postgresql` repeats on PostgreSQL every test that uses a store; without it they run on SQLite.

A fixture that makes a store asks the fixture `database` for the kind, and by that the tests are found.
"""

from __future__ import annotations

import pytest

DATABASES = ("sqlite", "postgresql")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=DATABASES, default=DATABASES[0], help="what the store's tests run on")


@pytest.fixture(scope="session")
def database(request: pytest.FixtureRequest) -> str:
    """The kind of store to test, one of DATABASES."""
    kind: str = request.config.getoption("--database")
    return kind


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL only the tests of a store remain: the others ran on the first pass."""
    if config.getoption("--database") == "postgresql":
        items[:] = [item for item in items if "database" in getattr(item, "fixturenames", ())]
