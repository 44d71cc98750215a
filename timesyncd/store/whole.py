"""Which of a grandmaster's samples are stored whole: its long lists are the same from poll to poll."""

from __future__ import annotations

from timesyncd.clocks import NS_PER_S
from timesyncd.sample import GrandmasterSample
from timesyncd.store.tables import SLOW

#: However little changes: what deleting old rows, or a file made anew, takes away stands again after this.
WHOLE_EVERY_NS = 3_600 * NS_PER_S


class WholeRows:
    """Of each unit, what its last whole row held."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[object, ...], int]] = {}

    def is_due(self, sample: GrandmasterSample) -> bool:
        """Whether anything slow differs from the last whole row, or that is an hour old. True makes this one the last."""
        values = tuple(getattr(sample, name) for name in SLOW)
        last, since_ns = self._last.get(sample.source, (None, 0))
        if last == values and sample.boottime_ns - since_ns < WHOLE_EVERY_NS:
            return False
        self._last[sample.source] = values, sample.boottime_ns
        return True

    def forget(self) -> None:
        """A whole row may have been lost: each unit's next row is whole."""
        self._last.clear()
