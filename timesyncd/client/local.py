"""What a rank measures of itself, with or without a daemon: fixed-size rings and sums, and no comparison of two clocks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import Kind, Trait, kinds_with
from timesyncd.units import percentile

#: The window holds this many steps, updates, replies and staleness values, each.
WINDOW = 1_000

#: No step lasts a day: if one seems to, the clock was set.
_LONGEST_NS = 86_400 * NS_PER_S

# A plain int is compared faster than an enum member.
_WAITED_FOR = frozenset(map(int, kinds_with(Trait.WAITED_FOR)))
_REQUESTS = frozenset(map(int, kinds_with(Trait.REQUEST)))
_STEP, _STALENESS = int(Kind.STEP), int(Kind.STALENESS)


@dataclass(frozen=True, slots=True)
class LocalSignals:
    """
    One rank's own signals, in ns, as docs/signals.md defines them; None: not measured.

    `step` is the newest step that is over, `window` the newest 1,000 steps, `epoch` the steps of the newest one's epoch that are over.
    `sync_overhead_*` is `wait_*_ns`, in which this rank only waited for a synchronization, divided by the duration of the steps.
    `response_*` is of the parameter server. `staleness_*` is a number of updates.
    """

    steps: int
    sync_overhead_step: float | None = None
    sync_overhead_window: float | None = None
    sync_overhead_epoch: float | None = None
    wait_step_ns: int | None = None
    wait_window_ns: int | None = None
    wait_epoch_ns: int | None = None
    update_latency_p50_ns: int | None = None
    response_p50_ns: int | None = None
    response_p99_ns: int | None = None
    staleness_p50: int | None = None
    staleness_max: int | None = None


class Ring:
    """The newest WINDOW numbers, and their sum."""

    def __init__(self) -> None:
        self.sum = 0
        self.added = 0
        self._values = array("q", bytes(8 * WINDOW))

    def add(self, value: int) -> None:
        """A value that exceeds 64 bits is left out: it is the difference of two invalid clock readings."""
        if not -(2**63) <= value < 2**63:
            return
        values, added = self._values, self.added
        index = added % WINDOW
        previous = values[index]
        values[index] = value
        self.sum += value - previous
        self.added = added + 1

    def values(self) -> array[int]:
        return self._values[: min(self.added, WINDOW)]

    def percentile(self, percent: int) -> int | None:
        return percentile(self.values(), percent) if self.added else None


class LocalSums:
    """
    Adds up one rank's marks.

    A step lasts from its first mark's arrival to that of the next step. A step during which the clock was set back, or forward by a
    day, is left out. Not safe between threads.
    """

    def __init__(self) -> None:
        self._key = self._previous_key = -1
        self._began_ns = 0
        self._waited_from_ns = self._waited_to_ns = 0
        self._wait_ns = 0
        self._waits, self._lengths = Ring(), Ring()
        self._last: tuple[int, int] | None = None
        self._epoch = -1
        self._epoch_wait_ns = self._epoch_length_ns = 0
        self._updates, self._responses, self._staleness = Ring(), Ring(), Ring()

    def add_all(self, marks: Iterable[tuple[int, ...]]) -> None:
        """Marks as in a datagram, in its order."""
        for key, _, kind, arrival_ns, begin_ns, end_ns, count in marks:
            if kind in _WAITED_FOR:
                if key != self._key and key != self._previous_key:
                    self._start_step(key, arrival_ns)
                self._wait(begin_ns, end_ns)
                if kind in _REQUESTS:
                    self._responses.add(end_ns - arrival_ns)
            elif kind == _STEP:
                if key != self._key and key != self._previous_key:
                    self._start_step(key, arrival_ns)
                if begin_ns != arrival_ns:
                    self._updates.add(end_ns - begin_ns)
            elif kind == _STALENESS:
                self._staleness.add(count)

    def signals(self) -> LocalSignals:
        wait_ns, length_ns = self._last or (None, None)
        known = self._epoch_length_ns > 0
        return LocalSignals(
            steps=min(self._lengths.added, WINDOW),
            sync_overhead_step=None if wait_ns is None or length_ns is None else wait_ns / length_ns,
            sync_overhead_window=self._waits.sum / self._lengths.sum if self._lengths.added else None,
            sync_overhead_epoch=self._epoch_wait_ns / self._epoch_length_ns if known else None,
            wait_step_ns=wait_ns,
            wait_window_ns=self._waits.sum if self._waits.added else None,
            wait_epoch_ns=self._epoch_wait_ns if known else None,
            update_latency_p50_ns=self._updates.percentile(50),
            response_p50_ns=self._responses.percentile(50),
            response_p99_ns=self._responses.percentile(99),
            staleness_p50=self._staleness.percentile(50),
            staleness_max=max(self._staleness.values(), default=None),
        )

    def _wait(self, begin_ns: int, end_ns: int) -> None:
        """Synchronizations may overlap: time that touches the last counted wait is counted once."""
        from_ns, to_ns = self._waited_from_ns, self._waited_to_ns
        if begin_ns >= to_ns or end_ns <= from_ns:
            if end_ns > begin_ns:
                self._wait_ns += end_ns - begin_ns
                self._waited_from_ns, self._waited_to_ns = begin_ns, end_ns
            return
        if end_ns > to_ns:
            self._wait_ns += end_ns - to_ns
            self._waited_to_ns = end_ns
        if begin_ns < from_ns:
            self._wait_ns += from_ns - begin_ns
            self._waited_from_ns = begin_ns

    def _start_step(self, key: int, arrival_ns: int) -> None:
        """The next step starts with this arrival."""
        length_ns, later_ns = arrival_ns - self._began_ns, 0
        previous_key = self._previous_key = self._key
        if 0 < length_ns < _LONGEST_NS and previous_key >= 0:
            later_ns = max(0, min(self._wait_ns, self._waited_to_ns - arrival_ns))  # a wait goes on in the next step
            wait_ns = min(self._wait_ns - later_ns, length_ns)
            self._last = wait_ns, length_ns
            self._waits.add(wait_ns)
            self._lengths.add(length_ns)
            if previous_key >> 32 != self._epoch:
                self._epoch, self._epoch_wait_ns, self._epoch_length_ns = previous_key >> 32, 0, 0
            self._epoch_wait_ns += wait_ns
            self._epoch_length_ns += length_ns
        self._key = key
        self._began_ns, self._wait_ns = arrival_ns, later_ns
