"""
Compressors of gradients and of parameter differences. With error feedback, what a step does not send is sent later.
"""

from timesyncd.training.compression.factory import compressor
from timesyncd.training.compression.interface import Compressor, TensorBucket, compression_hook

__all__ = ["Compressor", "TensorBucket", "compression_hook", "compressor"]
