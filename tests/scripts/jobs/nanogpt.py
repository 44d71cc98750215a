"""As nanoGPT's train.py: DDP, four micro-batches of which only the last one reduces, by DDP's own flag; clipped gradients."""

import math
import os

import torch
import torch.distributed as dist
from common import STEPS, LateBackward, late, print_bits
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
ddp_rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):  # type: ignore[no-untyped-def]
        q, k, v = self.attention(self.norm(x)).chunk(3, dim=-1)
        return x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 48) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head.weight = self.embed.weight

    def forward(self, index, targets):  # type: ignore[no-untyped-def]
        x = LateBackward.apply(self.embed(index), ddp_rank if model.require_backward_grad_sync else -1)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


model = DDP(GPT(), bucket_cap_mb=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
data = torch.randint(64, (4096,), generator=torch.Generator().manual_seed(ddp_rank))


def get_batch(number):  # type: ignore[no-untyped-def]
    late("data", ddp_rank)
    at = [(number * 97 + each * 131) % 4000 for each in range(4)]
    return torch.stack([data[i : i + 32] for i in at]), torch.stack([data[i + 1 : i + 33] for i in at])


accumulation, number = 4, 0
X, Y = get_batch(number)
for iteration in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * 0.5 * (1 + math.cos(math.pi * iteration / STEPS))
    for micro_step in range(accumulation):
        model.require_backward_grad_sync = micro_step == accumulation - 1
        loss = model(X, Y) / accumulation
        number += 1
        if micro_step == accumulation - 1:
            X, Y = get_batch(number)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    late("update", ddp_rank)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iteration % 20 == 0 and ddp_rank == 0:
        print(f"iter {iteration}: loss {loss.item() * accumulation:.4f}", flush=True)
print_bits(ddp_rank, model.parameters())
dist.destroy_process_group()
