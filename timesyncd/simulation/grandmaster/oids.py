"""
What each model serves.

These tables are written from the MIBs and know no profile of the drivers, so that a wrong OID on either side shows. What a
TimeProvider 4100 or 4500 serves beside the IETF's MIBs is not public: here it is what its sister models share.
"""

from __future__ import annotations

from timesyncd.simulation.grandmaster.device import Device
from timesyncd.simulation.grandmaster.mib import DeviceMib, Tables
from timesyncd.simulation.grandmaster.oids_ntpv4 import ntpv4_tables
from timesyncd.simulation.grandmaster.oids_ptpbase import ptpbase_tables
from timesyncd.simulation.grandmaster.oids_s650 import s650_tables
from timesyncd.simulation.grandmaster.oids_standard import standard_tables
from timesyncd.simulation.grandmaster.oids_symm import date_and_time, symm_common_tables
from timesyncd.simulation.grandmaster.oids_tp5000e import tp5000e_tables

_NEUTRAL = [*standard_tables(), *ptpbase_tables(), *ntpv4_tables()]
_SHARED = [*_NEUTRAL, *symm_common_tables()]

TABLES = {
    "tp4100": Tables(_SHARED),
    "tp4500": Tables(_SHARED),
    "tp5000e": Tables([*_SHARED, *tp5000e_tables()]),
    "s650": Tables([*standard_tables(), *ntpv4_tables(), date_and_time(), *s650_tables()]),
}


def mib_of(device: Device) -> DeviceMib:
    """What the unit serves now."""
    return DeviceMib(device, TABLES[device.kind])
