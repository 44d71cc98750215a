"""Meters torch: the modules, the collectives and the barrier of a training job. Only this package of the client imports torch."""

from timesyncd.client.torch.collectives import all_reduce, barrier, meter_collectives
from timesyncd.client.torch.ddp import bucket_options
from timesyncd.client.torch.metering import Metered, meter_ddp, meter_fsdp, metered

__all__ = [
    "Metered",
    "all_reduce",
    "barrier",
    "bucket_options",
    "meter_collectives",
    "meter_ddp",
    "meter_fsdp",
    "metered",
]
