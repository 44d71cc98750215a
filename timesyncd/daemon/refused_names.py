"""
Reports that the broker delivered more nodes, grandmasters, jobs or hubs than this daemon keeps. Pure: time is an argument.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from timesyncd.clocks import NS_PER_S

log = logging.getLogger(__name__)

REPORTED_EVERY_NS = 60 * NS_PER_S


class RefusedCount(NamedTuple):
    """Since the start: the messages and names of one kind for which there was no room, and the last such name."""

    total: int
    last: str | None


class RefusedNames:
    """The evidence of the finding, which holds for a minute after the last refused name; a log line for each such minute."""

    def __init__(self) -> None:
        self._counted: dict[str, int] = {}
        self._evidence: str | None = None
        self._next_ns = 0

    def evidence(self, refused: Mapping[str, RefusedCount], now_boottime_ns: int) -> str | None:
        """By kind. None: no name was refused in the last minute."""
        if self._evidence is not None and now_boottime_ns < self._next_ns:
            return self._evidence
        grown = [
            f"{count:,} of {kind} (last: {each.last})"
            for kind, each in refused.items()
            if (count := each.total - self._counted.get(kind, 0)) > 0
        ]
        self._counted = {kind: each.total for kind, each in refused.items()}
        if not grown:
            self._evidence = None
            return None
        self._next_ns = now_boottime_ns + REPORTED_EVERY_NS
        self._evidence = f"the broker delivered more names than are kept here; refused or dropped: {', '.join(grown)}"
        log.warning("%s; the next line about it comes in a minute", self._evidence)
        return self._evidence
