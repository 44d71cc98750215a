"""
UTC's hard bound as a ClockBound v2 segment, for its clients; docs/other-languages.md says what they cannot see.

Their ages are on CLOCK_MONOTONIC, which stands still in suspend. What is written is right when it is written; after a
resume readers see too young a bound until the next write, so write once a second also when there is nothing new.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import threading
import time
from pathlib import Path

from timesyncd.bound import Bound, ClockStatus, ErrorBound, status_at
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import ConfigError

MAGIC = (0x414D5A4E, 0x43420200)
LAYOUT_VERSION = 2
SIZE = 80

#: Their readers call what was written FreeRunning from this age, whatever is written.
GRACE_NS = 5 * NS_PER_S

#: And nothing here is believed for longer, as nothing of their own daemon is.
VOID_NS = 1000 * NS_PER_S

#: A drift from which their readers refuse the segment as malformed.
MAX_DRIFT_PPB = 10**9

#: What stands for no bound: 31 years, so a reader that looks past the status is not misled, and no sum leaves 64 bits.
NO_BOUND_NS = 10**18

_HEADER = struct.Struct("=2IIHH")
_CONTENT = struct.Struct("=4qqQIiB7x")
_WORDS = struct.Struct("=8q")
_VERSION, _GENERATION = 6, 7  # of 16 bits
_FIRST_WORD = 2  # of 64 bits

_NUMBERS = {
    ClockStatus.UNKNOWN: 0,
    ClockStatus.SYNCHRONIZED: 1,
    ClockStatus.HOLDOVER: 2,
    ClockStatus.DISRUPTED: 3,
}


def content(bound: ErrorBound, boottime_ns: int, suspended_ns: int) -> bytes:
    """
    All that follows the header, as of `boottime_ns`. `suspended_ns` is CLOCK_BOOTTIME - CLOCK_MONOTONIC or more: less
    would understate the age.

    Where ours is HOLDOVER before their grace ends, as_of is dated back by the rest of it, and the bound with it.
    """
    status = _status(bound, boottime_ns)
    as_of_ns = min(bound.as_of_ns, boottime_ns) - suspended_ns
    if bound.utc_hard.bound_ns is None or status not in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER):
        return _packed(as_of_ns, as_of_ns, NO_BOUND_NS, 0, status)
    back_ns = GRACE_NS - min(bound.holdover_after_ns, bound.void_after_ns, GRACE_NS)
    # One more, for their readers cut the growth off instead of rounding it up.
    then_ns = max(bound.utc_hard.at(-back_ns) or 0, 0) + 1
    void_ns = as_of_ns + min(bound.void_after_ns, VOID_NS)
    return _packed(as_of_ns - back_ns, void_ns, then_ns, bound.utc_hard.growth_ppb, status)


def _status(bound: ErrorBound, boottime_ns: int) -> ClockStatus:
    age_ns = boottime_ns - bound.as_of_ns
    status = status_at(bound.utc_status, age_ns, bound.holdover_after_ns, bound.void_after_ns)
    return status if status is ClockStatus.DISRUPTED or _can_be_told(bound.utc_hard) else ClockStatus.UNKNOWN


def _can_be_told(bound: Bound) -> bool:
    return bound.bound_ns is not None and bound.bound_ns < NO_BOUND_NS and 0 <= bound.growth_ppb < MAX_DRIFT_PPB


def _packed(as_of_ns: int, void_ns: int, bound_ns: int, drift_ppb: int, status: ClockStatus) -> bytes:
    """Without a disruption marker: nothing here reads a hypervisor's, and we say so."""
    as_of, void = divmod(as_of_ns, NS_PER_S), divmod(void_ns, NS_PER_S)
    return _CONTENT.pack(*as_of, *void, bound_ns, 0, drift_ppb, _NUMBERS[status], 0)


def suspended_ns() -> int:
    """CLOCK_BOOTTIME - CLOCK_MONOTONIC: how long this machine was suspended since it booted. Errs upward only."""
    return min(_boot_minus_monotonic_ns() for _ in range(3))


def _boot_minus_monotonic_ns() -> int:
    # MONOTONIC first: a pause between the two makes the difference larger, so every age older.
    monotonic_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - monotonic_ns


class ClockBoundWriter:
    """
    The one writer of a ClockBound v2 segment. The file is kept over restarts, with what the former writer said, ageing.

    Its folder is made where it is missing; it must be in memory (/run), since the layout cannot tell boots apart.
    Raises OSError when the file cannot be made, ConfigError when it is something else.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        self._words = _map(path)
        self._halves = self._words.cast("B").cast("H")
        self._order = threading.Lock()
        self._order.acquire()
        self._halves[_VERSION] = LAYOUT_VERSION

    def write(self, bound: ErrorBound) -> None:
        """Publish UTC's hard bound: each new one, and the last one again every second: only here is a resume seen."""
        suspended = suspended_ns()
        words = _WORDS.unpack(content(bound, time.clock_gettime_ns(time.CLOCK_BOOTTIME), suspended))
        halves = self._halves
        odd = halves[_GENERATION] | 1
        halves[_GENERATION] = odd
        self._fence()
        for index, word in enumerate(words, _FIRST_WORD):
            self._words[index] = word
        self._fence()
        # 0 would say: never written.
        halves[_GENERATION] = odd + 1 if odd < 0xFFFF else 2

    def close(self) -> None:
        self._halves.release()
        self._words.release()

    def _fence(self) -> None:
        """
        What was stored before is seen before what is stored after, on arm64 too: there an atomic release and the
        acquire that follows it stay in order. The layout has no checksum to make up for it.
        """
        self._order.release()
        self._order.acquire()


def _create(path: Path) -> None:
    """A whole file, from its first moment; generation 0: readers refuse it until something is written."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(_HEADER.pack(*MAGIC, SIZE, LAYOUT_VERSION, 0).ljust(SIZE, b"\0"))
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.link(file.name, path)


def _map(path: Path) -> memoryview:
    with path.open("r+b") as file:
        *magic, size, version, _ = _HEADER.unpack(file.read(_HEADER.size).ljust(_HEADER.size, b"\0"))
        length = os.fstat(file.fileno()).st_size
        # A version of 0 is left by a writer that died in its first moments.
        if (tuple(magic), size) != (MAGIC, SIZE) or version not in (0, LAYOUT_VERSION) or length < SIZE:
            raise ConfigError(f"[clockbound] path: {path} is no ClockBound v2 segment; remove it, or give another path")
        return memoryview(mmap.mmap(file.fileno(), SIZE)).cast("q")
