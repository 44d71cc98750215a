"""Lightning's Trainer.fit with a validation, on ranks that a launcher started."""

import tempfile
import warnings

import torch
import torch.distributed as dist
from common import STEPS, late, print_bits
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, number):  # type: ignore[no-untyped-def]
        late("data", self.global_rank)
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, number):  # type: ignore[no-untyped-def]
        self.log("validation", self.layer(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        return torch.optim.SGD(self.parameters(), lr=0.1)


seed_everything(1, verbose=False)
model = Model()
loader = DataLoader(TensorDataset(torch.randn(320, 8, generator=torch.Generator().manual_seed(1))), batch_size=4)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, val_check_interval=20, limit_val_batches=2, logger=False,
        num_sanity_val_steps=0, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, loader, loader)
print_bits(model.global_rank, model.parameters())
if dist.is_initialized():
    dist.destroy_process_group()
