"""
A PTP hardware clock, /dev/ptpN, opened for reading and asked in the best way that it knows.

From a network interface to the PTP hardware clock behind it, without privilege.
"""

from __future__ import annotations

import errno
import os
import struct

from timesyncd.drivers.kernel._adjtimex import to_ppb
from timesyncd.drivers.kernel._machine import Machine
from timesyncd.drivers.phc._ioctl import OffsetIoctl, ReadingWindow, ioctl_buffer, windows
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable

#: The clock cannot be asked in this way; ENODEV for PRECISE: not beside the system's present clocksource.
_NOT_THIS_WAY = {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV}
_BUSY = {errno.EBUSY, errno.EINTR}
_TRIES = 3


class PhcDevice:
    """One open PHC. Which way it can be asked is tried out at the first reading and remembered."""

    def __init__(self, index: int, machine: Machine) -> None:
        """Raises Unreachable."""
        self._machine = machine
        self._path = machine.dev / f"ptp{index}"
        self._ways = tuple(OffsetIoctl)
        self.gone = False
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError as error:
            hint = "systemd/timesyncd.rules grants it to the group timesyncd: docs/clock-sources.md"
            raise Unreachable(f"{self._path}: permission denied: {hint}") from error
        except FileNotFoundError as error:
            raise Unreachable(f"{self._path}: no such device") from error
        except OSError as error:
            raise Unreachable(f"{self._path}: {error.strerror}") from error

    def read(self, readings: int) -> tuple[OffsetIoctl, tuple[ReadingWindow, ...]]:
        """How it was asked, and the answer. Raises Unreachable, Refused and Malformed."""
        why: OSError | None = None
        for request in self._ways:
            try:
                answer = self._ask(request, readings)
            except OSError as error:
                why = error
                if error.errno not in _NOT_THIS_WAY:
                    break
            else:
                self._ways = (request,)
                return request, windows(request, answer)
        raise self._explained(why)

    def frequency_ppb(self) -> int | None:
        """How much faster than its oscillator it is made to run; None where the kernel does not tell a mere reader."""
        try:
            return to_ppb(self._machine.phc_timex(self._fd).freq)
        except OSError as error:
            self.gone = error.errno == errno.ENODEV
            return None

    def close(self) -> None:
        os.close(self._fd)

    def _ask(self, request: OffsetIoctl, readings: int) -> bytes:
        """Raises OSError."""
        for left in reversed(range(_TRIES)):
            asked = ioctl_buffer(request, readings)
            try:
                self._machine.phc_ioctl(self._fd, request, asked)
            except OSError as error:
                if error.errno not in _BUSY or not left:
                    raise
            else:
                break
        return bytes(asked)

    def _explained(self, why: OSError | None) -> SourceError:
        if why is None or why.errno in _NOT_THIS_WAY - {errno.ENODEV}:
            return Refused(f"{self._path}: its offset to the system clock cannot be read in any way")
        return Unreachable(f"{self._path}: {why.strerror}")


class PhcFrequency:
    """How much faster than its oscillator a PHC is made to run. Its device stays open, until it is gone or `close`."""

    def __init__(self, index: int, machine: Machine | None = None) -> None:
        self._index = index
        self._machine = machine or Machine()
        self._device: PhcDevice | None = None

    def ppb(self) -> int | None:
        """None where the device is not there or does not tell us."""
        try:
            device = self._device = self._device or PhcDevice(self._index, self._machine)
        except Unreachable:
            return None
        found = device.frequency_ppb()
        if device.gone:
            self.close()
        return found

    def close(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.close()


_MOST_LAYERS = 8
_TS_INFO_SIZE = 44
_PHC_INDEX = 8


def phc_index(interface: str, machine: Machine) -> int:
    """
    The N of its /dev/ptpN. Where the kernel tells none for a bond or a VLAN, that of the active slave or the interface below.

    Raises Unreachable, Refused and Malformed.
    """
    below: str | None = interface
    for _ in range(_MOST_LAYERS):
        if below is None:
            break
        index = _told(below, machine)
        if index is not None:
            return index
        below = _active_slave(below, machine) or _carrier(below, machine)
    raise Refused(f"{interface}: no PTP hardware clock behind it")


def parse_phc_index(ts_info: bytes) -> int | None:
    """From struct ethtool_ts_info; None where it says that there is none. Raises Malformed."""
    if len(ts_info) != _TS_INFO_SIZE:
        raise Malformed(f"ethtool: {len(ts_info)} octets where {_TS_INFO_SIZE} are due")
    (index,) = struct.unpack_from("=i", ts_info, _PHC_INDEX)
    return None if index < 0 else int(index)


def _told(interface: str, machine: Machine) -> int | None:
    try:
        return parse_phc_index(machine.ethtool_ts_info(interface))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        why = "no such interface" if error.errno == errno.ENODEV else error.strerror
        raise Unreachable(f"{interface}: {why}") from error


def _active_slave(interface: str, machine: Machine) -> str | None:
    """Of a bond that has one; a bond that uses all at once (802.3ad) has none."""
    try:
        return (machine.net / interface / "bonding" / "active_slave").read_text().strip() or None
    except OSError:
        return None


def _carrier(interface: str, machine: Machine) -> str | None:
    """The interface that a VLAN lies on."""
    folder = machine.net / interface
    try:
        if "DEVTYPE=vlan" not in (folder / "uevent").read_text().split():
            return None
        return next((path.name.removeprefix("lower_") for path in folder.glob("lower_*")), None)
    except OSError:
        return None
