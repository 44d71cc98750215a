"""
Compressors of gradients and of parameter differences. With error feedback, what a step does not send is sent later.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from timesyncd.training.compression.compressors import HalfPrecision, Int8Feedback, LowRank, TopKFeedback
from timesyncd.training.compression.interface import Compressor, TensorBucket, compression_hook
from timesyncd.training.compression.outer_gradients import FourBits, VisibleFeedback
from timesyncd.training.policy.text import E3M0, Compression, Fp16, Int8, PowerSGD, TopK, Visible

__all__ = ["Compressor", "TensorBucket", "compression_hook", "compressor"]


def compressor(compression: Compression, group: dist.ProcessGroup, parameters: Iterable[torch.Tensor]) -> Compressor:
    """
    `parameters`: all parameters whose buckets it will get, in an order that is the same after a restart, as
    `ddp.parameters()`.

    Every rank of the group makes one of the same compression. Each serves one module, because its residuals belong to
    that module's parameters.
    """
    match compression:
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
        case E3M0():
            return FourBits("e3m0", group, parameters)
        case Visible():
            return VisibleFeedback("visible", group, parameters)
        case _:
            made: Compressor = compression.compressor(group, parameters)
            return made
