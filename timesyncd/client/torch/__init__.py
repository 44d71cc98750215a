"""The job link in torch's words: metered modules, collectives, policies. Of the client this package alone imports torch."""

from timesyncd.client.torch.bucketing import bucket_options
from timesyncd.client.torch.collectives import all_reduce, barrier, collectives
from timesyncd.client.torch.metering import Metered, meter_ddp, meter_fsdp, metered
from timesyncd.training.torch.near import near_ranks
from timesyncd.training.torch.reports import Change, Report
from timesyncd.training.torch.synchronizer import Synchronizer, synchronized

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
