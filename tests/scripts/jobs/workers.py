"""A DataLoader with two worker processes, made anew in each epoch; the dataset itself is slow on the late rank."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Images(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4 * STEPS // 2

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if index % 4 == 0:
            late("data", rank)
        draw = torch.Generator().manual_seed(1000 * rank + index)
        return torch.randn(64, generator=draw), index % 10


model = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    for x, y in DataLoader(Images(), batch_size=4, num_workers=1, prefetch_factor=1):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
print_bits(rank, model.parameters())
dist.destroy_process_group()
