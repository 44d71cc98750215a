"""Gradients, or differences of parameters, sent compressed; what was not sent is kept and sent later."""

from timesyncd.training.compression.factory import compressor
from timesyncd.training.compression.interface import Bucket, Compressor, run

__all__ = ["Bucket", "Compressor", "compressor", "run"]
