"""S650: NTP, inventory, clock and GNSS as scalars, much of it free text. There is no table of alarms: they come as traps."""

from __future__ import annotations

from datetime import UTC, datetime

from timesyncd.simulation.grandmaster import mib
from timesyncd.simulation.grandmaster.device import Device, Servo
from timesyncd.simulation.grandmaster.mib import Table, scalars
from timesyncd.simulation.grandmaster.wire import Oid

S650: Oid = (1, 3, 6, 1, 4, 1, 9070, 1, 2, 5, 7, 8)

_LEAPS = {"none": 0, "insert": 1, "delete": 2, "unsynchronized": 3}
STATUS_WORDS = {
    Servo.WARMUP: "Warm-up", Servo.FREERUN: "Free-run", Servo.FAST_TRACK: "Fast-track", Servo.LOCKED: "Locked",
    Servo.HOLDOVER: "Holdover", Servo.BRIDGING: "Bridging", Servo.FAILED: "Failure",
    Servo.EXTENDED_HOLDOVER: "Holdover exceeded",
}  # fmt: skip
_SATELLITES_OCTETS = 128


def s650_tables() -> list[Table]:
    return [_ntp(), _inventory(), _clock(), _gnss()]


def _ntp() -> Table:
    return scalars((*S650, 1), {
        1: lambda device: mib.integer(_LEAPS[device.ntp.leap]),
        2: lambda device: mib.integer(device.ntp.stratum),
        3: lambda _: mib.integer(-20),
        4: lambda _: mib.text("0.000000"),
        5: lambda _: mib.text("0.000001"),
        6: lambda device: mib.text("GPS" if device.ntp.stratum < 16 else "INIT"),
        7: lambda device: mib.text(_now(device)),
        8: lambda device: mib.text("GNSS" if device.ntp.stratum < 16 else ""),
        9: lambda device: mib.integer(device.ntp.requests % 32_769),
        10: lambda _: mib.text("server"),
        11: lambda _: mib.text("4"),
    })  # fmt: skip


def _inventory() -> Table:
    return scalars((*S650, 2), {
        1: lambda device: mib.text(device.firmware),
        2: lambda device: mib.text(device.serial),
        3: lambda device: mib.text(device.model),
        4: lambda _: mib.text("Timing I/O"),
        5: lambda _: mib.text("none"),
        6: lambda device: mib.text(device.oscillator_name),
        7: lambda _: mib.text("dual AC"),
        8: lambda _: mib.text("4 x 1 GbE"),
    })  # fmt: skip


def _clock() -> Table:
    return scalars((*S650, 3), {
        1: lambda device: mib.text(STATUS_WORDS[device.servo]),
        2: lambda device: mib.text("GNSS" if device.has_time_reference else "none"),
        3: lambda device: mib.text(_now(device)),
    })  # fmt: skip


def _now(device: Device) -> str:
    return f"{datetime.fromtimestamp(device.unix_s, UTC):%Y-%m-%d %H:%M:%S}"


def _gnss() -> Table:
    return scalars((*S650, 4), {
        1: lambda device: mib.text(_position(device)),
        2: lambda device: mib.text({"locked": "Tracking", "tracking": "Acquiring"}.get(device.gnss_state, "No satellites")),
        3: lambda device: mib.text(_satellites(device)),
        4: lambda device: mib.text("Survey" if device.receiver.position_mode == "surveying" else "Position hold"),
    })  # fmt: skip


def _position(device: Device) -> str:
    """Degrees, minutes, seconds and sign of latitude and longitude; then metres."""
    place = device.receiver.position
    return f"{_angle(place.latitude_deg)} {_angle(place.longitude_deg)} {place.height_m:.1f}"


def _angle(degrees: float) -> str:
    milliseconds = round(abs(degrees) * 3_600_000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60} {minutes % 60} {milliseconds / 1000:.3f} {-1 if degrees < 0 else 1}"


def _satellites(device: Device) -> str:
    """How many, then each; a list that is too long is cut."""
    if not device.satellites:
        return "0"
    each = [f"X{satellite.number},Y{place},CGPS" for place, satellite in enumerate(device.satellites, start=1)]
    return ",".join((str(len(each)), *each))[:_SATELLITES_OCTETS]
