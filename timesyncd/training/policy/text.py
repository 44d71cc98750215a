"""
Policies and compressions as text, the form in which scripts, configurations and plans carry them:
`selsync(quantile=0.94, late=1) + topk(ratio=0.01)`; and the policy that a rank was requested to use last, by its script
or by the hub's plan.
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
    """Half precision: 2 octets an element, no error feedback."""


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Matrices as products of two of `rank` columns (Vogels et al., NeurIPS 2019), with error feedback."""

    rank: int = 1

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class TopK:
    """
    The elements of largest magnitude, with error feedback. `ratio`: the share that is sent; None: the gain test chooses
    it.
    """

    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ValueError(f"ratio is {self.ratio}; it must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Int8:
    """One octet an element and a scale for each 4,096 of them, with error feedback."""


Compression = Fp16 | PowerSGD | TopK | Int8


def topk_count(elements: int, ratio: float) -> int:
    """How many of `elements` are sent: at least one, rounded up from the decimal text of the ratio."""
    return max(1, math.ceil(Fraction(str(ratio)) * elements))


#: Length limit of a policy's text, in octets: the room that a plan has for it.
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

#: A plus sign outside of parentheses. One inside belongs to a number, as in 1e+16.
_PLUS = re.compile(r"\+(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A policy, and how it compresses what it sends; None: not at all."""

    policy: Policy
    compression: Compression | None = None

    def __str__(self) -> str:
        policy = _text_of(POLICIES, self.policy)
        return policy if self.compression is None else f"{policy} + {_text_of(COMPRESSIONS, self.compression)}"


def parse_policy(text: str) -> Strategy:
    """Raises ValueError with what is wrong and what is allowed."""
    _check_length(text)
    first, *second = _PLUS.split(text, maxsplit=1)
    strategy = Strategy(_build(POLICIES, first, text), _build(COMPRESSIONS, second[0], text) if second else None)
    _check_length(str(strategy))  # this text goes to the other ranks, and may be longer than the given one
    return strategy


def _check_length(text: str) -> None:
    if (length := len(text.encode())) > MAX_TEXT:
        raise ValueError(f"policy {text[:40]!r}... has {length} octets; at most {MAX_TEXT} are allowed")


def _build(known: Mapping[str, Callable[..., _Part]], part: str, text: str) -> _Part:
    found = _CALL.fullmatch(part)
    if found is None or found[1] not in known:
        raise ValueError(f"policy {text!r}: {part.strip()!r} is unknown; allowed: {', '.join(known)}")
    kind = known[found[1]]
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**_arguments(fields, found[2] or ""))
    except ValueError as error:
        signature = f"{found[1]}({', '.join(fields)})" if fields else f"{found[1]} (no parameters)"
        raise ValueError(f"policy {text!r}: {signature}: {error}") from error


def _arguments(fields: Mapping[str, dataclasses.Field[Any]], given: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for item in filter(None, (item.strip() for item in given.split(","))):
        name, equals, value = (word.strip() for word in item.partition("="))
        if not equals or name not in fields or name in arguments:
            raise ValueError(f"{item!r} is not allowed; write each parameter once, as name=value")
        arguments[name] = _value(name, value, str(fields[name].type).partition(" | ")[0])
    missing = [name for name, field in fields.items() if name not in arguments and field.default is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given")
    return arguments


def _value(name: str, value: str, kind: str) -> int | float | str:
    if kind not in ("int", "float"):
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        raise ValueError(f"{name} is {value!r}; it must be {'an integer' if kind == 'int' else 'a number'}") from None


def _text_of(known: Mapping[str, Callable[..., Any]], part: Any) -> str:
    """Without the parameters that have their default value."""
    name = next(name for name, kind in known.items() if type(part) is kind)
    given = [
        f"{field.name}={getattr(part, field.name)}"
        for field in dataclasses.fields(part)
        if getattr(part, field.name) != field.default
    ]
    return f"{name}({', '.join(given)})" if given else name


def parse_collective_policy(text: str) -> Strategy:
    """As `parse_policy`. Raises ValueError also for a policy of a parameter server, which a job must start with."""
    strategy = parse_policy(text)
    if strategy.policy.combines is Combine.SERVER:
        raise ValueError(
            f"policy {text!r} needs a parameter server; start the job with timesyncd.training.torch.stale.StaleSync"
        )
    return strategy


class PolicyOverride:
    """
    The policy that this rank was requested to use last, by its script or by the hub's plan.

    `number` counts the requests. The newest request is in force once rank 0's rows have carried it to all ranks.
    """

    def __init__(self) -> None:
        self.number = 0
        self._requested_policy = ""
        self._planned = 0, ""

    def request(self, requested_policy: str) -> None:
        """`requested_policy` is the text of a strategy that was parsed already."""
        self.number, self._requested_policy = self.number + 1, requested_policy

    def newest(self, plan: Plan) -> tuple[int, str]:
        """The number and the text of the newest request. An invalid policy in the plan is ignored, with one warning."""
        planned = plan.policy_version, plan.policy
        if plan.policy and planned != self._planned:  # empty: the hub requests no policy, or no hub reports
            self._planned = planned
            try:
                self.request(str(parse_collective_policy(plan.policy)))
            except ValueError as error:
                warnings.warn(f"this rank ignores the policy in its plan: {error}", stacklevel=2)
        return self.number, self._requested_policy

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "requested_policy": self._requested_policy, "planned": self._planned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number, self._requested_policy = state["number"], state["requested_policy"]
        self._planned = tuple(state["planned"])
