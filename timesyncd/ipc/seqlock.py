"""
A shared-memory segment of 64-bit words: one writer, any number of readers, no locks; schemas/SHM.md draws its layout.

Each word is read and written as one item of a memoryview, which is one load or store. `struct.pack_into` zeroes a field
before it fills it, and slices may tear. The generation is odd during a write. Python has no memory fences, so a reader
accepts a copy only if the generation did not change around it *and* the checksum over both agrees.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

MAGIC, VERSION, SIZE, GENERATION, CHECKSUM, PAYLOAD = range(6)

_WORD = 8
_TRIES = 64
_REMAP_INTERVAL_NS = 1_000_000_000


def checksum(generation: int, words: Sequence[int]) -> int:
    """CRC-32 of the generation and the payload, each as 8 octets, little-endian."""
    return zlib.crc32(struct.pack(f"<{len(words) + 1}q", generation, *words))


def inode_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of what the path names; None: nothing, or it cannot be known."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def make_folder(path: Path) -> None:
    """Create a missing folder and its missing parents, which every user may enter whatever the umask is. Raises OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


def _map(path: Path, size: int, flags: int) -> tuple[memoryview, tuple[int, int]]:
    """Without O_NONBLOCK a FIFO at that path would block for ever. The writer follows no link: its target may be any file."""
    writable = flags & os.O_ACCMODE == os.O_RDWR
    links = os.O_NOFOLLOW if writable else 0
    fd = os.open(path, flags | links | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileExistsError(errno.EEXIST, "it is no regular file; remove it", str(path))
        if status.st_size < size:
            if not writable:
                raise ValueError(f"{path}: the file has {status.st_size} bytes, but the layout needs {size}")
            # Not ftruncate: with a full tmpfs this is an error here, instead of a SIGBUS at the first write.
            os.posix_fallocate(fd, 0, size)
        if writable:
            os.fchmod(fd, 0o644)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return memoryview(mmap.mmap(fd, size, access=access)).cast("q"), (status.st_dev, status.st_ino)
    finally:
        os.close(fd)


class SegmentWriter:
    """
    The one writer of a segment.

    The file keeps its inode and is never truncated, so readers' mappings survive a restart. The former writer's payload
    remains, and ages, until the first write. Raises OSError when the file cannot be created.
    """

    def __init__(self, path: Path, magic: int, layout_version: int, word_count: int) -> None:
        self._count = word_count
        self._header = (magic, layout_version, (PAYLOAD + word_count) * _WORD)
        self._path = path
        self._words, self._inode = _map(path, self._header[2], os.O_RDWR | os.O_CREAT)

    @property
    def is_in_place(self) -> bool:
        """Whether its path still names this file, which was not removed or replaced, so new readers find it."""
        return inode_of(self._path) == self._inode

    def write(self, payload: Sequence[int]) -> None:
        """Publish `word_count` signed 64-bit words. Raises struct.error, and writes nothing, for one that does not fit."""
        if len(payload) != self._count:
            raise ValueError(f"the payload has {len(payload)} words, but the layout needs {self._count}")
        words = self._words
        odd = (words[GENERATION] + 1) | 1
        new_checksum = checksum(odd + 1, payload)
        words[GENERATION] = odd
        words[MAGIC], words[VERSION], words[SIZE] = self._header
        for index, word in enumerate(payload, PAYLOAD):
            words[index] = word
        words[CHECKSUM] = new_checksum
        words[GENERATION] = odd + 1

    def close(self) -> None:
        self._words.release()


class SegmentReader:
    """
    Reads without waiting and without raising.

    `words` is the current mapping, so that a caller can compare `words[GENERATION]` with a cached one; while there is
    no file, it is zeros.
    """

    def __init__(self, path: Path, magic: int, layout_version: int, word_count: int) -> None:
        self._path = path
        self._count = word_count
        self._header = (magic, layout_version, (PAYLOAD + word_count) * _WORD)
        self._inode: tuple[int, int] | None = None
        self._remapped_ns = -_REMAP_INTERVAL_NS
        self._cached: tuple[int, tuple[int, ...] | None] = (0, None)
        self._torn: int | None = None
        self.words = memoryview(bytes(PAYLOAD * _WORD)).cast("q")

    @property
    def torn(self) -> bool:
        """Whether the writer died during a write: `read` then returns the payload cached before."""
        return self._torn is not None and self._torn == self.words[GENERATION]

    @property
    def found(self) -> bool:
        """Whether the file exists and is mapped, even if nothing was written to it yet."""
        return self._inode is not None

    def read(self) -> tuple[int, ...] | None:
        """
        The payload published last; None while there is no file, for an unsupported layout, and before the first
        complete payload.
        """
        self.ensure_mapped()
        generation, payload = self._cached
        now = self.words[GENERATION]
        return payload if now in (generation, self._torn) else self._refresh()

    def ensure_mapped(self) -> None:
        """Map the file if it is not mapped yet."""
        if self._inode is None:
            self.remap()

    def remap(self) -> None:
        """Map the file if it was created, or replaced, since; at most once a second."""
        now_ns = time.monotonic_ns()
        if now_ns - self._remapped_ns < _REMAP_INTERVAL_NS:
            return
        self._remapped_ns = now_ns
        if (inode := inode_of(self._path)) is None or inode == self._inode:
            return
        try:
            words, inode = _map(self._path, self._header[2], os.O_RDONLY)
        except (OSError, ValueError):
            return
        self._torn = None
        self._cached = (-1, self._cached[1])
        self.words, self._inode = words, inode

    def _refresh(self) -> tuple[int, ...] | None:
        words = self.words
        before = 0
        for _ in range(_TRIES):
            before = words[GENERATION]
            if before == 0 or (words[MAGIC], words[VERSION], words[SIZE]) != self._header:
                return None
            payload = tuple(words[PAYLOAD : PAYLOAD + self._count])
            if before & 1 or words[GENERATION] != before or words[CHECKSUM] != checksum(before, payload):
                continue
            self._cached = (before, payload)
            self._torn = None
            return payload
        self._torn = before if words[GENERATION] == before else None
        return self._cached[1]
