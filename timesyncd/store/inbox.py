"""Histories of other nodes that wait to be stored: bounded in rows and bytes. What is refused comes again by itself."""

from __future__ import annotations

from collections import deque
from threading import Lock

from timesyncd.messages.fleet import HistoryBatch

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
