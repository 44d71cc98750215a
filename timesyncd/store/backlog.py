"""
What waits to be stored: bounded in age and number. What it loses it counts, as one gap a source.

Histories of other nodes that wait to be stored: bounded in rows and bytes. What is refused comes again by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock

from timesyncd.clocks import NS_PER_S
from timesyncd.messages.fleet import HistoryBatch
from timesyncd.store.rows import Entry

#: A store further behind than this drops its oldest rows.
LIMIT_NS = 60 * NS_PER_S
#: 60 s of far more than a node reads; it bounds the memory (some 40 MiB).
LIMIT_ENTRIES = 20_000
#: What a column holds.
LARGEST = 2**63 - 1
BEHIND = "the store fell behind"
UNSTORABLE = "a value that no column holds"


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows of a source that were dropped, for one reason: from the oldest's time to the newest's, CLOCK_REALTIME."""

    source: str
    reason: str
    from_realtime_ns: int
    until_realtime_ns: int
    rows_lost: int


@dataclass(frozen=True, slots=True)
class Batch:
    entries: list[Entry]
    gaps: list[Gap]


class Backlog:
    """Filled by any thread without waiting; emptied by one, which takes a batch and then says `stored` or gives it back."""

    def __init__(self) -> None:
        self.dropped = 0
        self.stored = 0
        self._lock = Lock()
        self._waiting: deque[Entry] = deque()
        self._taken: list[Entry] = []
        self._gaps: dict[tuple[str, str], Gap] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._waiting) + len(self._taken)

    def put(self, entry: Entry) -> None:
        """The newest are kept: what is dropped is the oldest, so that each gap is whole."""
        with self._lock:
            self._waiting.append(entry)
            self._trim()

    def oldest_ns(self) -> int | None:
        """When the oldest of what is not stored was handed over."""
        with self._lock:
            oldest = self._taken or self._waiting
            return oldest[0].queued_ns if oldest else None

    def take(self, limit: int) -> Batch:
        """The oldest, until they are `limit` rows, and every gap so far; both empty when there is nothing to store."""
        with self._lock:
            self._taken = []
            rows = 0
            while self._waiting and rows < limit:
                self._taken.append(self._waiting.popleft())
                rows += len(self._taken[-1])
            gaps = list(self._gaps.values())
            self._gaps.clear()
            return Batch(self._taken, gaps)

    def has_stored(self, batch: Batch) -> None:
        with self._lock:
            self.stored += sum(len(entry) for entry in batch.entries)
            self._taken = []

    def lose(self, batch: Batch) -> None:
        """It can never be stored."""
        with self._lock:
            self._taken = []
            for entry in batch.entries:
                self._drop(entry, UNSTORABLE)
            for gap in batch.gaps:
                self._add(gap)

    def give_back(self, batch: Batch) -> None:
        """It was not stored: it waits again, as the oldest."""
        with self._lock:
            self._waiting.extendleft(reversed(batch.entries))
            self._taken = []
            for gap in batch.gaps:
                self._add(gap)
            self._trim()

    def _trim(self) -> None:
        while len(self._waiting) > LIMIT_ENTRIES or self._span_ns() > LIMIT_NS:
            self._drop(self._waiting.popleft(), BEHIND)

    def _drop(self, lost: Entry, reason: str) -> None:
        """Its gap can be stored, whatever the entry held."""
        source = lost.source.encode(errors="replace").decode()
        realtime_ns = max(-LARGEST, min(lost.realtime_ns, LARGEST))
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


#: A minute of ten thousand nodes, twice.
LIMIT_ROWS = 20_000
#: As they came, in JSON; in memory they are several times as large.
LIMIT_BYTES = 64 * 2**20


class Inbox:
    """Filled by any thread without waiting; emptied by one."""

    def __init__(self) -> None:
        self.refused = 0
        self._lock = Lock()
        self._waiting: deque[tuple[HistoryBatch, int]] = deque()
        self._rows = 0
        self._bytes = 0

    def put(self, batch: HistoryBatch, size: int) -> bool:
        """Whether there was room. `size` is how many bytes it came as."""
        with self._lock:
            if self._rows + len(batch.rows) > LIMIT_ROWS or self._bytes + size > LIMIT_BYTES:
                self.refused += 1
                return False
            self._waiting.append((batch, size))
            self._rows += len(batch.rows)
            self._bytes += size
            return True

    def take(self, limit: int) -> list[HistoryBatch]:
        """The oldest, until they are `limit` rows; none when there is nothing to store."""
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
        """Rows."""
        with self._lock:
            return self._rows

    def refuse(self, number: int) -> None:
        """So many that were taken can never be stored."""
        with self._lock:
            self.refused += number
