"""As PyTorch's ImageNet example: convolutions with BatchNorm, a DistributedSampler, metrics reduced every so often, rank 0 saves."""

import io

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = DDP(
    nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
draw = torch.Generator().manual_seed(1)
dataset = TensorDataset(torch.randn(320, 3, 16, 16, generator=draw), torch.randint(10, (320,), generator=draw))
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=320 // world // 10, sampler=sampler)
for epoch in range(STEPS // 10):
    sampler.set_epoch(epoch)
    for images, target in loader:
        late("data", rank)
        loss = nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = torch.tensor([float(loss), 1.0])
    dist.all_reduce(total)
    if rank == 0:
        torch.save(model.module.state_dict(), io.BytesIO())
        print(f"epoch {epoch}: {float(total[0] / total[1]):.4f}", flush=True)
print_bits(rank, model.state_dict().values())
dist.destroy_process_group()
