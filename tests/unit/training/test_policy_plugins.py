"""Parts that other distributions install: what is rejected, and which names win."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch

from timesyncd.training.policy import plugins
from timesyncd.training.policy.text import parse_policy
from timesyncd.training.torch.averaging import DenseReducer
from timesyncd.training.torch.reducing import plain_reducer

HERE = __name__


@dataclass(frozen=True)
class NoDecision:
    """Lacks what a policy needs."""

    h: int = 1


class OwnReducer(DenseReducer):
    """A backend's."""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that installs an entry point for this test."""
    plugins.installed_parts.cache_clear()
    found: dict[str, list[EntryPoint]] = {}
    monkeypatch.setattr(plugins, "entry_points", lambda group: found.get(group, []))

    def installed(group: str, name: str, value: str) -> None:
        plugins.installed_parts.cache_clear()
        found.setdefault(group, []).append(EntryPoint(name, value, group))

    yield installed
    plugins.installed_parts.cache_clear()


def test_a_module_that_is_missing_is_named(install: Any) -> None:
    """With the entry point, in one line."""
    install(plugins.POLICIES_GROUP, "mine", "no_such_module_here:Mine")
    with pytest.raises(
        ValueError, match="the entry point mine = no_such_module_here:Mine of .* cannot be loaded"
    ) as error:
        parse_policy("mine(h=2)")
    assert "\n" not in str(error.value)


def test_what_is_no_policy_is_rejected(install: Any) -> None:
    """A class without a decision."""
    install(plugins.POLICIES_GROUP, "mine", f"{HERE}:NoDecision")
    with pytest.raises(ValueError, match="mine of timesyncd.policies must be a dataclass with decide, combines, late"):
        parse_policy("mine")


def test_own_names_are_not_replaced(install: Any) -> None:
    """Another distribution cannot change what `bsp` means."""
    install(plugins.POLICIES_GROUP, "bsp", f"{HERE}:NoDecision")
    assert type(parse_policy("bsp").policy).__name__ == "BSP"


class Group:
    """A process group of one backend, as far as it is asked for its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _get_backend(self, device: torch.device) -> Group:
        return self

    def name(self) -> str:
        return self._name

    def reducer(self) -> Any:
        group: Any = self
        return plain_reducer(group, torch.device("cpu"))


def test_a_backend_brings_its_own_reducer(install: Any) -> None:
    """By the name of the group's backend in torch; gloo and NCCL use torch's collectives, and so does an unknown one."""
    install(plugins.BACKENDS_GROUP, "other", f"{HERE}:OwnReducer")
    install(plugins.BACKENDS_GROUP, "gloo", f"{HERE}:OwnReducer")

    assert type(Group("other").reducer()) is OwnReducer
    assert [type(Group(name).reducer()) for name in ("gloo", "nccl", "unknown")] == [DenseReducer] * 3
