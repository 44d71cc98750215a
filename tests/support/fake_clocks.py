"""Clocks that show what a test sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from timesyncd.clocks import NS_PER_S


def replace_time(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, **functions: Callable[..., Any]) -> None:
    """Functions of `time` as these modules see them. Threads that other tests started keep the real ones, and leave no trace in a fake."""
    for module in modules:
        monkeypatch.setattr(module, "time", SimpleNamespace(**(vars(time) | functions)))


@dataclass
class FakeClocks:
    """Clocks that tests advance and step."""

    real_ns: int = 1_700_000_000 * NS_PER_S
    boot_ns: int = 1_000 * NS_PER_S

    def realtime_ns(self) -> int:
        return self.real_ns

    def boottime_ns(self) -> int:
        return self.boot_ns

    def advance(self, elapsed_ns: int) -> None:
        """Advance both clocks alike."""
        self.real_ns += elapsed_ns
        self.boot_ns += elapsed_ns

    def step(self, by_ns: int) -> None:
        """Step CLOCK_REALTIME, as an operator or a daemon does."""
        self.real_ns += by_ns
