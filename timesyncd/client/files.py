"""Reads and writes files that an operator or a script names, by the standard library alone."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: A configuration, a secret, a certificate or a table is far smaller.
MAX_FILE_BYTES = 1 << 20


def read_file(path: Path, most_bytes: int = MAX_FILE_BYTES, *, pipe_s: float | None = None) -> bytes:
    """
    A regular file, of limited size: a FIFO may never end, and a device is never whole. With `pipe_s` also a pipe, as a
    shell's <(...) is, whose end has to come within that time. Raises OSError.
    """
    with open(path, "rb", opener=_open_without_waiting) as opened:
        found = os.fstat(opened.fileno())
        if pipe_s is not None and stat.S_ISFIFO(found.st_mode):
            data = _read_pipe(opened.fileno(), most_bytes + 1, pipe_s)
        else:
            _require_regular(found)
            data = b"" if found.st_size > most_bytes else opened.read(most_bytes + 1)
    if max(found.st_size, len(data)) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes")
    return data


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """A regular file of any size, for a reader that takes it in parts. Raises OSError."""
    with open(path, "rb", opener=_open_without_waiting) as opened:
        _require_regular(os.fstat(opened.fileno()))
        yield opened


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def _read_pipe(fd: int, most_bytes: int, within_s: float) -> bytes:
    """Nothing where no process has the other end."""
    data, deadline_s = b"", time.monotonic() + within_s
    while len(data) < most_bytes:
        try:
            part = os.read(fd, most_bytes - len(data))
        except BlockingIOError:
            readable, _, _ = select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))
            if not readable:
                raise OSError(errno.ETIMEDOUT, f"the pipe did not end within {within_s:g} s") from None
            continue
        if not part:
            break
        data += part
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """
    A path beside `path` to write to. What the block wrote there gets the name `path` when it ends, and is removed if it fails.

    Raises OSError, also where `path` names no file, or what is there is no regular file: root would replace a device by it.
    """
    if not path.name or (os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode)):
        raise OSError(errno.EINVAL, "it names no regular file")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        # A failure here would hide the block's own.
        with suppress(OSError):
            partial.unlink(missing_ok=True)
