"""States that a unit can be put into by name."""

from __future__ import annotations

from collections.abc import Callable

from timesyncd.simulate.device import (
    ANTENNA_SHORT,
    GNSS_NOT_TRACKING,
    HOLDOVER_ENTERED,
    Device,
    Servo,
    SimulatedAlarm,
    sky,
)


def locked(device: Device) -> None:
    """Locked to GNSS, eight satellites, no alarm."""
    device.set_state(Servo.LOCKED, satellites=sky())


def holdover(device: Device) -> None:
    """In holdover, class 7: the receiver sees satellites too weak to use."""
    weak = [type(s)(s.number, 22, False, s.azimuth_deg, s.elevation_deg) for s in sky()]
    alarms = [SimulatedAlarm(*GNSS_NOT_TRACKING), SimulatedAlarm(*HOLDOVER_ENTERED)]
    device.set_state(Servo.HOLDOVER, satellites=weak, alarms=alarms)


def antenna_cut(device: Device) -> None:
    """In holdover, class 7: the antenna is gone, and no satellite is seen."""
    alarms = [SimulatedAlarm(*kind) for kind in (GNSS_NOT_TRACKING, ANTENNA_SHORT, HOLDOVER_ENTERED)]
    device.set_state(Servo.HOLDOVER, satellites=(), alarms=alarms)


SCENARIOS: dict[str, Callable[[Device], None]] = {
    "locked": locked,
    "holdover": holdover,
    "antenna-cut": antenna_cut,
}
