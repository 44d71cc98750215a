"""
Policies and compressions as text, as they stand in a plan: `selsync(quantile=0.94, late=1) + topk(ratio=0.01)`.

What may be sent instead of whole gradients, as data.

Which policy a rank was told last: by its own script, or by the plan.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from timesyncd.ipc.job_segment import Plan
from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.policies import (
    ASP,
    BSP,
    QSR,
    SSP,
    Accumulate,
    Combine,
    FedAvg,
    LocalSGD,
    Policy,
    PostLocalSGD,
)
from timesyncd.training.policy.selsync import SelSync


@dataclass(frozen=True, slots=True)
class Fp16:
    """Half precision: 2 octets an element, and no error feedback."""


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Matrices as products of two of `rank` columns (Vogels et al., NeurIPS 2019), with error feedback."""

    rank: int = 1

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}: 1 or more")


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest elements alone, with error feedback. `ratio`: sent of all; None: the gain test chooses it."""

    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is {self.ratio}: more than 0, at most 1")


@dataclass(frozen=True, slots=True)
class Int8:
    """One octet an element and a scale for each 4,096 of them, with error feedback."""


Compression = Fp16 | PowerSGD | TopK | Int8


def topk_count(elements: int, ratio: float) -> int:
    """How many of so many elements are sent: rounded up from the ratio as it is written, and one at least."""
    return max(1, math.ceil(Fraction(str(ratio)) * elements))


#: In octets; a plan has this much room.
MAX_TEXT = 96

POLICIES: Mapping[str, Callable[..., Policy]] = {
    "auto": Auto,
    "bsp": BSP,
    "accumulate": Accumulate,
    "local_sgd": LocalSGD,
    "post_local_sgd": PostLocalSGD,
    "fedavg": FedAvg,
    "qsr": QSR,
    "ssp": SSP,
    "asp": ASP,
    "selsync": SelSync,
}
COMPRESSIONS: Mapping[str, Callable[..., Compression]] = {
    "fp16": Fp16,
    "powersgd": PowerSGD,
    "topk": TopK,
    "int8": Int8,
}

_Part = TypeVar("_Part")

_CALL = re.compile(r"\s*([a-z_0-9]+)\s*(?:\(([^()]*)\))?\s*")

#: Not one within parentheses, which is a number's: 1e+16.
_PLUS = re.compile(r"\+(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A policy, and what it sends compressed (None: as it is)."""

    policy: Policy
    compression: Compression | None = None

    def __str__(self) -> str:
        policy = _text_of(POLICIES, self.policy)
        return policy if self.compression is None else f"{policy} + {_text_of(COMPRESSIONS, self.compression)}"


def parse_policy(text: str) -> Strategy:
    """Raises ValueError: what is wrong, and what there is."""
    _has_room(text)
    first, *second = _PLUS.split(text, maxsplit=1)
    strategy = Strategy(_made(POLICIES, first, text), _made(COMPRESSIONS, second[0], text) if second else None)
    _has_room(str(strategy))  # told to others as it is written back, which may be longer
    return strategy


def _has_room(text: str) -> None:
    if len(text.encode()) > MAX_TEXT:
        raise ValueError(f"a policy of more than {MAX_TEXT} octets: {text[:40]!r}...")


def _made(known: Mapping[str, Callable[..., _Part]], part: str, text: str) -> _Part:
    found = _CALL.fullmatch(part)
    if found is None or found[1] not in known:
        raise ValueError(f"policy {text!r}: {part.strip()!r} is none of {', '.join(known)}")
    kind = known[found[1]]
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**_arguments(fields, found[2] or ""))
    except (TypeError, ValueError) as error:
        takes = f"{found[1]}({', '.join(fields)})" if fields else f"{found[1]}, which takes nothing"
        raise ValueError(f"policy {text!r}: {takes}: {error}") from error


def _arguments(fields: Mapping[str, str], written: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for item in filter(None, (item.strip() for item in written.split(","))):
        name, equals, value = (word.strip() for word in item.partition("="))
        if not equals or name not in fields or name in arguments:
            raise ValueError(f"{item!r} is not understood")
        kind = fields[name].partition(" | ")[0]
        arguments[name] = {"int": int, "float": float}.get(kind, str)(value)
    return arguments


def _text_of(known: Mapping[str, Callable[..., Any]], part: Any) -> str:
    """What is as it is by default is left out."""
    name = next(name for name, kind in known.items() if type(part) is kind)
    told = [
        f"{field.name}={getattr(part, field.name)}"
        for field in dataclasses.fields(part)
        if getattr(part, field.name) != field.default
    ]
    return f"{name}({', '.join(told)})" if told else name


def parse_collective_policy(text: str) -> Strategy:
    """Raises ValueError for no policy, and for one of a parameter server, which a job has from its start or not at all."""
    strategy = parse_policy(text)
    if strategy.policy.combines is Combine.SERVER:
        raise ValueError(
            f"policy {text!r} needs a parameter server: timesyncd.training.torch.stale.StaleSync begins with one"
        )
    return strategy


class PolicyOverride:
    """`number` counts the policies that this rank was told; the newest one is in force once rank 0's rows have told it to all."""

    def __init__(self) -> None:
        self.number = 0
        self._text = ""
        self._planned = 0, ""

    def tell(self, text: str) -> None:
        """What is written there is checked already."""
        self.number, self._text = self.number + 1, text

    def newest(self, plan: Plan) -> tuple[int, str]:
        """The number and the text. A plan's text that is no policy is refused, with one warning."""
        planned = plan.policy_version, plan.policy
        if plan.policy and planned != self._planned:  # a plan without one: the hub has no wish, or is not heard
            self._planned = planned
            try:
                self.tell(str(parse_collective_policy(plan.policy)))
            except ValueError as error:
                warnings.warn(f"the plan is not followed: {error}", stacklevel=2)
        return self.number, self._text

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "text": self._text, "planned": self._planned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number, self._text, self._planned = state["number"], state["text"], tuple(state["planned"])
