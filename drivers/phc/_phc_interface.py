"""From a network interface to the PTP hardware clock behind it, without privilege."""

from __future__ import annotations

import errno
import struct

from timesyncd.drivers.kernel._machine import Machine
from timesyncd.errors import Malformed, Refused, Unreachable

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
        return parse_phc_index(machine.ask_ethtool(interface))
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
