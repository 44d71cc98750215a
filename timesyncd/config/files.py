"""Reads a file that an operator names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: A configuration, a secret, a certificate or a table is far smaller.
MAX_FILE_BYTES = 1 << 20


def read_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """
    A regular file, of limited size: a FIFO would never end, and a device never be whole. Raises OSError.
    """
    with open(path, "rb", opener=_open_without_waiting) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
