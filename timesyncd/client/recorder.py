"""A rank's datagrams in a file, for `timesyncd audit`: whole datagrams, each behind its length, and an end to the size."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

RECORD_MOST = 2**30

#: Files of one name, as of several Jobs in one process or of processes with one number in their containers.
_MOST_FILES = 1_000

#: Before each datagram: its octets, little-endian.
LENGTH = struct.Struct("<I")


class Recorder:
    """
    Writes to `<folder>/rank-<rank>-<pid>-<job>.marks`, made with its folder at the first datagram; `<job>`: the first eight digits of `job_id`.
    A file is of one Recorder alone: where another has the name, a number comes behind it. The write goes to the file system's cache and is not
    forced out: it is as fast as the folder's file system takes it.

    What cannot be written, or would make the file larger than RECORD_MOST, ends the recording of this rank for good.
    """

    def __init__(self, folder: Path, rank: int, job_id: str) -> None:
        self._folder = folder
        self._name = f"rank-{rank}-{os.getpid()}-{job_id[:8]}"
        self._file: int | None = None
        self._size = 0
        self._ended = False

    def write(self, head: bytes, marks: memoryview) -> bool:
        """Whether the datagram is in the file, whole."""
        record = b"".join((LENGTH.pack(len(head) + len(marks)), head, marks))
        if not self._ended and not self._appended(record):
            self.close()
        return not self._ended

    def close(self) -> None:
        self._ended = True
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # whole or not, this is the end of it
                os.close(file)

    def _appended(self, record: bytes) -> bool:
        try:
            if self._file is None:
                self._open()
            if self._file is None or self._size + len(record) > RECORD_MOST:
                return False
            if os.write(self._file, record) == len(record):
                self._size += len(record)
                return True
            os.ftruncate(self._file, self._size)
        except OSError:
            pass
        return False

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        for number in range(1, _MOST_FILES + 1):
            path = self._folder / f"{self._name}{f'-{number}' if number > 1 else ''}.marks"
            with suppress(FileExistsError):
                self._file = os.open(path, flags, 0o644)
                return
