"""The job link in torch's words: modules, optimizers and collectives metered. Of the client this package alone imports torch."""

from timesyncd.client.torch.collectives import all_reduce, barrier, collectives
from timesyncd.client.torch.metering import Metered, meter_ddp, meter_fsdp, metered

__all__ = ["Metered", "all_reduce", "barrier", "collectives", "meter_ddp", "meter_fsdp", "metered"]
