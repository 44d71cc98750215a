"""A PTP hardware clock (/dev/ptpN): opened read-only, and found behind a network interface, without privilege."""

from __future__ import annotations

import errno
import os
import struct

from timesyncd.clocks import STEP_TOLERANCE_NS, Clocks, real_minus_boot_ns
from timesyncd.drivers.kernel._machine import Machine, system_frequency_ppb, to_ppb
from timesyncd.drivers.phc._ioctl import (
    OFFSET_IOCTLS,
    PhcIoctl,
    ReadingWindow,
    ioctl_buffer,
    max_frequency_ppb,
    shortest,
    windows,
)
from timesyncd.errors import Malformed, Refused, SourceError, Unreachable
from timesyncd.sample import NoSample, PhcSample

#: The device does not support this ioctl; ENODEV for PRECISE: not with the system's present clocksource.
_NOT_SUPPORTED = {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV}
_BUSY = {errno.EBUSY, errno.EINTR}
_TRIES = 3


class PhcDevice:
    """One open PHC. The best ioctl that it supports is found at the first reading and remembered."""

    def __init__(self, index: int, machine: Machine) -> None:
        """Raises Unreachable."""
        self._machine = machine
        self._index = index
        self._path = machine.dev / f"ptp{index}"
        self._ioctls: tuple[PhcIoctl, ...] = OFFSET_IOCTLS
        self.gone = False
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError as error:
            hint = (
                "install systemd/timesyncd.rules, which grants reading to the group timesyncd (docs/clock-sources.md)"
            )
            raise Unreachable(f"{self._path}: permission denied: {hint}") from error
        except FileNotFoundError as error:
            raise Unreachable(f"{self._path}: no such device") from error
        except OSError as error:
            raise Unreachable(f"{self._path}: {error.strerror}") from error
        self.max_frequency_ppb = self._max_frequency_ppb()

    def compare(self, source: str, clocks: Clocks, readings: int, steered: bool | None = None) -> PhcSample | NoSample:
        """
        A sample for this source from the narrowest of so many readings; NoSample if the system clock was stepped
        meanwhile.

        Raises Unreachable, Refused and Malformed.
        """
        as_of_ns, before_ns = clocks.boottime_ns(), real_minus_boot_ns(clocks)
        request, found = self.read(readings)
        by_ns = real_minus_boot_ns(clocks) - before_ns
        if abs(by_ns) > STEP_TOLERANCE_NS:
            reason = f"the clock was stepped by {by_ns / 1e6:+.3f} ms"
            return NoSample(source, clocks.boottime_ns(), reason, stepped=True)
        window = shortest(found)
        return PhcSample(
            source=source,
            clock=f"phc:{self._index}",
            as_of_ns=as_of_ns,
            real_minus_boot_ns=before_ns,
            offset_ns=window.offset_ns,
            width_ns=window.width_ns,
            method=request.name.lower(),
            frequency_ppb=self.frequency_ppb(),
            system_frequency_ppb=system_frequency_ppb(self._machine.system_timex, self._machine.adjtime_left_us),
            steered=steered,
            max_frequency_ppb=self.max_frequency_ppb,
        )

    def read(self, readings: int) -> tuple[PhcIoctl, tuple[ReadingWindow, ...]]:
        """The ioctl that was used, and its windows. Raises Unreachable, Refused and Malformed."""
        failure: OSError | None = None
        for request in self._ioctls:
            try:
                result = self._call(request, readings)
            except OSError as error:
                failure = error
                if error.errno not in _NOT_SUPPORTED:
                    break
            else:
                self._ioctls = (request,)
                return request, windows(request, result)
        raise self._source_error(failure)

    def frequency_ppb(self) -> int | None:
        """The frequency correction applied to its oscillator, in ppb; None if the kernel requires write access for it."""
        try:
            return to_ppb(self._machine.phc_timex(self._fd).freq)
        except OSError as error:
            self.gone = error.errno == errno.ENODEV
            return None

    def close(self) -> None:
        os.close(self._fd)

    def _max_frequency_ppb(self) -> int | None:
        """The clock's own limit of that correction; None if its driver does not report it."""
        try:
            return max_frequency_ppb(self._call(PhcIoctl.CAPABILITIES, 0))
        except OSError:
            return None

    def _call(self, request: PhcIoctl, readings: int) -> bytes:
        """Raises OSError."""
        for left in reversed(range(_TRIES)):
            buffer = ioctl_buffer(request, readings)
            try:
                self._machine.phc_ioctl(self._fd, request, buffer)
            except OSError as error:
                if error.errno not in _BUSY or not left:
                    raise
            else:
                break
        return bytes(buffer)

    def _source_error(self, failure: OSError | None) -> SourceError:
        self.gone = failure is not None and failure.errno == errno.ENODEV
        if failure is None or failure.errno in _NOT_SUPPORTED - {errno.ENODEV}:
            return Refused(f"{self._path}: the driver supports no ioctl that reads the offset to the system clock")
        return Unreachable(f"{self._path}: {failure.strerror}")


class PhcReader:
    """
    Compares a PHC with the system clock for the source that measures the PHC. Its device stays open until it disappears
    or `close` is called.
    """

    def __init__(self, source: str, index: int, machine: Machine) -> None:
        self._source = source
        self._index = index
        self._machine = machine
        self._device: PhcDevice | None = None

    def compare(self, clocks: Clocks) -> PhcSample | NoSample:
        """Raises Unreachable, Refused and Malformed."""
        device = self._device = self._device or PhcDevice(self._index, self._machine)
        try:
            return device.compare(self._source, clocks, _READINGS_AT_SYNC)
        finally:
            if device.gone:
                self.close()

    def close(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.close()


#: At each Sync the narrowest of so many readings counts: each takes the time of two bus accesses.
_READINGS_AT_SYNC = 5

_MOST_LAYERS = 8
_TS_INFO_SIZE = 44
_PHC_INDEX = 8


def phc_index(interface: str, machine: Machine) -> int:
    """
    The N of the interface's /dev/ptpN. If the kernel reports none for a bond or a VLAN, that of the active slave or lower interface.

    Raises Unreachable, Refused and Malformed.
    """
    below: str | None = interface
    for _ in range(_MOST_LAYERS):
        if below is None:
            break
        index = _own_phc_index(below, machine)
        if index is not None:
            return index
        below = _active_slave(below, machine) or _carrier(below, machine)
    raise Refused(f"{interface}: this interface has no PTP hardware clock")


def parse_phc_index(ts_info: bytes) -> int | None:
    """The index in struct ethtool_ts_info; None if it reports no PHC. Raises Malformed."""
    if len(ts_info) != _TS_INFO_SIZE:
        raise Malformed(f"ethtool: {len(ts_info)} octets instead of {_TS_INFO_SIZE}")
    (index,) = struct.unpack_from("=i", ts_info, _PHC_INDEX)
    return None if index < 0 else int(index)


def _own_phc_index(interface: str, machine: Machine) -> int | None:
    try:
        return parse_phc_index(machine.ethtool_ts_info(interface))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        problem = "no such interface" if error.errno == errno.ENODEV else error.strerror
        raise Unreachable(f"{interface}: {problem}") from error


def _active_slave(interface: str, machine: Machine) -> str | None:
    """The active slave of a bond; None for a bond that uses all slaves at once (802.3ad)."""
    try:
        return (machine.net / interface / "bonding" / "active_slave").read_text().strip() or None
    except OSError:
        return None


def _carrier(interface: str, machine: Machine) -> str | None:
    """The interface that carries a VLAN."""
    folder = machine.net / interface
    try:
        if "DEVTYPE=vlan" not in (folder / "uevent").read_text().split():
            return None
        return next((path.name.removeprefix("lower_") for path in folder.glob("lower_*")), None)
    except OSError:
        return None
