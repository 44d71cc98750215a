"""One module whose matrices and vectors have an optimizer each, as with Muon; the second one is slow on the late rank at `update`."""

import torch
import torch.distributed as dist
from common import STEPS, LateBackward, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 8)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.second(LateBackward.apply(self.first(x).relu(), rank))


model = DDP(Model(), bucket_cap_mb=0.001)
matrices = [each for each in model.parameters() if each.ndim == 2]
vectors = [each for each in model.parameters() if each.ndim == 1]
optimizers = [torch.optim.SGD(matrices, lr=0.02, momentum=0.95), torch.optim.AdamW(vectors, lr=1e-3)]
optimizers[0].register_step_pre_hook(lambda *_: late("update", rank))
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    model(torch.randn(8, 64, generator=draw)).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
print_bits(rank, model.parameters())
dist.destroy_process_group()
