"""Metered torch: modules, collectives and the barrier of a training job. This package alone imports torch in the client."""

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
