"""The fixtures of the tests in this folder: a test module names this one in `pytest_plugins`. `make vm-test` runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vm_build import build
from vm_cache import Cache, NeedNotMet, check_needs, default_cache
from vm_lab import Lab


@pytest.fixture(scope="session")
def vm_cache() -> Cache:
    """The parts of the machines, made where they are missing. Ends the run with status 2 where this machine lacks something."""
    cache = default_cache()
    try:
        check_needs()
        build(cache)
    except NeedNotMet as error:
        pytest.exit(f"vm: {error}", returncode=2)
    return cache


@pytest.fixture
def lab(vm_cache: Cache) -> Iterator[Lab]:
    """A lab of its own; its machines end with the test."""
    with Lab(vm_cache) as lab:
        yield lab
