"""
Policies, outer optimizers and compressions as text, the form in which scripts, configurations and plans carry them:
`local_sgd(h=16) + outer(lr=0.7) + topk(ratio=0.01)`; and the policy that a rank was requested to use last, by its
script or by the hub's plan.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from timesyncd.ipc.job_segment import Plan
from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.low_communication import DESLOC, DiLoCo, Outer, StreamingDiLoCo
from timesyncd.training.policy.plugins import COMPRESSIONS_GROUP, POLICIES_GROUP, Registry
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


@dataclass(frozen=True, slots=True)
class E3M0:
    """
    Four bits an element: a sign and a power of two of seven, and a scale for each 4,096 elements (the outer gradients
    of Streaming DiLoCo, arXiv 2501.18512, Sec. 2.4). As in the paper there is no error feedback.
    """


@dataclass(frozen=True, slots=True)
class Visible:
    """
    The elements whose bfloat16 value the averaging would change, with error feedback (PULSELoCo, Miahi and Belilovsky,
    arXiv 2602.03839). It sends differences of parameters, so it needs a policy that averages parameters.
    """


class InstalledCompression(Protocol):
    """A compression of another distribution, a frozen dataclass (the entry points `timesyncd.compressions`)."""

    def compressor(self, group: Any, parameters: Iterable[Any]) -> Any:
        """
        What `timesyncd.training.compression.Compressor` describes, over this process group. `parameters`: all
        parameters whose buckets it will get.
        """


Compression = Fp16 | PowerSGD | TopK | Int8 | E3M0 | Visible | InstalledCompression


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
    "diloco": DiLoCo,
    "streaming_diloco": StreamingDiLoCo,
    "des_loc": DESLOC,
}
OUTERS: Mapping[str, Callable[..., Outer]] = {"outer": Outer}
COMPRESSIONS: Mapping[str, Callable[..., Compression]] = {
    "fp16": Fp16,
    "powersgd": PowerSGD,
    "topk": TopK,
    "int8": Int8,
    "e3m0": E3M0,
    "visible": Visible,
}

_POLICIES: Registry[Policy] = Registry(POLICIES_GROUP, POLICIES, "decide", "combines", "late")
_COMPRESSIONS: Registry[Compression] = Registry(COMPRESSIONS_GROUP, COMPRESSIONS, "compressor")
_OUTERS: Registry[Outer] = Registry("", OUTERS)

_Part = TypeVar("_Part")

_CALL = re.compile(r"\s*([a-z_0-9]+)\s*(?:\(([^()]*)\))?\s*")

#: A plus sign outside of parentheses. One inside belongs to a number, as in 1e+16.
_PLUS = re.compile(r"\+(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class Strategy:
    """
    A policy; how it compresses what it sends, None: not at all; and the outer optimizer behind its averagings, None:
    the policy's own, or none.
    """

    policy: Policy
    compression: Compression | None = None
    outer: Outer | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for parts that do not fit together."""
        if self.policy.combines is Combine.PARAMETERS:
            if self.outer is not None and isinstance(self.policy, DiLoCo | StreamingDiLoCo | DESLOC):
                raise ValueError("outer goes behind policies that have no outer optimizer of their own")
            return
        for name, part in (("outer", self.outer), ("visible", isinstance(self.compression, Visible) or None)):
            if part is not None:
                raise ValueError(f"{name} goes behind policies that average parameters, as local_sgd and diloco")

    @property
    def outer_optimizer(self) -> Outer | None:
        """What each averaging is followed by: written behind the policy, or the policy's own."""
        return self.policy.outer if isinstance(self.policy, DiLoCo | StreamingDiLoCo) else self.outer

    def __str__(self) -> str:
        parts = [_text_of(_POLICIES, self.policy)]
        if self.outer is not None:
            parts.append(_text_of(_OUTERS, self.outer))
        if self.compression is not None:
            parts.append(_text_of(_COMPRESSIONS, self.compression))
        return " + ".join(parts)


def parse_policy(text: str) -> Strategy:
    """Raises ValueError with what is wrong and what is allowed."""
    _check_length(text)
    first, *rest = _PLUS.split(text, maxsplit=1)
    policy, outer = _build(_POLICIES, first, text), None
    if rest and (found := _CALL.match(rest[0])) is not None and found[1] in OUTERS:
        written, *rest = _PLUS.split(rest[0], maxsplit=1)
        outer = _build(_OUTERS, written, text)
    compression = _build(_COMPRESSIONS, rest[0], text) if rest else None
    try:
        strategy = Strategy(policy, compression, outer)
    except ValueError as error:
        raise ValueError(f"policy {text!r}: {error}") from None
    _check_length(str(strategy))  # this text goes to the other ranks, and may be longer than the given one
    return strategy


def _check_length(text: str) -> None:
    if (length := len(text.encode())) > MAX_TEXT:
        raise ValueError(f"policy {text[:40]!r}... has {length} octets; at most {MAX_TEXT} are allowed")


def _build(known: Registry[_Part], part: str, text: str) -> _Part:
    found = _CALL.fullmatch(part)
    try:
        kind = None if found is None else known.find(found[1])
    except ValueError as error:
        raise ValueError(f"policy {text!r}: {error}") from error
    if found is None or kind is None:
        raise ValueError(f"policy {text!r}: {part.strip()!r} is unknown; allowed: {', '.join(known.names())}")
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
        arguments[name] = _value(name, value, _type_name(fields[name]))
    missing = [name for name, field in fields.items() if name not in arguments and field.default is dataclasses.MISSING]
    if missing:
        raise ValueError(f"{' and '.join(missing)} must be given")
    return arguments


def _type_name(field: dataclasses.Field[Any]) -> str:
    """The first of the field's types, whether its module evaluates annotations or not."""
    written = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return written.partition(" | ")[0]


def _value(name: str, value: str, kind: str) -> int | float | str:
    if kind not in ("int", "float"):
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        raise ValueError(f"{name} is {value!r}; it must be {'an integer' if kind == 'int' else 'a number'}") from None


def _text_of(known: Registry[Any], part: Any) -> str:
    """Without the parameters that have their default value."""
    name = known.name_of(part)
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
