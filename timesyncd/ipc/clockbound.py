"""
ClockBound's segment, layout version 2: written with the hard bound against UTC, for ClockBound's clients, and read where
ClockBound's own daemon writes it. docs/other-languages.md lists what its clients cannot see.

Clients count ages on CLOCK_MONOTONIC, which stops during suspend. A written bound is right when it is written, but
after a resume clients take it for too young until the next write. So the daemon writes once a second, also when nothing
changed.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from timesyncd.bound import Bound, ClockStatus, ErrorBound, status_at
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import ConfigError, Malformed, Unreachable
from timesyncd.ipc.seqlock import make_folder

MAGIC = (0x414D5A4E, 0x43420200)
LAYOUT_VERSION = 2
SIZE = 80

DEFAULT_PATH = Path("/var/run/clockbound/shm0")

#: From this age ClockBound's clients report FreeRunning, whatever status is written.
GRACE_NS = 5 * NS_PER_S

#: The age at which a written bound expires, as with ClockBound's own daemon.
VOID_NS = 1000 * NS_PER_S

#: From this drift on ClockBound's clients reject the segment as malformed.
MAX_DRIFT_PPB = 10**9

#: Represents an unbounded error: 31 years, so a client that ignores the status is not misled, and no sum exceeds 64
#: bits.
NO_BOUND_NS = 10**18

_HEADER = struct.Struct("=2IIHH")
_CONTENT = struct.Struct("=4qqQIiB7s")
_WORDS = struct.Struct("=8q")
_VERSION, _GENERATION = 6, 7  # of 16 bits
_FIRST_WORD = 2  # of 64 bits
_LAST_S = 2**33  # more than 270 years after the boot

#: In the last 7 octets, which are padding to ClockBound's clients: timesyncd wrote this, so it is no source of a bound.
OWN_MARK = b"timesyn"


class SegmentStatus(IntEnum):
    """ClockBound's numbers of a clock's status."""

    UNKNOWN = 0
    SYNCHRONIZED = 1
    FREE_RUNNING = 2
    DISRUPTED = 3


_NUMBERS = {
    ClockStatus.UNKNOWN: SegmentStatus.UNKNOWN,
    ClockStatus.SYNCHRONIZED: SegmentStatus.SYNCHRONIZED,
    ClockStatus.HOLDOVER: SegmentStatus.FREE_RUNNING,
    ClockStatus.DISRUPTED: SegmentStatus.DISRUPTED,
}


def content(bound: ErrorBound, boottime_ns: int, suspended_ns: int) -> bytes:
    """
    The segment's content after the header, as of `boottime_ns`.

    `suspended_ns` is at least CLOCK_BOOTTIME minus CLOCK_MONOTONIC: less would understate the age. Where the bound
    enters HOLDOVER before ClockBound's grace ends, as_of is moved back by the difference, and the bound with it.
    """
    status = _status(bound, boottime_ns)
    as_of_ns = min(bound.as_of_ns, boottime_ns) - suspended_ns
    if bound.utc_hard.bound_ns is None or status not in (ClockStatus.SYNCHRONIZED, ClockStatus.HOLDOVER):
        return _packed(as_of_ns, as_of_ns, NO_BOUND_NS, 0, status)
    back_ns = GRACE_NS - min(bound.holdover_after_ns, bound.void_after_ns, GRACE_NS)
    # One more, since ClockBound's clients round the growth down.
    then_ns = max(bound.utc_hard.at(-back_ns) or 0, 0) + 1
    void_ns = as_of_ns + min(bound.void_after_ns, VOID_NS)
    return _packed(as_of_ns - back_ns, void_ns, then_ns, bound.utc_hard.growth_ppb, status)


def _status(bound: ErrorBound, boottime_ns: int) -> ClockStatus:
    age_ns = boottime_ns - bound.as_of_ns
    status = status_at(bound.utc_status, age_ns, bound.holdover_after_ns, bound.void_after_ns)
    return status if status is ClockStatus.DISRUPTED or _is_representable(bound.utc_hard) else ClockStatus.UNKNOWN


def _is_representable(bound: Bound) -> bool:
    return bound.bound_ns is not None and bound.bound_ns < NO_BOUND_NS and 0 <= bound.growth_ppb < MAX_DRIFT_PPB


def _packed(as_of_ns: int, void_ns: int, bound_ns: int, drift_ppb: int, status: ClockStatus) -> bytes:
    """The content without a disruption marker, which this daemon does not read from the hypervisor."""
    as_of, void = divmod(as_of_ns, NS_PER_S), divmod(void_ns, NS_PER_S)
    return _CONTENT.pack(*as_of, *void, bound_ns, 0, drift_ppb, _NUMBERS[status], 0, OWN_MARK)


def suspended_ns() -> int:
    """
    CLOCK_BOOTTIME minus CLOCK_MONOTONIC: how long this machine was suspended since it booted. It errs upward only.
    """
    return min(_boot_minus_monotonic_ns() for _ in range(3))


def _boot_minus_monotonic_ns() -> int:
    # MONOTONIC first: a pause between the two makes the difference larger, so every age older.
    monotonic_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - monotonic_ns


class ClockBoundWriter:
    """
    The one writer of a ClockBound v2 segment. The file is kept over restarts, with the former writer's content, which
    ages.

    A missing folder is created; it must be in memory (/run), since the layout does not distinguish boots. Raises
    OSError when the file cannot be created, ConfigError when it is not a ClockBound v2 segment.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        if not path.exists():
            _create(path)
        self._words = _map(path)
        self._halves = self._words.cast("B").cast("H")
        self._order = threading.Lock()
        self._order.acquire()
        self._halves[_VERSION] = LAYOUT_VERSION

    def write(self, bound: ErrorBound) -> None:
        """
        Publish the hard bound against UTC: each new one, and the last one every second, since only a write accounts for
        a suspend.
        """
        suspended = suspended_ns()
        words = _WORDS.unpack(content(bound, time.clock_gettime_ns(time.CLOCK_BOOTTIME), suspended))
        halves = self._halves
        odd = halves[_GENERATION] | 1
        halves[_GENERATION] = odd
        self._fence()
        for index, word in enumerate(words, _FIRST_WORD):
            self._words[index] = word
        self._fence()
        # 0 would mean that nothing was ever written.
        halves[_GENERATION] = odd + 1 if odd < 0xFFFF else 2

    def close(self) -> None:
        self._halves.release()
        self._words.release()

    def _fence(self) -> None:
        """
        Order the stores before this call before those after it, on arm64, too: there an atomic release and the
        following acquire stay in order. The layout has no checksum that would detect a reordering.
        """
        self._order.release()
        self._order.acquire()


def _create(path: Path) -> None:
    """Create the complete file atomically, with generation 0: clients reject it until the first write."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as file:
        file.write(_HEADER.pack(*MAGIC, SIZE, LAYOUT_VERSION, 0).ljust(SIZE, b"\0"))
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.link(file.name, path)


def _map(path: Path) -> memoryview:
    with path.open("r+b") as file:
        *magic, size, version, _ = _HEADER.unpack(file.read(_HEADER.size).ljust(_HEADER.size, b"\0"))
        length = os.fstat(file.fileno()).st_size
        # A version of 0 was left by a writer that died before its first write.
        if (tuple(magic), size) != (MAGIC, SIZE) or version not in (0, LAYOUT_VERSION) or length < SIZE:
            raise ConfigError(
                f"[clockbound] path: {path} is not a ClockBound v2 segment; remove it, or set another path"
            )
        return memoryview(mmap.mmap(file.fileno(), SIZE)).cast("q")


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """
    What a segment claims: |CLOCK_REALTIME - UTC| <= `bound_ns` at `as_of_ns`, growing by `max_drift_ppb` since, until
    `void_after_ns`. Both times are of CLOCK_MONOTONIC.

    `disruption_marker` is VMClock's as ClockBound's daemon last read it; None: that daemon does not watch for disruptions.
    `is_own`: timesyncd wrote the segment.
    """

    as_of_ns: int
    void_after_ns: int
    bound_ns: int
    max_drift_ppb: int
    status: SegmentStatus
    disruption_marker: int | None
    is_own: bool


#: A writer needs microseconds, so an odd generation that stays so long was left by one that died.
_TRIES = 64


def read_segment(path: Path) -> SegmentContent:
    """
    A consistent copy of the segment. It follows ClockBound's seqlock: the generation is even, and the same before and after.

    Raises Unreachable where there is none, or no complete one, and Malformed where it is not of layout version 2.
    """
    try:
        # Without O_NONBLOCK a FIFO at that path would block for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise Unreachable(f"{path}: no such file: start ClockBound's daemon, or set path to its segment") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Unreachable(f"{path}: {reason}: let the daemon's user read the file and its folders") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Malformed(f"{path}: not a regular file; set path to ClockBound's segment")
        return parse_content(_consistent_content(fd, path), str(path))
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def _consistent_content(fd: int, path: Path) -> bytes:
    """Each of the three reads is a system call, which keeps their order on arm64, too."""
    generation = 0
    for _ in range(_TRIES):
        header = os.pread(fd, _HEADER.size, 0)
        generation = parse_header(header, str(path))
        content = os.pread(fd, _CONTENT.size, _HEADER.size)
        if generation % 2 == 0 and os.pread(fd, _HEADER.size, 0) == header:
            return content
    raise Unreachable(
        f"{path}: no consistent copy in {_TRIES} tries, generation {generation}: "
        "its writer is in the middle of a write, or died there"
    )


def parse_header(header: bytes, where: str) -> int:
    """The generation of a segment of layout version 2. Raises Unreachable before the first write, and Malformed."""
    if len(header) < _HEADER.size:
        raise Malformed(f"{where}: {len(header)} octets; a ClockBound segment has {SIZE}")
    *magic, size, version, generation = _HEADER.unpack(header)
    if tuple(magic) != MAGIC:
        raise Malformed(f"{where}: not a ClockBound segment")
    if version == 0 or generation == 0:
        raise Unreachable(f"{where}: not written yet: ClockBound's daemon is starting, or died while it did")
    # ClockBound 3 has two octets here, the oldest and the newest version.
    versions = sorted({octet for octet in version.to_bytes(2, sys.byteorder) if octet})
    if versions != [LAYOUT_VERSION]:
        named = " to ".join(map(str, versions))
        hint = "; ClockBound 3 has version 2 in shm0, and 3 in shm1" if versions[-1] > LAYOUT_VERSION else ""
        raise Malformed(f"{where}: layout version {named}; timesyncd reads version {LAYOUT_VERSION} alone{hint}")
    if size != SIZE:
        raise Malformed(f"{where}: {size} octets by its header; layout version {LAYOUT_VERSION} has {SIZE}")
    return int(generation)


def parse_content(content: bytes, where: str) -> SegmentContent:
    """The content after the header. Raises Malformed for what no ClockBound daemon writes."""
    if len(content) < _CONTENT.size:
        raise Malformed(f"{where}: {_HEADER.size + len(content)} octets; layout version {LAYOUT_VERSION} has {SIZE}")
    as_of, as_of_ns, void, void_ns, bound_ns, marker, drift_ppb, status, support, padding = _CONTENT.unpack(content)
    limits = {
        "as_of": (as_of, 0, _LAST_S), "as_of nanoseconds": (as_of_ns, 0, NS_PER_S - 1),
        "void_after": (void, 0, _LAST_S), "void_after nanoseconds": (void_ns, 0, NS_PER_S - 1),
        "bound": (bound_ns, 0, 2**63 - 1), "max_drift_ppb": (drift_ppb, 1, MAX_DRIFT_PPB - 1),
        "clock_status": (status, 0, max(SegmentStatus)), "clock_disruption_support": (support, 0, 1),
    }  # fmt: skip
    for name, (value, least, most) in limits.items():
        if not least <= value <= most:
            raise Malformed(f"{where}: {name} {value}; allowed: {least} to {most}")
    return SegmentContent(
        as_of_ns=as_of * NS_PER_S + as_of_ns,
        void_after_ns=void * NS_PER_S + void_ns,
        bound_ns=bound_ns,
        max_drift_ppb=drift_ppb,
        status=SegmentStatus(status),
        disruption_marker=marker if support else None,
        is_own=padding == OWN_MARK,
    )
