"""
A shared-memory segment of 64-bit words: one writer, any number of readers, no locks; schemas/SHM.md draws its layout.

Every word is read and written as one item of a memoryview, which is one load or store; `struct.pack_into` zeroes a field
before it fills it, and slices may tear. The generation is odd while a write is in progress. Python has no memory fences, so
a reader believes a copy only when the generation stood still around it *and* the checksum over both agrees.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

MAGIC, VERSION, SIZE, GENERATION, CHECKSUM, PAYLOAD = range(6)

_WORD = 8
_TRIES = 64
_LOOK_AGAIN_NS = 1_000_000_000


def checksum(generation: int, words: Sequence[int]) -> int:
    """CRC-32 of the generation and the payload, each as 8 octets, little-endian."""
    return zlib.crc32(struct.pack(f"<{len(words) + 1}q", generation, *words))


def _map(path: Path, size: int, flags: int) -> tuple[memoryview, tuple[int, int]]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        writable = flags & os.O_ACCMODE == os.O_RDWR
        status = os.fstat(fd)
        if status.st_size < size:
            if not writable:
                raise ValueError(f"{path}: {status.st_size} bytes, {size} wanted")
            # Not ftruncate: where the memory is used up it is an error here, instead of a SIGBUS at the first write.
            os.posix_fallocate(fd, 0, size)
        if writable:
            os.fchmod(fd, 0o644)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return memoryview(mmap.mmap(fd, size, access=access)).cast("q"), (status.st_dev, status.st_ino)
    finally:
        os.close(fd)


class SegmentWriter:
    """
    The one writer. The file keeps its inode and is never truncated, so that readers' mappings survive a restart; what the
    former writer said stays there, ageing, until the first write. Raises OSError when the file cannot be made.
    """

    def __init__(self, path: Path, magic: int, layout_version: int, word_count: int) -> None:
        self._count = word_count
        self._header = (magic, layout_version, (PAYLOAD + word_count) * _WORD)
        self._words, _ = _map(path, self._header[2], os.O_RDWR | os.O_CREAT)

    def write(self, payload: Sequence[int]) -> None:
        """Publish `word_count` signed 64-bit words."""
        if len(payload) != self._count:
            raise ValueError(f"{len(payload)} words given, {self._count} wanted")
        words = self._words
        odd = (words[GENERATION] + 1) | 1
        words[GENERATION] = odd
        words[MAGIC], words[VERSION], words[SIZE] = self._header
        for index, word in enumerate(payload, PAYLOAD):
            words[index] = word
        words[CHECKSUM] = checksum(odd + 1, payload)
        words[GENERATION] = odd + 1

    def close(self) -> None:
        self._words.release()


class SegmentReader:
    """
    Reads without ever waiting or raising. `words` is the present mapping, so that a caller may compare
    `words[GENERATION]` with what it has cached; before there is a file it is a dummy of zeros.
    """

    def __init__(self, path: Path, magic: int, layout_version: int, word_count: int) -> None:
        self._path = path
        self._count = word_count
        self._header = (magic, layout_version, (PAYLOAD + word_count) * _WORD)
        self._inode: tuple[int, int] | None = None
        self._looked_ns = -_LOOK_AGAIN_NS
        self._cached: tuple[int, tuple[int, ...] | None] = (0, None)
        self._torn: int | None = None
        self.words = memoryview(bytes(PAYLOAD * _WORD)).cast("q")

    @property
    def torn(self) -> bool:
        """The writer seems to have died half-way: what `read` gives is what was cached before."""
        return self._torn is not None and self._torn == self.words[GENERATION]

    @property
    def found(self) -> bool:
        """There is a file, whether or not anything was ever written to it."""
        return self._inode is not None

    def read(self) -> tuple[int, ...] | None:
        """The payload last published; None when there is no file, another layout, or nothing whole was ever seen."""
        self.find()
        generation, payload = self._cached
        now = self.words[GENERATION]
        return payload if now in (generation, self._torn) else self._refresh()

    def find(self) -> None:
        """Map the file if that was not done yet."""
        if self._inode is None:
            self.look_again()

    def look_again(self) -> None:
        """Find the file if it came, or came anew, since. At most once a second does anything."""
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns < _LOOK_AGAIN_NS:
            return
        self._looked_ns = now_ns
        try:
            status = self._path.stat()
            if (status.st_dev, status.st_ino) == self._inode:
                return
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
