"""For how long a rank of a mesh only waited in a step, in all its groups together, and which work it did there."""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import islice

#: So many waits of a step are kept apart; the oldest ones are then added up.
MAX_WAITS = 4_096

#: A step with more synchronizations has no number of its work.
MAX_CALLS = 65_536


@dataclass(slots=True)
class StepWaits:
    """
    The waits since the last step's end, as disjoint intervals in CLOCK_REALTIME ns, and the synchronizations with the
    times of their arrivals. Not safe between threads.
    """

    in_groups: bool = False
    _waits: list[tuple[int, int]] = field(default_factory=list)
    _calls: list[tuple[int, str]] = field(default_factory=list)

    def add(self, call: str, arrival_ns: int, begin_ns: int, end_ns: int, in_group: bool) -> None:
        """A synchronization with this kind and group, in which the rank only waited from `begin_ns` to `end_ns`."""
        self.in_groups = self.in_groups or in_group
        if len(self._calls) <= MAX_CALLS:
            self._calls.append((arrival_ns, call))
        waits = self._waits
        while waits and waits[-1][1] >= begin_ns:
            if waits[-1][0] > end_ns:  # it ended before a wait that is known already
                self._insert(begin_ns, end_ns)
                return
            earlier_begin_ns, earlier_end_ns = waits.pop()
            begin_ns, end_ns = min(begin_ns, earlier_begin_ns), max(end_ns, earlier_end_ns)
        if end_ns > begin_ns:
            waits.append((begin_ns, end_ns))
            if len(waits) > MAX_WAITS:
                self._join_oldest()

    def own_ns(self, begin_ns: int, end_ns: int) -> int:
        """For how long the rank did not only wait from `begin_ns` to `end_ns`. Call it before the step's end."""
        found, at = max(0, end_ns - begin_ns), bisect_right(self._waits, (begin_ns, begin_ns))
        for begin, end in islice(self._waits, max(0, at - 1), None):
            if begin >= end_ns:
                break
            found -= max(0, min(end, end_ns) - max(begin, begin_ns))
        return found

    def end_step(self, begin_ns: int, end_ns: int, place: str) -> tuple[int, int]:
        """
        The number of the step's work (0: unknown), and for how long the rank only waited in it. What goes on in the next
        step counts there. `place`: which of the ranks with the same synchronizations do the same work.
        """
        waited_ns = sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in self._waits)
        self._waits = [(max(begin, end_ns), end) for begin, end in self._waits if end > end_ns]
        calls, self._calls = sorted(self._calls, key=lambda call: call[0]), []
        self.in_groups = False
        if len(calls) > MAX_CALLS:
            return 0, waited_ns
        program = ";".join([place, *(call for _, call in calls)])
        return zlib.crc32(program.encode()) or 1, waited_ns

    def _insert(self, begin_ns: int, end_ns: int) -> None:
        intervals = sorted([*self._waits, (begin_ns, end_ns)])
        self._waits = []
        for begin, end in intervals:
            if self._waits and begin <= self._waits[-1][1]:
                self._waits[-1] = self._waits[-1][0], max(end, self._waits[-1][1])
            elif end > begin:
                self._waits.append((begin, end))

    def _join_oldest(self) -> None:
        """Two intervals become one of the same length in all."""
        (first_begin, first_end), (begin, end) = self._waits[:2]
        self._waits[:2] = [(begin - (first_end - first_begin), end)]
