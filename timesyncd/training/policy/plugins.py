"""
Policies, compressions and backends by their names: timesyncd's own, and those that other distributions install as entry
points. A name of timesyncd's own is not replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

#: The groups of the entry points.
POLICIES_GROUP, COMPRESSIONS_GROUP, BACKENDS_GROUP = (
    "timesyncd.policies",
    "timesyncd.compressions",
    "timesyncd.backends",
)

_Part = TypeVar("_Part")


@cache
def installed_parts(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of other distributions, by name. They are looked up once in a process."""
    return {entry.name: entry for entry in entry_points(group=group)}


def load_part(group: str, name: str) -> Any:
    """What the entry point names. Raises ValueError where it cannot be imported."""
    entry = installed_parts(group)[name]
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the entry point {name} = {entry.value} of {group} cannot be loaded: {error}") from error


class Registry(Generic[_Part]):
    """The kinds of one part of a strategy by their names. Each kind is a frozen dataclass with the methods in `needs`."""

    def __init__(self, group: str, own: Mapping[str, Callable[..., _Part]], *needs: str) -> None:
        self._group, self._own, self._needs = group, own, needs

    def names(self) -> list[str]:
        return [*self._own, *sorted(installed_parts(self._group).keys() - self._own.keys())]

    def find(self, name: str) -> Callable[..., _Part] | None:
        """None: no part has this name. Raises ValueError for an entry point that is no such part."""
        if name in self._own:
            return self._own[name]
        return self._loaded(name) if name in installed_parts(self._group) else None

    def name_of(self, part: _Part) -> str:
        """The name under which this part was found."""
        own = next((name for name, kind in self._own.items() if type(part) is kind), None)
        if own is not None:
            return own
        return next(name for name in installed_parts(self._group) if type(part) is load_part(self._group, name))

    def _loaded(self, name: str) -> Callable[..., _Part]:
        kind = load_part(self._group, name)
        if not dataclasses.is_dataclass(kind) or not all(hasattr(kind, need) for need in self._needs):
            raise ValueError(
                f"the entry point {name} of {self._group} must be a dataclass with {', '.join(self._needs)}"
            )
        found: Callable[..., _Part] = kind  # type: ignore[assignment]
        return found
