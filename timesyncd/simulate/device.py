"""A grandmaster as it is inside: servo, GNSS receiver, alarms. What it serves over SNMP is in oids.py."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

_DAY_S = 86_400


class Servo(Enum):
    """
    The state of the clock: the name, then clockClass and clockAccuracy that such a unit announces (G.8275.1), and the
    number that the TimeProvider 5000E's MIB gives it.
    """

    WARMUP = (248, 0xFE, 1)
    FREERUN = (248, 0xFE, 2)
    FAST_TRACK = (248, 0xFE, 3)
    LOCKED = (6, 0x21, 4)
    HOLDOVER = (7, 0x21, 5)
    BRIDGING = (6, 0x21, 6)
    FAILED = (248, 0xFE, 7)
    EXTENDED_HOLDOVER = (140, 0x23, 9)

    @property
    def clock_class(self) -> int:
        return self.value[0]

    @property
    def clock_accuracy(self) -> int:
        return self.value[1]

    @property
    def number(self) -> int:
        return self.value[2]


@dataclass(frozen=True)
class SimulatedSatellite:
    number: int
    cn0_db_hz: int
    healthy: bool = True
    azimuth_deg: int = 0
    elevation_deg: int = 45


@dataclass(frozen=True)
class SimulatedAlarm:
    """`severity`: critical, major, minor or event; `raised_s` in Unix time."""

    id: int
    severity: str
    text: str
    index: int = 0
    raised_s: float = field(default_factory=time.time)


GNSS_NOT_TRACKING = (2, "minor", "GNSS: not tracking satellites")
ANTENNA_SHORT = (12, "minor", "GNSS: antenna short circuit")
HOLDOVER_ENTERED = (29, "minor", "Clock in holdover")

_CN0_DB_HZ = (47, 45, 44, 44, 42, 41, 39, 38)


def sky() -> tuple[SimulatedSatellite, ...]:
    """Eight satellites as seen on a clear day; the lowest one is unhealthy."""
    return tuple(
        SimulatedSatellite(3 + 4 * place, cn0_db_hz, place < 7, 45 * place, 80 - 10 * place)
        for place, cn0_db_hz in enumerate(_CN0_DB_HZ)
    )


@dataclass
class Device:
    """A unit like a TimeProvider 4100, locked to GNSS until told otherwise."""

    serial: str = "SIM0001"
    name: str = "gm-a"
    model: str = "TimeProvider 4100"
    firmware: str = "2.5.0"
    domain: int = 24
    utc_offset_s: int = 37
    offset_scaled_log_variance: int = 0x4E5D
    phase_offset_ns: float = -3.2
    started_s: float = field(default_factory=lambda: time.time() - 3 * _DAY_S)
    servo: Servo = Servo.LOCKED
    clock_class: int = Servo.LOCKED.clock_class
    clock_accuracy: int = Servo.LOCKED.clock_accuracy
    satellites: tuple[SimulatedSatellite, ...] = field(default_factory=sky)
    alarms: tuple[SimulatedAlarm, ...] = ()

    @property
    def clock_identity(self) -> bytes:
        """EUI-64 of the serial number, so that two units never share one."""
        return bytes.fromhex("00a069fffe") + hashlib.sha256(self.serial.encode()).digest()[:3]

    @property
    def has_time_reference(self) -> bool:
        return self.servo in (Servo.LOCKED, Servo.FAST_TRACK)

    def set_state(
        self,
        servo: Servo,
        *,
        clock_class: int | None = None,
        clock_accuracy: int | None = None,
        satellites: Sequence[SimulatedSatellite] | None = None,
        alarms: Sequence[SimulatedAlarm] = (),
    ) -> None:
        """
        Move to another state; class and accuracy follow the servo unless given, which is how to make a unit that lies.
        The satellites stay as they were unless given.
        """
        self.servo = servo
        self.clock_class = servo.clock_class if clock_class is None else clock_class
        self.clock_accuracy = servo.clock_accuracy if clock_accuracy is None else clock_accuracy
        self.satellites = self.satellites if satellites is None else tuple(satellites)
        self.alarms = tuple(alarms)
