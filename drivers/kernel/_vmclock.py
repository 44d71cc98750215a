"""VMClock: the page in which a hypervisor reports to its guest that the guest was migrated or restored."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from timesyncd.errors import Malformed, Unreachable

_MAGIC = 0x4B4C4356  # "VCLK"
_SEQUENCE = 12
_PAGE_FRONT = struct.Struct("<I8xIQ")
_TRIES = 100


def disruption_marker(path: Path) -> int | None:
    """
    A number that changes with every disruption of the guest's clock: live migration, restoring a snapshot. None if there is no
    VMClock. Raises Unreachable and Malformed.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}; docs/clock-sources.md says how to grant reading") from error
    try:
        return _read(fd, path)
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def _read(fd: int, path: Path) -> int:
    """Read consistently by the sequence count, which is odd during a write. Raises OSError, Unreachable and Malformed."""
    for _ in range(_TRIES):
        front = os.pread(fd, _PAGE_FRONT.size, 0)
        if len(front) < _PAGE_FRONT.size:
            raise Malformed(f"{path}: {len(front)} octets; a VMClock has at least {_PAGE_FRONT.size}")
        magic, sequence, marker = _PAGE_FRONT.unpack(front)
        if magic != _MAGIC:
            raise Malformed(f"{path}: not a VMClock")
        if sequence % 2 == 0 and os.pread(fd, 4, _SEQUENCE) == front[_SEQUENCE : _SEQUENCE + 4]:
            return int(marker)
    raise Unreachable(f"{path}: no consistent value in {_TRIES} tries: the hypervisor keeps writing")
