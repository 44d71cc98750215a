"""What may be sent instead of whole gradients, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


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


def chosen(elements: int, ratio: float) -> int:
    """How many of so many elements are sent: rounded up from the ratio as it is written, and one at least."""
    return max(1, math.ceil(Fraction(str(ratio)) * elements))
