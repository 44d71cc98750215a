"""
Compressors for the outer gradients of low-communication methods: four-bit floats, and what bfloat16 can see.

Both serve the differences of parameters that averagings send.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from timesyncd.training.compression.compressors import SCALE_ELEMENTS, Gathered, Payload, gather, pack, unpack
from timesyncd.training.compression.feedback import Feedback, write_average
from timesyncd.training.compression.interface import Future, TensorBucket, is_finite, replace_if

#: The largest code of E3M0's three exponent bits. Code 0 is zero, and code c above it 2^(c - 7) of the scale.
_MAX_CODE = 7

_SIGN = 8


class FourBitPayload(Payload):
    """
    E3M0: a sign and three bits of exponent an element, two elements an octet; the nearest value is sent. Each block of
    a bucket has a scale, its largest magnitude.
    """

    def __init__(self, whole: torch.Tensor) -> None:
        self._blocks = math.ceil(len(whole) / SCALE_ELEMENTS)
        width = math.ceil(len(whole) / self._blocks)
        self._width = width + width % 2
        filled = torch.nn.functional.pad(whole, (0, self._blocks * self._width - len(whole)))
        blocks = filled.view(self._blocks, self._width)
        scales = blocks.abs().amax(1).float()
        shares = blocks.abs().div(scales.unsqueeze(1))
        # The nearest of two powers changes at 1.5 times the lower one, that of zero and the smallest at half of it.
        codes = (shares / 0.75).log2().floor_().add_(_MAX_CODE).clamp_(1, _MAX_CODE)
        codes = torch.where(shares < 2.0**-_MAX_CODE, torch.zeros_like(codes), codes).nan_to_num_(0.0).to(torch.uint8)
        signed = (codes + _SIGN * (blocks < 0).to(torch.uint8)).view(-1, 2)
        self.octets = pack(scales, signed[:, 0] + 16 * signed[:, 1])

    def add(self, total: torch.Tensor, octets: torch.Tensor, times: int) -> None:
        scales, pairs = self._unpacked(octets)
        signed = torch.stack((pairs & 15, pairs >> 4), 1).view(self._blocks, self._width)
        codes = (signed & _MAX_CODE).to(total.dtype)
        magnitudes = torch.where(codes == 0, torch.zeros_like(codes), torch.exp2(codes - _MAX_CODE))
        values = torch.where(signed >= _SIGN, -magnitudes, magnitudes).mul_(scales.unsqueeze(1))
        total.add_(values.view(-1)[: len(total)], alpha=times)

    def finite(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([self._unpacked(row)[0] for row in rows]).isfinite().all()

    def _unpacked(self, octets: torch.Tensor) -> list[torch.Tensor]:
        """The scales, and the codes of pairs of elements."""
        return unpack(octets, (self._blocks, torch.float32), (self._blocks * self._width // 2, torch.uint8))


class FourBits(Gathered):
    """E3M0 without error feedback; the sum is in single precision (Streaming DiLoCo, arXiv 2501.18512, Sec. 2.4)."""

    _has_feedback = False

    def _payload(self, whole: torch.Tensor, dtype: torch.dtype) -> Payload:
        return FourBitPayload(whole)


def visible_places(anchor: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """The places where the change is visible: the value in bfloat16 is another one with it."""
    before, after = anchor.to(torch.bfloat16), (anchor + change).to(torch.bfloat16)
    return (before != after).nonzero().squeeze(1)  # a NaN is unequal to itself, so it is sent


class VisibleFeedback(Feedback):
    """
    Compute-visible sparsification with error feedback (PULSELoCo, Miahi and Belilovsky, arXiv 2602.03839): of what there
    is to send, difference and residual, an element is sent where it changes the parameter's bfloat16 value, which is
    what the next forward pass computes with. The rest waits in the residual, in float32 at least.

    The ranks see different numbers of elements; they exchange the numbers first, and the host waits for them. Where a
    rank sees more than half of a bucket, all send it whole, which is as many octets.
    """

    def _compressed(self, bucket: TensorBucket) -> Future:
        anchor = getattr(bucket, "anchor", None)  # what all ranks have in common, and the differences are to
        if anchor is None:
            raise ValueError("visible needs differences of parameters; put it behind a policy that averages parameters")
        residual, whole = self._whole(bucket)
        places = visible_places(anchor, whole)
        most = self._most(len(places), whole.device)
        if 2 * most > len(whole):
            return self._reduced(bucket, residual, whole)
        values = torch.nn.functional.pad(whole[places], (0, most - len(places)))
        payload = pack(values, torch.nn.functional.pad(places, (0, most - len(places))).int())
        self.sent_bytes += payload.nbytes
        future, rows = gather(self._group, payload)

        def finish(gathered: torch.futures.Future[Any]) -> torch.Tensor:
            gathered.value()  # raises the error, if any
            unsent = whole.clone()
            unsent[places] = 0
            whole.zero_()
            for row in rows:
                theirs, where = unpack(row, (most, whole.dtype), (most, torch.int32))
                whole.index_add_(0, where, theirs)
            replace_if(is_finite(whole), residual, unsent)
            return write_average(whole.div_(len(rows)), bucket)

        return future.then(finish)

    def _most(self, count: int, device: torch.device) -> int:
        """The largest number of visible elements of a rank. Every rank calls it."""
        most = torch.tensor([count], device=device)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self._group)
        return int(most)
