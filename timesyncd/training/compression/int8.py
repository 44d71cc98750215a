"""One octet an element, with error feedback; torch's own quantization hooks have none, and fail on gloo."""

from __future__ import annotations

import math

import torch

from timesyncd.training.compression.gathered_part import Gathered, Payload, packed, unpacked

#: So many elements at most share a scale.
SHARING = 4_096

_LARGEST = 127


class Levels(Payload):
    """Each stretch of a bucket as whole multiples of a scale, 1/127 of its largest magnitude."""

    def __init__(self, whole: torch.Tensor) -> None:
        self._stretches = math.ceil(len(whole) / SHARING)
        self._width = math.ceil(len(whole) / self._stretches)
        filled = torch.nn.functional.pad(whole, (0, self._stretches * self._width - len(whole)))
        stretches = filled.view(self._stretches, self._width)
        scales = stretches.abs().amax(1).div_(_LARGEST).float()
        multiples = stretches.div(
            scales.unsqueeze(1)
        ).round_()  # where a scale is 0, whatever they are is multiplied by it
        self.octets = packed(scales, multiples.clamp_(-_LARGEST, _LARGEST).to(torch.int8))

    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        scales, multiples = self._unpacked(octets)
        values = multiples.view(self._stretches, self._width).to(total.dtype).mul_(scales.unsqueeze(1))
        total.add_(values.view(-1)[: len(total)], alpha=times)

    def finite(self, rows: list[torch.Tensor]) -> bool:
        return all(bool(self._unpacked(row)[0].isfinite().all()) for row in rows)

    def _unpacked(self, octets: torch.Tensor) -> list[torch.Tensor]:
        """Scales and multiples."""
        return unpacked(octets, (self._stretches, torch.float32), (self._stretches * self._width, torch.int8))


class Int8Feedback(Gathered):
    def _packed(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        return Levels(whole)
