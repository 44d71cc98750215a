"""Distillation: a DDP student, a DDP teacher that no optimizer updates, and unused parameters."""

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.never = nn.Linear(32, 8), nn.Linear(32, 8)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.body(x)


student, teacher = DDP(Student(), find_unused_parameters=True), DDP(nn.Linear(32, 8))
optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
draw = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    late("data", rank)
    x = torch.randn(8, 32, generator=draw)
    with torch.no_grad():
        target = teacher(x)
    optimizer.zero_grad()
    nn.functional.mse_loss(student(x), target).backward()
    optimizer.step()
print_bits(rank, [*student.parameters(), *teacher.parameters()])
dist.destroy_process_group()
