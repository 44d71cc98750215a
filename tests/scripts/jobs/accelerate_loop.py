"""accelerate: `prepare`, `accumulate`, `gather_for_metrics`, with a scheduler."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from common import STEPS, late, print_bits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rank = accelerator.process_index
torch.manual_seed(2)
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
inputs = torch.randn(8 * STEPS, 16, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=2)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for x, y in loader:
    with accelerator.accumulate(model):
        if accelerator.sync_gradients:
            late("data", rank)
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
accelerator.print(f"loss {accelerator.gather_for_metrics(loss.detach()).mean():.4f}", flush=True)
print_bits(rank, model.parameters())
dist.destroy_process_group()
