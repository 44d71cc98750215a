"""
Gives freed memory back to the system, which glibc does not do by itself: after a flood the daemon is as small as before.

Another C library is left as it is.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from timesyncd.clocks import NS_PER_S

#: Of mallopt(3), and the size from which a block is mapped alone, so that freeing it frees its pages.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES = 65_536
CHECK_EVERY_NS = 10 * NS_PER_S
#: What was freed long after the process grew, as the names of a flood, is given back too.
TRIM_EVERY_NS = 20 * NS_PER_S
#: Where so large a part of Python's objects is gone, a full collection is worth its time: it also empties the lists of free tuples,
#: each of which keeps a page that nothing else uses. It waits until no more goes.
_GONE_PART, _STILL_GOES_PART = 20, 100
#: Growth by less than a fiftieth is not worth the milliseconds.
_GROWTH = 50


class HeapTrimmer:
    """Trims the heap where the process has grown since the last time."""

    def __init__(self) -> None:
        self._next_check_ns = self._next_trim_ns = 0
        self._trimmed_pages = 0
        self._blocks = self._most_blocks = 0
        self._trim: Callable[[int], object] | None = None
        try:
            import ctypes  # its import maps memory, which a hardened service may refuse

            library = ctypes.CDLL(None)
            self._trim = library.malloc_trim
            library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        except (AttributeError, ImportError, MemoryError, OSError):
            return

    def tick(self, now_boottime_ns: int) -> None:
        """To be called each second or so."""
        if self._trim is None or now_boottime_ns < self._next_check_ns:
            return
        self._next_check_ns = now_boottime_ns + CHECK_EVERY_NS
        try:
            is_smaller = self._has_shrunk()
            has_grown = _resident_pages() > self._trimmed_pages + self._trimmed_pages // _GROWTH
            if has_grown or is_smaller or now_boottime_ns >= self._next_trim_ns:
                self._next_trim_ns = now_boottime_ns + TRIM_EVERY_NS
                self._trim(0)
                self._trimmed_pages = _resident_pages()
        except OSError:  # no file descriptor is left: the next check is soon enough
            return

    def _has_shrunk(self) -> bool:
        """Whether much of what Python held is gone since the last collection, and no more goes; then it is collected."""
        blocks, before = sys.getallocatedblocks(), self._blocks
        self._blocks, self._most_blocks = blocks, max(self._most_blocks, blocks)
        still_goes = blocks < before - before // _STILL_GOES_PART
        if still_goes or blocks > self._most_blocks - self._most_blocks // _GONE_PART:
            return False
        gc.collect()
        self._blocks = self._most_blocks = sys.getallocatedblocks()
        return True


def resident_bytes() -> int | None:
    """This process's memory; None where it cannot be read now."""
    try:
        return _resident_pages() * resource.getpagesize()
    except OSError:
        return None


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
