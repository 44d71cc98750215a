"""
Writes a rank's datagrams to a file for `timesyncd audit`: whole datagrams, each after its length, up to a maximum size.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

MAX_RECORD_BYTES = 2**30

#: Files of one name: of several Jobs in one process, or of processes with the same pid in their containers.
_MAX_FILES = 1_000

#: Before each datagram: its length in bytes, little-endian.
LENGTH = struct.Struct("<I")


def recording_name(rank: int, job_id: str) -> str:
    """Of the files of this process, without their suffix."""
    return f"rank-{rank}-{os.getpid()}-{job_id[:8]}"


class Recorder:
    """
    Writes a rank's datagrams to `<folder>/rank-<rank>-<pid>-<job><suffix>`; `<job>` is the first eight digits of `job_id`.

    The first datagram creates the file and its folder. If the file exists, a number is appended to the name: no two Recorders share a
    file. A write goes to the file system's cache and is not synced.

    An error, or a file that would exceed MAX_RECORD_BYTES, ends the recording of this rank.
    """

    def __init__(self, folder: Path, rank: int, job_id: str, suffix: str = ".marks") -> None:
        self._folder = folder
        self._suffix = suffix
        self._name = recording_name(rank, job_id)
        self._file: int | None = None
        self._size = 0
        self._ended = False

    def write(self, head: bytes, marks: memoryview) -> bool:
        """Whether the whole datagram is in the file."""
        record = b"".join((LENGTH.pack(len(head) + len(marks)), head, marks))
        if not self._ended and not self._append(record):
            self.close()
        return not self._ended

    def close(self) -> None:
        self._ended = True
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # the recording ends here in any case
                os.close(file)

    def _append(self, record: bytes) -> bool:
        try:
            if self._file is None:
                self._open()
            if self._file is None or self._size + len(record) > MAX_RECORD_BYTES:
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
        for number in range(1, _MAX_FILES + 1):
            path = self._folder / f"{self._name}{f'-{number}' if number > 1 else ''}{self._suffix}"
            with suppress(FileExistsError):
                self._file = os.open(path, flags, 0o644)
                return
