"""From a compression as it is written to what runs it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from timesyncd.training.compression.gathered import Int8Feedback, TopKFeedback
from timesyncd.training.compression.interface import Compressor
from timesyncd.training.compression.torch_hooks import HalfPrecision, LowRank
from timesyncd.training.policy.text import Compression, Fp16, Int8, PowerSGD, TopK


def compressor(written: Compression, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor]) -> Compressor:
    """
    `parameters`: all whose buckets it will see, in an order that is the same after a restart: `ddp.parameters()`.

    Every rank of the group makes one of the same. Each serves one module: what it has not sent belongs to that one's parameters.
    """
    match written:
        case Fp16():
            return HalfPrecision("fp16", group)
        case PowerSGD(rank):
            return LowRank(f"powersgd(rank={rank})", group, parameters, rank)
        case TopK(None):
            return TopKFeedback("topk", group, parameters, None)
        case TopK(ratio):
            return TopKFeedback(f"topk(ratio={ratio})", group, parameters, ratio)
        case Int8():
            return Int8Feedback("int8", group, parameters)
