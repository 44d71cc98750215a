"""A GAN: two DDP modules with an optimizer each; the critic is updated CRITIC times for each update of the generator."""

import os

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, critic_updates = dist.get_rank(), int(os.environ.get("CRITIC", "1"))
torch.manual_seed(0)
generator = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)))
critic = DDP(nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)))
of_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
draw = torch.Generator().manual_seed(rank)
for iteration in range(STEPS):
    of_critic.zero_grad()
    late("data", rank)
    real, noise = torch.randn(8, 32, generator=draw) + 1, torch.randn(8, 16, generator=draw)
    with torch.no_grad():
        fake = generator(noise)
    (critic(fake).mean() - critic(real).mean()).backward()
    of_critic.step()
    if iteration % critic_updates == 0:
        of_generator.zero_grad()
        late("generator", rank)
        critic.requires_grad_(False)
        (-critic.module(generator(noise)).mean()).backward()
        critic.requires_grad_(True)
        of_generator.step()
print_bits(rank, [*generator.parameters(), *critic.parameters()])
dist.destroy_process_group()
