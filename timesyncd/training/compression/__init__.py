"""Gradients, or differences of parameters, sent compressed; what was not sent is kept and sent later."""

from timesyncd.training.compression.factory import compressor
from timesyncd.training.compression.interface import Compressor, TensorBucket, compression_hook

__all__ = ["Compressor", "TensorBucket", "compression_hook", "compressor"]
