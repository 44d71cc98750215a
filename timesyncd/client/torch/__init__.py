"""The job link in torch's words: metered modules, collectives, policies. Of the client this package alone imports torch."""

from timesyncd.client.torch.collectives import all_reduce, barrier, collectives
from timesyncd.client.torch.ddp import bucket_options
from timesyncd.client.torch.metering import Metered, meter_ddp, meter_fsdp, metered
from timesyncd.training.torch.synchronizer import Change, Report, Synchronizer, synchronized
from timesyncd.training.torch.topology_groups import near_ranks

__all__ = [
    "Change",
    "Metered",
    "Report",
    "Synchronizer",
    "all_reduce",
    "barrier",
    "bucket_options",
    "collectives",
    "meter_ddp",
    "meter_fsdp",
    "metered",
    "near_ranks",
    "synchronized",
]
