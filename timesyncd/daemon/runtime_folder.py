"""
The daemon's own folder: one daemon uses it, and what others remove from it is made again.

Training processes find the clock's segment and the job link there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from timesyncd.errors import ConfigError
from timesyncd.ipc import clock_segment
from timesyncd.ipc.seqlock import SegmentWriter, inode_of, make_folder

LOCK_NAME = "lock"


class RuntimeFolder:
    """
    Holds the folder's lock and the clock's segment.

    Raises ConfigError when another daemon uses the folder, or where the folder cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._payload: Sequence[int] | None = None
        self._inode: tuple[int, int] | None = None
        self._lock: int | None = None
        self._open()

    def write(self, payload: Sequence[int]) -> None:
        """Publish the words of a clock segment."""
        self._payload = payload
        self._segment.write(payload)

    def restore(self) -> str | None:
        """
        Make again what was removed or replaced; returns what that was. Raises ConfigError, and can be tried again.
        """
        if self._segment.is_in_place:
            return None
        lost = self._path if inode_of(self._path) != self._inode else self._path / clock_segment.NAME
        former = self._segment
        self._open()
        former.close()
        if self._payload is not None:
            self._segment.write(self._payload)
        return str(lost)

    def close(self) -> None:
        self._segment.close()
        if self._lock is not None:
            os.close(self._lock)

    def _open(self) -> None:
        try:
            make_folder(self._path)
            if inode_of(self._path) != self._inode:
                self._take_lock()
            self._segment = SegmentWriter(
                self._path / clock_segment.NAME,
                clock_segment.MAGIC,
                clock_segment.LAYOUT_VERSION,
                clock_segment.WORD_COUNT,
            )
        except BlockingIOError as error:
            problem = "another daemon uses this folder; stop that one, or give each daemon a folder of its own"
            raise ConfigError(f"node.runtime_dir = '{self._path}': {problem}") from error
        except OSError as error:
            problem = f"the daemon cannot create the clock segment there: {error.strerror}"
            allowed = "name a folder that the daemon may create or write to"
            raise ConfigError(f"node.runtime_dir = '{self._path}': {problem}; {allowed}") from error

    def _take_lock(self) -> None:
        """
        The kernel releases it when the process ends, however it ends. Raises BlockingIOError while another daemon has it.

        Not on the folder itself: every user may open that, so every user could lock it and keep the daemon from starting.
        """
        lock = os.open(self._path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
        former, self._lock = self._lock, lock
        self._inode = inode_of(self._path)
        if former is not None:
            os.close(former)
