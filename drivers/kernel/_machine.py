"""This machine's clocks, interfaces and processes, in one object that tests replace."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from timesyncd.drivers.kernel._adjtimex import Timex, phc_timex, system_timex
from timesyncd.drivers.phc._ioctl import OffsetIoctl

_SIOCETHTOOL = 0x8946
_GET_TS_INFO = 0x41
_TS_INFO = struct.Struct("=I40x")
_IFREQ = struct.Struct("@16sP16x")


def phc_ioctl(fd: int, request: OffsetIoctl, buffer: bytearray) -> None:
    """The kernel writes the result into `buffer`. Raises OSError."""
    fcntl.ioctl(fd, request, buffer)


def ethtool_ts_info(interface: str) -> bytes:
    """struct ethtool_ts_info of an interface; reading it needs no privilege. Raises OSError."""
    info = ctypes.create_string_buffer(_TS_INFO.pack(_GET_TS_INFO), _TS_INFO.size)
    request = bytearray(_IFREQ.pack(interface.encode()[:15], ctypes.addressof(info)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        fcntl.ioctl(end.fileno(), _SIOCETHTOOL, request)
    return info.raw


@dataclass(frozen=True, slots=True)
class Machine:
    """Read-only access: everything is opened for reading, and no call changes anything."""

    dev: Path = Path("/dev")
    net: Path = Path("/sys/class/net")
    proc: Path = Path("/proc")
    phc_ioctl: Callable[[int, OffsetIoctl, bytearray], None] = phc_ioctl
    ethtool_ts_info: Callable[[str], bytes] = ethtool_ts_info
    phc_timex: Callable[[int], Timex] = phc_timex
    system_timex: Callable[[], Timex] = system_timex
