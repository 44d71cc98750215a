"""Policies and compressions as text, as they stand in a plan: `selsync(quantile=0.94, late=1) + topk(ratio=0.01)`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from timesyncd.training.policy.auto import Auto
from timesyncd.training.policy.compression import Compression, Fp16, Int8, PowerSGD, TopK
from timesyncd.training.policy.decision import Policy
from timesyncd.training.policy.policies import BSP, QSR, Accumulate, FedAvg, LocalSGD, PostLocalSGD
from timesyncd.training.policy.selsync import SelSync
from timesyncd.training.policy.stale import ASP, SSP

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


def parse(text: str) -> Strategy:
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
