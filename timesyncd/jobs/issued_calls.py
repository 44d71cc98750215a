"""
How many collectives and messages the ranks of a job issued that no mark shows, as each rank wrote it into a file beside
its marks. Pure but for `read_calls`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from timesyncd.client.files import read_file
from timesyncd.ipc.group_marks import MAX_UNMETERED_PART

#: A sentence lists so many kinds of calls before "and others".
_MAX_LISTED = 6

_MESSAGES = frozenset({"send", "recv", "batch_p2p_ops"})

#: The largest file that is read, and the longest name in it.
_MAX_BYTES, _MAX_NAME = 100_000, 40

#: A larger number is no count of calls; sums of it over all ranks fit a message.
_MAX_COUNT = 2**40


class CallKind(NamedTuple):
    """A collective or message, by the number of ranks of its group, and the dimension of the mesh that the group is of (None: of none)."""

    name: str
    group_size: int
    dimension: str | None


@dataclass(frozen=True, slots=True)
class IssuedCallCounts:
    """
    Over all ranks, from each one's third step on. `beside`: the calls of threads beside the one that trains, for which no
    step waits.
    """

    metered: int = 0
    unmetered: Mapping[CallKind, int] = field(default_factory=dict)
    beside: int = 0

    @property
    def unmetered_calls(self) -> int:
        return sum(self.unmetered.values())

    @property
    def is_account(self) -> bool:
        """Whether nearly all calls have marks."""
        return self.unmetered_calls <= MAX_UNMETERED_PART * (self.metered + self.unmetered_calls)


def unmetered_text(counts: IssuedCallCounts) -> str:
    """For people: `send: 412 calls, all_reduce in tp groups of 2 ranks: 96 calls`; the most frequent first."""
    in_order = sorted(counts.unmetered.items(), key=lambda each: (-each[1], str(each[0])))
    texts = [f"{_kind_text(kind)}: {calls:,} calls" for kind, calls in in_order[:_MAX_LISTED]]
    return ", ".join(texts) + (", and others" if len(in_order) > _MAX_LISTED else "")


def _kind_text(kind: CallKind) -> str:
    dimension = "" if kind.dimension is None else f"{kind.dimension} "
    if kind.name in _MESSAGES:
        return f"{kind.name} in {dimension}groups" if dimension else kind.name
    return f"{kind.name} in {dimension}groups of {kind.group_size} ranks"


def parse_calls(data: bytes) -> IssuedCallCounts:
    """One rank's file. Raises ValueError."""
    try:
        content = json.loads(data)
        unmetered = {
            CallKind(_name(name), _count(size), None if dimension is None else _name(dimension)): _count(calls)
            for name, size, dimension, calls in content["unmetered"]
        }
        return IssuedCallCounts(_count(content["metered"]), unmetered, _count(content.get("beside", 0)))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no counts of calls: {error}") from error


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isidentifier() or len(value) > _MAX_NAME:
        raise ValueError(f"{value!r} is not the name of a call")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_COUNT:
        raise ValueError(f"{value!r} is not a count")
    return value


def sum_calls(ranks: Iterable[IssuedCallCounts]) -> IssuedCallCounts:
    metered, unmetered, beside = 0, Counter[CallKind](), 0
    for each in ranks:
        metered += each.metered
        beside += each.beside
        unmetered.update(each.unmetered)
    return IssuedCallCounts(metered, unmetered, beside)


def read_calls(folder: Path) -> IssuedCallCounts | None:
    """Of the `rank-*.calls` files; None: there is none. A file that a rank did not finish is left out."""
    found = []
    for path in sorted(folder.glob("rank-*.calls")):
        with suppress(OSError, ValueError):
            found.append(parse_calls(read_file(path, _MAX_BYTES)))
    return sum_calls(found) if found else None
