"""
Types of fields that a segment, a datagram and a JSON message share: numbers and texts within limits, and codes.

Standard library only. The limits take effect where pydantic validates such a field, and they are in the published
schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Generic, Self, TypeVar


class Limits:
    """The limits of an annotated type, by pydantic's names (`ge`, `le`, `max_length`, `pattern`)."""

    def __init__(self, **limits: int | str) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], Mapping[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(source), **self._limits}


#: What a signed 64-bit word or column holds, so that no number off the wire overflows a segment or the store.
Int64 = Annotated[int, Limits(ge=-(2**63), lt=2**63)]

#: The same without negative numbers.
Count64 = Annotated[int, Limits(ge=0, lt=2**63)]

#: A duration or an age, and a CLOCK_REALTIME: the sum of two of them still fits 64 bits.
Age = Annotated[int, Limits(ge=0, lt=2**62)]
RealtimeNs = Annotated[int, Limits(ge=0, lt=2**62)]
MAX_AGE_NS = 2**62 - 1

#: A share, or one duration divided by another: in billionths it fits a word of a segment.
Ratio = Annotated[float, Limits(ge=0, le=10**9)]
MAX_RATIO = 10**9

#: A variance of durations, in ns^2, of numbers that are at most 2^66 apart.
VarianceNs2 = Annotated[float, Limits(ge=0, le=2**130)]
MAX_VARIANCE_NS2 = 2.0**130


class Code(StrEnum):
    """
    A reason or a verdict that programs decide by: a text in messages, a number from 1 on in segments.

    Append members and never reorder them: the numbers are part of the segments. A code that only a newer version knows
    is read as UNKNOWN where the enumeration has that member.
    """

    @property
    def number(self) -> int:
        return tuple(type(self)).index(self) + 1

    @classmethod
    def of_number(cls, number: int) -> Self | None:
        """None: the number is not known, and the enumeration has no UNKNOWN."""
        members = tuple(cls)
        return members[number - 1] if 0 < number <= len(members) else cls._missing_(number)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls.__members__.get("UNKNOWN")


#: A `str` instead of a `Code` where the reason may be that of another, perhaps newer, daemon.
CodeType = TypeVar("CodeType", bound=str)


@dataclass(frozen=True, slots=True)
class CodedReason(Generic[CodeType]):
    """A code for programs, and beside it the sentence for people."""

    code: CodeType
    text: str
