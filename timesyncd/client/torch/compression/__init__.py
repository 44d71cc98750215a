"""Gradients, or differences of parameters, sent compressed; what was not sent is kept and sent later."""

from timesyncd.client.torch.compression.interface import Bucket, Compressor, run
from timesyncd.client.torch.compression.making import compressor

__all__ = ["Bucket", "Compressor", "compressor", "run"]
