"""The GNSS receiver: a sky that turns slowly, an antenna, a position. Pure but for what is done to it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

#: What the receiver needs: to show a satellite, to use it, and to solve for time.
MIN_TRACKED_DB_HZ, MIN_USED_DB_HZ, MIN_USED = 15, 30, 4
#: "Signal low" is fewer than four satellites above this (the S6x0's rule).
GOOD_DB_HZ = 37
_METRES_A_DEGREE = 111_320.0


@dataclass(frozen=True)
class SimulatedSatellite:
    number: int
    cn0_db_hz: int
    healthy: bool = True
    azimuth_deg: int = 0
    elevation_deg: int = 45


@dataclass(frozen=True)
class SimulatedPosition:
    latitude_deg: float
    longitude_deg: float
    height_m: float


@dataclass(frozen=True)
class _Course:
    """One satellite's way: it swings about a mean elevation and goes round, in `period_s`."""

    number: int
    azimuth_deg: float
    mean_deg: float
    swing_deg: float
    period_s: float
    turn: float

    def at(self, at_s: float) -> tuple[float, float]:
        """Azimuth and elevation."""
        part = at_s / self.period_s
        elevation = self.mean_deg + self.swing_deg * math.sin(2 * math.pi * (part + self.turn))
        return (self.azimuth_deg + 360 * part) % 360, elevation


def _courses(seed: int) -> tuple[_Course, ...]:
    """Eight that stay high enough to be used, four that rise and set."""
    draw = random.Random(f"sky {seed}")
    numbers = sorted(draw.sample(range(1, 33), 12))
    means = [72, 62, 55, 50, 46, 42, 40, 38, 12, 10, 8, 6]
    draw.shuffle(means)
    return tuple(
        _Course(
            number, draw.uniform(0, 360), mean, 10 if mean > 20 else 14, draw.uniform(40_000, 46_000), draw.random()
        )
        for number, mean in zip(numbers, means, strict=True)
    )


@dataclass(frozen=True)
class _Fade:
    from_db: float = 0.0
    to_db: float = 0.0
    since_s: float = 0.0
    over_s: float = 0.0

    def db(self, at_s: float) -> float:
        if at_s >= self.since_s + self.over_s:
            return self.to_db
        return self.from_db + (self.to_db - self.from_db) * (at_s - self.since_s) / self.over_s


@dataclass
class GnssReceiver:
    """
    `antenna` is ok, open or short. `time_offset_ns` is what a spoofer adds to GNSS time. `position_mode` is surveying, hold
    or manual. `blind` hides every satellite without any fault of the antenna. Jamming weakens all satellites alike.
    """

    seed: int = 0
    antenna: str = "ok"
    position: SimulatedPosition = SimulatedPosition(52.0 + 31 / 60, 13.0 + 24 / 60, 38.0)
    position_mode: str = "hold"
    elevation_mask_deg: int = 5
    cable_delay_ns: int = 50
    time_offset_ns: float = 0.0
    blind: bool = False
    unhealthy: frozenset[int] = frozenset()
    _fade: _Fade = _Fade()
    _courses: tuple[_Course, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._courses = _courses(self.seed)

    @property
    def antenna_current_ma(self) -> float:
        return {"ok": 24.0, "open": 0.0, "short": 120.0}[self.antenna]

    @property
    def antenna_voltage_v(self) -> float:
        return 0.2 if self.antenna == "short" else 5.0

    def attenuate(self, db: float, over_s: float, at_s: float) -> None:
        """Weaken all satellites: evenly over `over_s` from where they are at `at_s`, then so for good."""
        self._fade = _Fade(self._fade.db(at_s), db, at_s, over_s)

    def look_again_s(self, at_s: float) -> float | None:
        """After how long satellites may have been lost or found; None: in a clear sky never so many that it matters."""
        if math.floor(at_s) < self._fade.since_s + self._fade.over_s:
            return 1.0
        return 10.0 if self._fade.to_db else None

    def jump(self, east_m: float) -> None:
        """Move the position that the receiver reports."""
        here = self.position
        degrees = east_m / (_METRES_A_DEGREE * math.cos(math.radians(here.latitude_deg)))
        self.position = SimulatedPosition(here.latitude_deg, here.longitude_deg + degrees, here.height_m)

    def sky(self, at_s: float) -> tuple[SimulatedSatellite, ...]:
        """What is tracked at that time; `healthy` are those that are used."""
        if self.antenna != "ok" or self.blind:
            return ()
        seen = (self._satellite(course, at_s) for course in self._courses)
        return tuple(satellite for satellite in seen if satellite is not None)

    def _satellite(self, course: _Course, at_s: float) -> SimulatedSatellite | None:
        azimuth, elevation = course.at(at_s)
        cn0 = 34 + 15 * math.sin(math.radians(max(0.0, elevation))) - self._fade.db(at_s)
        cn0 += math.sin(at_s / 61 + course.number)
        if elevation < self.elevation_mask_deg or cn0 < MIN_TRACKED_DB_HZ:
            return None
        used = cn0 >= MIN_USED_DB_HZ and course.number not in self.unhealthy
        return SimulatedSatellite(course.number, round(cn0), used, int(azimuth), int(elevation))


def solves(seen: Sequence[SimulatedSatellite]) -> bool:
    return sum(satellite.healthy for satellite in seen) >= MIN_USED


def signal_low(seen: Sequence[SimulatedSatellite]) -> bool:
    return solves(seen) and sum(satellite.cn0_db_hz > GOOD_DB_HZ for satellite in seen) < MIN_USED
