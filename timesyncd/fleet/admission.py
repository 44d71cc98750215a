"""
Which names a hub keeps: a client that may write every node's topic can invent names without end. Pure: time is an argument.

The names that are kept are bounded by number and by bytes. Where there is no room for another one, the newcomer that was
silent longest goes first, then the member that was silent longest. A member that reports never gives way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S

#: A name whose live messages cover so much time is a member. An invented one is mostly used once.
MEMBER_AFTER_NS = 10 * NS_PER_S

#: A member without a message for so long may give way.
SILENT_AFTER_NS = 300 * NS_PER_S

#: More newcomers than this are a flood: then, and until two minutes later, those that sent live messages and are silent for a
#: minute are forgotten. All of them, since a few would keep the memory of the others from being returned.
FEW_NEWCOMERS = 1_000
NEWCOMER_EXPIRES_NS = 60 * NS_PER_S


@dataclass(slots=True)
class _Entry:
    """`first_live_ns` None: only retained copies came."""

    bytes: int
    last_ns: int
    first_live_ns: int | None


class AdmissionResult(NamedTuple):
    """`given_way`: the names that are known no longer, whether or not that made room."""

    admitted: bool
    given_way: list[str]


class Admission:
    """
    `protected` names are always kept, and count neither as names nor as bytes. `refused` counts the messages for which there
    was no room, `dropped` the names that gave way; `last_refused` is the newest of either.
    """

    def __init__(self, most: int, most_bytes: int, protected: Collection[str] = ()) -> None:
        self.refused = 0
        self.dropped = 0
        self.last_refused: str | None = None
        self._most = most
        self._most_bytes = most_bytes
        self._protected = frozenset(protected)
        self._newcomers: OrderedDict[str, _Entry] = OrderedDict()
        self._members: OrderedDict[str, _Entry] = OrderedDict()
        self._bytes = 0
        self._flooded_until_ns = 0

    def __len__(self) -> int:
        return len(self._newcomers) + len(self._members)

    @property
    def bytes(self) -> int:
        """What the names that are kept take."""
        return self._bytes

    def admit(self, name: str, size: int, live: bool, now_ns: int) -> AdmissionResult:
        """
        A message of `name`, which then takes `size` bytes. Not admitted: there is no room, so the message is to be ignored.
        `live` False: a broker's retained copy, which makes no member.
        """
        if name in self._protected:
            return AdmissionResult(True, [])
        known = self._remove(name)
        first_ns = None if known is None else known.first_live_ns
        entry = _Entry(size, now_ns, now_ns if live and first_ns is None else first_ns)
        given_way = self._make_room(size, now_ns)
        has_room = len(self) < self._most and self._bytes + size <= self._most_bytes
        if has_room:
            self._keep(name, entry)
        else:
            self.refused += 1
            self.last_refused = name
            if known is not None:
                self._keep(name, known)
        return AdmissionResult(has_room, given_way)

    def repeat(self, name: str, now_ns: int) -> None:
        """A live message of a name that is kept, of the same size as its last one."""
        entry = self._remove(name)
        if entry is not None:
            first_ns = now_ns if entry.first_live_ns is None else entry.first_live_ns
            self._keep(name, _Entry(entry.bytes, now_ns, first_ns))

    def expire(self, now_ns: int) -> list[str]:
        """The newcomers that are forgotten now."""
        if len(self._newcomers) > FEW_NEWCOMERS:
            self._flooded_until_ns = now_ns + 2 * NEWCOMER_EXPIRES_NS
        if now_ns >= self._flooded_until_ns:
            return []
        silent = takewhile(lambda each: now_ns - each[1].last_ns >= NEWCOMER_EXPIRES_NS, self._newcomers.items())
        gone = [name for name, entry in silent if entry.first_live_ns is not None]
        for name in gone:
            self._remove(name)
        if gone:
            self._newcomers = OrderedDict(self._newcomers)  # it kept the room of its most entries
        return gone

    def remove(self, name: str) -> None:
        """The name is known no longer."""
        self._remove(name)

    def _make_room(self, size: int, now_ns: int) -> list[str]:
        """No name gives way to what would not fit into an empty hub."""
        given_way: list[str] = []
        while size <= self._most_bytes and (len(self) >= self._most or self._bytes + size > self._most_bytes):
            name = self._next_to_go(now_ns)
            if name is None:
                break
            self._remove(name)
            self.dropped += 1
            self.last_refused = name
            given_way.append(name)
        return given_way

    def _next_to_go(self, now_ns: int) -> str | None:
        """Both are in the order of the last messages."""
        if self._newcomers:
            return next(iter(self._newcomers))
        name = next(iter(self._members), None)
        is_silent = name is not None and now_ns - self._members[name].last_ns >= SILENT_AFTER_NS
        return name if is_silent else None

    def _keep(self, name: str, entry: _Entry) -> None:
        is_member = entry.first_live_ns is not None and entry.last_ns - entry.first_live_ns >= MEMBER_AFTER_NS
        (self._members if is_member else self._newcomers)[name] = entry
        self._bytes += entry.bytes

    def _remove(self, name: str) -> _Entry | None:
        entry = self._newcomers.pop(name, None) or self._members.pop(name, None)
        if entry is not None:
            self._bytes -= entry.bytes
        return entry
