"""
What happens to a unit, by name or from a TOML file.

A file is a list of actions (actions.py), each at its time:

    [[action]]
    at_s = 30
    do = "antenna"
    value = "open"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from timesyncd.errors import ConfigError
from timesyncd.simulation.grandmaster import actions as do
from timesyncd.simulation.grandmaster.device import Device

#: How long a course that begins in steady state waits, in real seconds, so that whoever looks has seen that state.
LEAD_IN_S = 10.0


@dataclass(frozen=True)
class Scenario:
    """`course`: it begins in steady state, and what happens then is the point; else the unit is so from the start."""

    text: str
    actions: tuple[do.Action, ...] = ()
    course: bool = False

    def __call__(self, device: Device, after_s: float = 0.0) -> None:
        """Have it happen to the device; what is due at once has happened on return."""
        for action in self.actions:
            device.schedule(after_s + action.at_s, action.apply)
        device.advance(0.0)

    def begin(self, device: Device) -> None:
        """As the command does: a course after its lead-in."""
        self(device, LEAD_IN_S * device.speed if self.course else 0.0)


_STEADY = Scenario("locked to GNSS, no alarm")

SCENARIOS: dict[str, Scenario] = {
    "steady": _STEADY,
    "locked": _STEADY,
    "holdover": Scenario(
        "in holdover: satellites are too weak to be used", (do.Bridging(value=0), do.Attenuate(value=22))
    ),
    "antenna-cut": Scenario(
        "the antenna is cut, holdover follows at once", (do.Bridging(value=0), do.Antenna(value="open")), course=True
    ),
    "jamming": Scenario(
        "all satellites weaken together within a minute and come back after 20 minutes",
        (do.Attenuate(value=20, over_s=60), do.Attenuate(at_s=1_200, value=0, over_s=30)),
        course=True,
    ),
    "spoofing": Scenario(
        "the held position jumps, then the time; both come back after 20 minutes",
        (
            do.Position(value=250),
            do.Time(at_s=30, value=450),
            do.Time(at_s=1_200, value=-450),
            do.Position(at_s=1_200, value=-250),
        ),
        course=True,
    ),
    "reboot": Scenario("it reboots: silence, warm-up, fast track", (do.Reboot(),), course=True),
    "alarm-storm": Scenario("alarms come and go, twenty changes a second", (do.Storm(value=60),), course=True),
    "leap": Scenario("a leap second is announced", (do.Leap(value="insert"),)),
    "wrong-utc-offset": Scenario("its TAI-UTC offset becomes wrong", (do.UtcOffset(value=36),), course=True),
    "slow-agent": Scenario("it answers SNMP after 3 seconds", (do.AnswerDelay(value=3),)),
    "lossy": Scenario("it loses a third of the datagrams, each way", (do.Loss(value=0.33),)),
    "liar": Scenario("class 6 without a satellite", (do.Lie(value=True),)),
    "2000-clients": Scenario("2000 PTP clients", (do.Clients(value=2_000),)),
    "old-firmware": Scenario("firmware 2.3.12, with its lax login", (do.Firmware(value="2.3.12"),)),
}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: list[do.AnyAction]


def load_scenario(file: Path) -> Scenario:
    """Raises ConfigError naming file, key path and what is allowed."""
    try:
        told = _File.model_validate(tomllib.loads(file.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"scenario {file}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"scenario {file}: {place}: {first['msg']}") from error
    return Scenario(str(file), tuple(told.action))
