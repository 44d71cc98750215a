"""What a rank pushes to a parameter server: the difference that its update made, whole or compressed with error feedback."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import torch

from timesyncd.training.compression.gathered import Elements
from timesyncd.training.compression.gathered_part import Payload
from timesyncd.training.compression.int8 import Levels
from timesyncd.training.compression.plain import finite
from timesyncd.training.policy.compression import Compression, Fp16, Int8, PowerSGD, TopK, chosen
from timesyncd.training.policy.gain import Gain
from timesyncd.training.torch.flat import Tensors, cut, joined

#: Of one flat buffer: itself, in whatever type, or compressed.
Part: TypeAlias = "torch.Tensor | Payload"

#: A push has one receiver: for the gain test it costs what it costs between two ranks.
_ENDS = 2

_LARGEST_HALF = torch.finfo(torch.float16).max


class Pushes:
    """
    Of one rank. What a push leaves out is added to the next one, also where that one goes another way.

    `sent_bytes`: of the newest push. `kept`: what was not sent, a flat buffer a type; None: nothing was left out so far.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.kept: Tensors | None = None
        self._compression: Compression | None = None
        self._gain: Gain | None = None

    def use(self, compression: Compression | None) -> None:
        """From the next push on. Raises ValueError for one that takes all ranks at once."""
        if type(compression) is PowerSGD:
            raise ValueError("powersgd reduces over all ranks at once: to a parameter server go fp16, int8 and topk")
        if compression != self._compression:
            self._gain = Gain(_ENDS) if compression == TopK() else None
        self._compression = compression

    def packed(self, differences: Tensors, shards: int) -> list[list[Part]]:
        """By shard. What is not finite goes as it is, for whoever looks at the parameters to see; what was kept stays kept."""
        if self._compression is None and self.kept is None:
            pieces: Sequence[Sequence[Part]] = cut(differences, shards)
        else:
            pieces = self._compressed(differences, shards)
        self.sent_bytes = sum(nbytes(part) for piece in pieces for part in piece)
        return [list(piece) for piece in pieces]

    def _compressed(self, differences: Tensors, shards: int) -> list[list[Part]]:
        if not all(map(finite, differences)):
            return [list[Part](piece) for piece in cut(differences, shards)]
        kept = self.kept or [torch.zeros_like(flat) for flat in differences]
        whole = [flat + residual for flat, residual in zip(differences, kept, strict=True)]
        parts = [[self._part(flat) for flat in piece] for piece in cut(whole, shards)]
        if self._compression is None:
            self.kept = None
            return parts
        sent = joined([_decoded(piece, part) for piece, part in zip(cut(whole, shards), parts, strict=True)])
        self.kept = [flat - decoded for flat, decoded in zip(whole, sent, strict=True)]
        if self._gain is not None:
            self._gain.saw(*_squares(sent, whole))
        return parts

    def _part(self, flat: torch.Tensor) -> Part:
        """Where a shard has nothing of a type, nothing is sent of it."""
        ratio = self._gain.ratio if self._gain is not None else getattr(self._compression, "ratio", None)
        match self._compression:
            case Fp16():
                return flat.clamp(-_LARGEST_HALF, _LARGEST_HALF).half()
            case Int8() if len(flat):
                return Levels(flat)
            case TopK() if len(flat) and ratio is not None:
                return Elements(flat, chosen(len(flat), ratio), flat.dtype)
        return flat

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "gain": self._gain and asdict(self._gain)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]
        if self._gain is not None and state["gain"] is not None:
            self._gain = Gain(**state["gain"])


def plus(flats: Iterable[torch.Tensor], parts: Iterable[Part]) -> Tensors:
    """New tensors, since the old ones may be on their way to a rank."""
    return [_plus(flat, part) for flat, part in zip(flats, parts, strict=True)]


def nbytes(part: Part) -> int:
    return part.nbytes if isinstance(part, torch.Tensor) else part.octets.nbytes


def _plus(flat: torch.Tensor, part: Part) -> torch.Tensor:
    if isinstance(part, torch.Tensor):
        return flat + part.to(flat.dtype)
    total = flat.clone()
    part.add(total, part.octets, 1)
    return total


def _decoded(flats: Tensors, parts: Sequence[Part]) -> Tensors:
    return plus([torch.zeros_like(flat) for flat in flats], parts)


def _squares(*sides: Tensors) -> tuple[float, ...]:
    """The squared norm of each side; zeros where one has no number."""
    norms = [
        math.fsum(torch.linalg.vector_norm(flat, dtype=torch.float64).item() ** 2 for flat in side) for side in sides
    ]
    return tuple(norms) if all(map(math.isfinite, norms)) else (0.0,) * len(norms)
