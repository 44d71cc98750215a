"""Averages and extremes of the newest values of a sequence, in constant time for each. Pure."""

from __future__ import annotations

from collections import deque

#: What is so many times the usual is no noise.
UNUSUAL = 4.0

#: The usual is an average over some so many values,
_REMEMBERED = 32

#: the first of which count as they are.
_FIRST = 8


class Usual:
    """The usual size of noise: an average in which what is unusual counts as little as if it were not."""

    def __init__(self) -> None:
        self.size = 0.0
        self._count = 0

    @property
    def known(self) -> bool:
        return self._count >= _FIRST

    def take(self, size: float) -> None:
        if self.known:
            size = min(size, UNUSUAL * self.size + 1)
        self._count += 1
        self.size += (size - self.size) / min(self._count, _REMEMBERED)


class SlidingMaximum:
    """The largest of the values whose number is not yet below `expire`'s. Numbers rise."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, float]] = deque()

    def push(self, number: int, value: float) -> None:
        kept = self._kept
        while kept and kept[-1][1] <= value:
            kept.pop()
        kept.append((number, value))

    def expire(self, first: int) -> None:
        kept = self._kept
        while kept and kept[0][0] < first:
            kept.popleft()

    def __bool__(self) -> bool:
        return bool(self._kept)

    @property
    def value(self) -> float:
        """Raises IndexError where there is none."""
        return self._kept[0][1]
