"""
Rows that wait for the writer thread.

`Backlog` holds this node's rows, bounded in age and number; rows that it drops are counted and become one gap per source.
`HistoryBacklog` holds other nodes' histories, bounded in rows and bytes; it drops a batch that does not fit, and the node repeats it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from threading import Lock

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import HistoryBatch
from timesyncd.store.rows import Entry

#: A store further behind than this drops its oldest rows.
LIMIT_NS = 60 * NS_PER_S
#: Far more than a node reads in 60 s; it bounds the memory to about 40 MiB.
LIMIT_ENTRIES = 20_000
#: The largest value of a 64-bit column.
MAX_INT64 = 2**63 - 1


class GapReason(Enum):
    """Why rows were dropped. The store keeps the member's name in lower case, its code; the value is for people."""

    STORE_BEHIND = "the store could not keep up: rows older than 60 s were dropped"
    UNSTORABLE_VALUE = "a value does not fit its column"

    @property
    def code(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows of a source that were dropped for one reason, from the oldest row's CLOCK_REALTIME to the newest's."""

    source: str
    reason: GapReason
    from_realtime_ns: int
    until_realtime_ns: int
    rows_lost: int


@dataclass(frozen=True, slots=True)
class RowBatch:
    entries: list[Entry]
    gaps: list[Gap]


class Backlog:
    """
    Any thread puts entries without waiting. One thread takes a batch, and then marks it stored, requeues it or discards it.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.stored = 0
        self._lock = Lock()
        self._waiting: deque[Entry] = deque()
        self._taken: list[Entry] = []
        self._gaps: dict[tuple[str, GapReason], Gap] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting) + len(self._taken)

    def put(self, entry: Entry) -> None:
        """Drops the oldest entries when there are too many, so that each gap is contiguous."""
        with self._lock:
            self._waiting.append(entry)
            self._trim()

    def oldest_ns(self) -> int | None:
        """CLOCK_BOOTTIME when the oldest entry that is not stored was put; None if there is none."""
        with self._lock:
            oldest = self._taken or self._waiting
            return oldest[0].queued_ns if oldest else None

    def take(self, limit: int) -> RowBatch:
        """The oldest entries, until they have `limit` rows, and every gap so far; both are empty when nothing waits."""
        with self._lock:
            self._taken = []
            rows = 0
            while self._waiting and rows < limit:
                self._taken.append(self._waiting.popleft())
                rows += len(self._taken[-1])
            gaps = list(self._gaps.values())
            self._gaps.clear()
            return RowBatch(self._taken, gaps)

    def mark_stored(self, batch: RowBatch) -> None:
        with self._lock:
            self.stored += sum(len(entry) for entry in batch.entries)
            self._taken = []

    def discard(self, batch: RowBatch) -> None:
        """Give up a batch that can never be stored."""
        with self._lock:
            self._taken = []
            for entry in batch.entries:
                self._drop(entry, GapReason.UNSTORABLE_VALUE)
            for gap in batch.gaps:
                self._add(gap)

    def requeue(self, batch: RowBatch) -> None:
        """Put back a batch that was not stored; it waits again, before all other entries."""
        with self._lock:
            self._waiting.extendleft(reversed(batch.entries))
            self._taken = []
            for gap in batch.gaps:
                self._add(gap)
            self._trim()

    def _trim(self) -> None:
        while len(self._waiting) > LIMIT_ENTRIES or self._span_ns() > LIMIT_NS:
            self._drop(self._waiting.popleft(), GapReason.STORE_BEHIND)

    def _drop(self, lost: Entry, reason: GapReason) -> None:
        """Count the entry in a gap whose values fit their columns, whatever the entry contains."""
        source = lost.source.encode(errors="replace").decode()
        realtime_ns = max(-MAX_INT64, min(lost.realtime_ns, MAX_INT64))
        self.dropped += len(lost)
        self._add(Gap(source, reason, realtime_ns, realtime_ns, len(lost)))

    def _span_ns(self) -> int:
        return self._waiting[-1].queued_ns - self._waiting[0].queued_ns if self._waiting else 0

    def _add(self, gap: Gap) -> None:
        key = gap.source, gap.reason
        known = self._gaps.get(key, gap)
        self._gaps[key] = Gap(
            *key,
            min(gap.from_realtime_ns, known.from_realtime_ns),
            max(gap.until_realtime_ns, known.until_realtime_ns),
            gap.rows_lost + (0 if known is gap else known.rows_lost),
        )


#: Two minutes of ten thousand nodes.
LIMIT_ROWS = 20_000
#: Size as received, in JSON; in memory the batches are several times as large.
LIMIT_BYTES = 64 * 2**20


class HistoryBacklog:
    """Any thread puts batches without waiting; one thread takes them."""

    def __init__(self) -> None:
        self.rejected = 0
        self._lock = Lock()
        self._waiting: deque[tuple[HistoryBatch, int]] = deque()
        self._rows = 0
        self._bytes = 0

    def put(self, batch: HistoryBatch, size: int) -> bool:
        """False if the batch did not fit. `size` is the batch's size in bytes as received."""
        with self._lock:
            if self._rows + len(batch.rows) > LIMIT_ROWS or self._bytes + size > LIMIT_BYTES:
                self.rejected += 1
                return False
            self._waiting.append((batch, size))
            self._rows += len(batch.rows)
            self._bytes += size
            return True

    def take(self, limit: int) -> list[HistoryBatch]:
        """The oldest batches, until they have `limit` rows; empty when nothing waits."""
        with self._lock:
            taken: list[HistoryBatch] = []
            rows = 0
            while self._waiting and rows < limit:
                batch, size = self._waiting.popleft()
                taken.append(batch)
                rows += len(batch.rows)
                self._bytes -= size
            self._rows -= rows
            return taken

    def __len__(self) -> int:
        """The number of rows that wait."""
        with self._lock:
            return self._rows

    def count_rejected(self, number: int) -> None:
        """Count batches that were taken and can never be stored."""
        with self._lock:
            self.rejected += number
