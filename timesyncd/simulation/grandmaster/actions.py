"""
What can be done to a grandmaster at a time: each action as a scenario's file writes it.

What happens to a grandmaster, by name or from a TOML file.

A file is a list of actions (actions.py), each at its time:

    [[action]]
    at_s = 30
    do = "antenna"
    value = "open"
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from timesyncd.config import read_file, toml_tables, validation_text
from timesyncd.errors import ConfigError
from timesyncd.simulation.grandmaster.alarms import KINDS
from timesyncd.simulation.grandmaster.device import Device

HttpsFault = Literal["none", "html", "huge", "drip", "redirect", "certificate"]

_STORM_STEP_S = 0.05
_STORM = [("port-down", 1), ("port-down", 2), ("fan", 1), ("fan", 2), ("power", 1), ("power", 2), ("temperature", 0)]


class ScenarioAction(BaseModel):
    """`at_s` in simulated seconds since the scenario began."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: float = Field(default=0.0, ge=0)

    def apply(self, device: Device) -> None:
        raise NotImplementedError


class Antenna(ScenarioAction):
    do: Literal["antenna"] = "antenna"
    value: Literal["ok", "open", "short"]

    def apply(self, device: Device) -> None:
        device.receiver.antenna = self.value


class Attenuate(ScenarioAction):
    """All satellites become weaker alike, in dB, evenly over `over_s`."""

    do: Literal["attenuate"] = "attenuate"
    value: float = Field(ge=0)
    over_s: float = Field(default=0.0, ge=0)

    def apply(self, device: Device) -> None:
        device.receiver.attenuate(self.value, self.over_s, device.elapsed_s)


class JumpPosition(ScenarioAction):
    """The receiver's position jumps so many metres east."""

    do: Literal["position"] = "position"
    value: float

    def apply(self, device: Device) -> None:
        device.receiver.jump(self.value)


class Time(ScenarioAction):
    """What the receiver takes for UTC jumps by so many nanoseconds."""

    do: Literal["time"] = "time"
    value: float

    def apply(self, device: Device) -> None:
        device.move_reference(self.value)


class Bridging(ScenarioAction):
    """How long the grandmaster bridges a lost reference before it reports holdover, in seconds."""

    do: Literal["bridging"] = "bridging"
    value: float = Field(ge=0)

    def apply(self, device: Device) -> None:
        device.dwell.bridging_s = self.value


class Reboot(ScenarioAction):
    do: Literal["reboot"] = "reboot"

    def apply(self, device: Device) -> None:
        device.reboot()


class _Failure(ScenarioAction):
    """`value` names a raised alarm of alarms.KINDS; `index` selects the fan, power input or port."""

    value: str
    index: int = 0

    @field_validator("value")
    @classmethod
    def is_raisable(cls, name: str) -> str:
        standing = [known for known, kind in KINDS.items() if kind.severity != "event"]
        if name not in standing:
            raise ValueError(f"is none of {', '.join(standing)}")
        return name


class Raise(_Failure):
    do: Literal["raise"] = "raise"

    def apply(self, device: Device) -> None:
        device.failures.add((self.value, self.index))


class Clear(_Failure):
    do: Literal["clear"] = "clear"

    def apply(self, device: Device) -> None:
        device.failures.discard((self.value, self.index))


class Storm(ScenarioAction):
    """Alarms come and go, twenty changes a second, for so many seconds."""

    do: Literal["storm"] = "storm"
    value: float = Field(gt=0)

    def apply(self, device: Device) -> None:
        draw = random.Random(f"storm {device.seed}")
        for step in range(int(self.value / _STORM_STEP_S)):
            device.schedule(step * _STORM_STEP_S, partial(_toggle, draw.choice(_STORM)))
        device.schedule(self.value, lambda grandmaster: grandmaster.failures.difference_update(_STORM))


def _toggle(failure: tuple[str, int], device: Device) -> None:
    device.failures.symmetric_difference_update({failure})


class LeapAction(ScenarioAction):
    do: Literal["leap"] = "leap"
    value: Literal["insert", "delete", "none"]

    def apply(self, device: Device) -> None:
        device.announce_leap(self.value)


class UtcOffset(ScenarioAction):
    do: Literal["utc-offset"] = "utc-offset"
    value: int

    def apply(self, device: Device) -> None:
        device.utc_offset_s = self.value


class Clients(ScenarioAction):
    """How many PTP clients the grandmaster serves, over all its ports."""

    do: Literal["clients"] = "clients"
    value: int = Field(ge=0)

    def apply(self, device: Device) -> None:
        device.client_total = self.value


class Firmware(ScenarioAction):
    do: Literal["firmware"] = "firmware"
    value: str

    def apply(self, device: Device) -> None:
        device.firmware = self.value


class ClaimHealthyGnss(ScenarioAction):
    """It sees no satellite, and reports that all is well."""

    do: Literal["lie"] = "lie"
    value: bool

    def apply(self, device: Device) -> None:
        device.lying = device.receiver.blind = self.value


class AnswerDelay(ScenarioAction):
    do: Literal["answer-delay"] = "answer-delay"
    value: float = Field(ge=0, le=60)

    def apply(self, device: Device) -> None:
        device.answer_delay_s = self.value


class Loss(ScenarioAction):
    """The share of the datagrams that are lost, each way."""

    do: Literal["loss"] = "loss"
    value: float = Field(ge=0, le=1)

    def apply(self, device: Device) -> None:
        device.loss = self.value


class BadHttps(ScenarioAction):
    do: Literal["https-fault"] = "https-fault"
    value: HttpsFault

    def apply(self, device: Device) -> None:
        device.https_fault = None if self.value == "none" else self.value


AnyAction = Annotated[
    Antenna
    | Attenuate
    | JumpPosition
    | Time
    | Bridging
    | Reboot
    | Raise
    | Clear
    | Storm
    | LeapAction
    | UtcOffset
    | Clients
    | Firmware
    | ClaimHealthyGnss
    | AnswerDelay
    | Loss
    | BadHttps,
    Field(discriminator="do"),
]


#: How long a course that begins in steady state waits, in real seconds, so that an observer has seen that state.
LEAD_IN_S = 10.0


@dataclass(frozen=True)
class Scenario:
    """`course`: it begins in steady state, and what happens then is the point; else the grandmaster is so from the start."""

    text: str
    actions: tuple[ScenarioAction, ...] = ()
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
    "holdover": Scenario("in holdover: satellites are too weak to be used", (Bridging(value=0), Attenuate(value=22))),
    "antenna-cut": Scenario(
        "the antenna is cut, holdover follows at once", (Bridging(value=0), Antenna(value="open")), course=True
    ),
    "jamming": Scenario(
        "all satellites weaken together within a minute and come back after 20 minutes",
        (Attenuate(value=20, over_s=60), Attenuate(at_s=1_200, value=0, over_s=30)),
        course=True,
    ),
    "spoofing": Scenario(
        "the held position jumps, then the time; both come back after 20 minutes",
        (
            JumpPosition(value=250),
            Time(at_s=30, value=450),
            Time(at_s=1_200, value=-450),
            JumpPosition(at_s=1_200, value=-250),
        ),
        course=True,
    ),
    "reboot": Scenario("it reboots: silence, warm-up, fast track", (Reboot(),), course=True),
    "alarm-storm": Scenario("alarms come and go, twenty changes a second", (Storm(value=60),), course=True),
    "leap": Scenario("a leap second is announced", (LeapAction(value="insert"),)),
    "wrong-utc-offset": Scenario("its TAI-UTC offset becomes wrong", (UtcOffset(value=36),), course=True),
    "slow-agent": Scenario("it answers SNMP after 3 seconds", (AnswerDelay(value=3),)),
    "lossy": Scenario("it loses a third of the datagrams, each way", (Loss(value=0.33),)),
    "liar": Scenario("class 6 without a satellite", (ClaimHealthyGnss(value=True),)),
    "2000-clients": Scenario("2000 PTP clients", (Clients(value=2_000),)),
    "old-firmware": Scenario("firmware 2.3.12, with its lax login", (Firmware(value="2.3.12"),)),
}


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: list[AnyAction]


def load_scenario(file: Path) -> Scenario:
    """Raises ConfigError naming file, key path and what is allowed."""
    try:
        written = _File.model_validate(toml_tables(read_file(file)))
    except OSError as error:
        raise ConfigError(f"scenario {file}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"scenario {file}: {validation_text(error, model=_File)}") from error
    except ValueError as error:
        raise ConfigError(f"scenario {file}: not valid TOML: {error}") from error
    return Scenario(str(file), tuple(written.action))
