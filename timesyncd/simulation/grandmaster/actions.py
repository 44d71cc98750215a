"""What can be done to a unit at a time: each action as a scenario's file writes it."""

from __future__ import annotations

import random
from functools import partial
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from timesyncd.simulation.grandmaster.alarms import KINDS
from timesyncd.simulation.grandmaster.device import Device

HttpsFault = Literal["none", "html", "huge", "drip", "redirect", "certificate"]

_STORM_STEP_S = 0.05
_STORM = [("port-down", 1), ("port-down", 2), ("fan", 1), ("fan", 2), ("power", 1), ("power", 2), ("temperature", 0)]


class Action(BaseModel):
    """`at_s` in simulated seconds since the scenario began."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: float = Field(default=0.0, ge=0)

    def apply(self, device: Device) -> None:
        raise NotImplementedError


class Antenna(Action):
    do: Literal["antenna"] = "antenna"
    value: Literal["ok", "open", "short"]

    def apply(self, device: Device) -> None:
        device.receiver.antenna = self.value


class Attenuate(Action):
    """All satellites become weaker alike, in dB, evenly over `over_s`."""

    do: Literal["attenuate"] = "attenuate"
    value: float = Field(ge=0)
    over_s: float = Field(default=0.0, ge=0)

    def apply(self, device: Device) -> None:
        device.receiver.attenuate(self.value, self.over_s, device.elapsed_s)


class Position(Action):
    """The receiver's position jumps so many metres east."""

    do: Literal["position"] = "position"
    value: float

    def apply(self, device: Device) -> None:
        device.receiver.jump(self.value)


class Time(Action):
    """What the receiver takes for UTC jumps by so many nanoseconds."""

    do: Literal["time"] = "time"
    value: float

    def apply(self, device: Device) -> None:
        device.move_reference(self.value)


class Bridging(Action):
    """How long the unit bridges a lost reference before it says holdover, in seconds."""

    do: Literal["bridging"] = "bridging"
    value: float = Field(ge=0)

    def apply(self, device: Device) -> None:
        device.dwell.bridging_s = self.value


class Reboot(Action):
    do: Literal["reboot"] = "reboot"

    def apply(self, device: Device) -> None:
        device.reboot()


class _Failure(Action):
    """`value` names an alarm of alarms.KINDS that stands; `index` says which fan, power input or port."""

    value: str
    index: int = 0

    @field_validator("value")
    @classmethod
    def stands(cls, name: str) -> str:
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


class Storm(Action):
    """Alarms come and go, twenty changes a second, for so many seconds."""

    do: Literal["storm"] = "storm"
    value: float = Field(gt=0)

    def apply(self, device: Device) -> None:
        draw = random.Random(f"storm {device.seed}")
        for step in range(int(self.value / _STORM_STEP_S)):
            device.schedule(step * _STORM_STEP_S, partial(_toggle, draw.choice(_STORM)))
        device.schedule(self.value, lambda unit: unit.failures.difference_update(_STORM))


def _toggle(failure: tuple[str, int], device: Device) -> None:
    device.failures.symmetric_difference_update({failure})


class Leap(Action):
    do: Literal["leap"] = "leap"
    value: Literal["insert", "delete", "none"]

    def apply(self, device: Device) -> None:
        device.announce_leap(self.value)


class UtcOffset(Action):
    do: Literal["utc-offset"] = "utc-offset"
    value: int

    def apply(self, device: Device) -> None:
        device.utc_offset_s = self.value


class Clients(Action):
    """How many PTP clients the unit serves, over all its ports."""

    do: Literal["clients"] = "clients"
    value: int = Field(ge=0)

    def apply(self, device: Device) -> None:
        device.client_total = self.value


class Firmware(Action):
    do: Literal["firmware"] = "firmware"
    value: str

    def apply(self, device: Device) -> None:
        device.firmware = self.value


class Lie(Action):
    """It sees no satellite, and says that all is well."""

    do: Literal["lie"] = "lie"
    value: bool

    def apply(self, device: Device) -> None:
        device.lying = device.receiver.blind = self.value


class AnswerDelay(Action):
    do: Literal["answer-delay"] = "answer-delay"
    value: float = Field(ge=0, le=60)

    def apply(self, device: Device) -> None:
        device.answer_delay_s = self.value


class Loss(Action):
    """The share of the datagrams that are lost, each way."""

    do: Literal["loss"] = "loss"
    value: float = Field(ge=0, le=1)

    def apply(self, device: Device) -> None:
        device.loss = self.value


class BadHttps(Action):
    do: Literal["https-fault"] = "https-fault"
    value: HttpsFault

    def apply(self, device: Device) -> None:
        device.https_fault = None if self.value == "none" else self.value


AnyAction = Annotated[
    Antenna
    | Attenuate
    | Position
    | Time
    | Bridging
    | Reboot
    | Raise
    | Clear
    | Storm
    | Leap
    | UtcOffset
    | Clients
    | Firmware
    | Lie
    | AnswerDelay
    | Loss
    | BadHttps,
    Field(discriminator="do"),
]
