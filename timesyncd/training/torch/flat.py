"""A model's parameters as flat buffers on the CPU, one a type, and these cut into shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch

Tensors: TypeAlias = list[torch.Tensor]


class Flat:
    """Raises ValueError for parameters that are no floats, and where there are none."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._of: dict[torch.dtype, Tensors] = {}
        for parameter in parameters:
            self._of.setdefault(parameter.dtype, []).append(parameter)
        strange = [str(kind) for kind in self._of if not kind.is_floating_point]
        if strange or not self._of:
            raise ValueError(f"a model with parameters of floats is wanted, not of {', '.join(strange) or 'none'}")
        self.sizes = tuple(
            (str(kind), sum(part.numel() for part in parameters)) for kind, parameters in self._of.items()
        )
        self.nbytes = sum(part.nbytes for parameters in self._of.values() for part in parameters)

    def read(self) -> Tensors:
        """A copy."""
        return [
            torch.cat([parameter.detach().reshape(-1).cpu() for parameter in parameters])
            for parameters in self._of.values()
        ]

    def write(self, flats: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameters, flat in zip(self._of.values(), flats, strict=True):
                parts = torch.split(flat, [parameter.numel() for parameter in parameters])
                for parameter, part in zip(parameters, parts, strict=True):
                    parameter.copy_(part.view_as(parameter))


def sizes_of(flats: Iterable[torch.Tensor]) -> tuple[tuple[str, int], ...]:
    return tuple((str(flat.dtype), flat.numel()) for flat in flats)


def cut(flats: Iterable[torch.Tensor], shards: int) -> list[Tensors]:
    """Of each buffer one contiguous piece a shard; they differ by one element at most. Views."""
    pieces = [flat.tensor_split(shards) for flat in flats]
    return [[piece[shard] for piece in pieces] for shard in range(shards)]


def joined(pieces: Sequence[Tensors]) -> Tensors:
    """What `cut` has cut."""
    return [torch.cat(parts) for parts in zip(*pieces, strict=True)]
