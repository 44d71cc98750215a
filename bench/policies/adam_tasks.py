"""
Tasks with AdamW, to which the constants of `auto` are not fitted, and the one to which those of adaptive optimizers are.

`gpt`: a byte-level GPT with a tied head on the source of Python's standard library: AdamW, warm-up, cosine, clipping.
`cnn`: a CNN with batch normalization on generated images. `markov`: the transformer and the text of t3, for the fit.
"""

from __future__ import annotations

import functools
import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from policies.tasks import Transformer, text
from torch import Tensor, nn
from torch.nn import functional

CONTEXT, WIDTH, HEADS, LAYERS, BYTES = 48, 64, 4, 2, 256
READ_BYTES, HELD_OUT_BYTES = 1_500_000, 24_000
CLASSES, SIDE, IMAGE_NOISE = 8, 12, 5.0


@dataclass(frozen=True)
class AdamTask:
    """
    `batch`: samples of a rank in a step. `steps`: the budget, at whose end the cosine is at a tenth. `draw` gives that many samples by the generator;
    `held_out` the loss of a network on held-out data. `compute_ms`: of a step in the model of time.
    """

    name: str
    title: str
    batch: int
    steps: int
    eval_every: int
    rate: float
    compute_ms: float
    network: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    held_out: Callable[[nn.Module], float]
    warm_up: float = 0.05
    clip: float = 1.0

    def rate_at(self, step: int) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        warm_up = self.warm_up * self.steps
        if step < warm_up:
            return self.rate * (step + 1) / warm_up
        passed = min(1.0, (step - warm_up) / (self.steps - warm_up))
        return self.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * passed)))

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(network.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=0.1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, seen: Tensor) -> Tensor:
        batch, length, _ = seen.shape
        parts = self.qkv(self.before_attention(seen)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        seen = seen + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        mixed_in: Tensor = self.mlp(self.before_mlp(seen))
        return seen + mixed_in


class GPT(nn.Module):
    """The head has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        for embedding in (self.byte, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, given: Tensor) -> Tensor:
        seen = self.byte(given) + self.place.weight[: given.shape[1]]
        return functional.linear(self.norm(self.blocks(seen)), self.byte.weight).transpose(1, 2)


def cnn() -> nn.Module:
    """Two convolutions with batch normalization, and a head."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, 256), nn.ReLU(), nn.Linear(256, CLASSES),
    )  # fmt: skip


@functools.cache
def _source() -> tuple[Tensor, Tensor]:
    """The bytes of the standard library's modules in the order of their names: trained on, and held out."""
    folder = Path(sysconfig.get_path("stdlib"))
    whole = bytearray()
    for path in sorted(folder.glob("*.py")):
        whole += path.read_bytes()
        if len(whole) >= READ_BYTES:
            break
    numbers = torch.frombuffer(whole[:READ_BYTES], dtype=torch.uint8).long()
    return numbers[:-HELD_OUT_BYTES], numbers[-HELD_OUT_BYTES:]


def _windows(whole: Tensor, begins: Tensor, context: int) -> tuple[Tensor, Tensor]:
    both = whole[begins[:, None] + torch.arange(context + 1)]
    return both[:, :-1], both[:, 1:]


def _draw_source(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    trained, _ = _source()
    return _windows(trained, torch.randint(len(trained) - CONTEXT - 1, (count,), generator=generator), CONTEXT)


@functools.cache
def _images() -> Tensor:
    """The mean image of each class."""
    drawn = torch.randn(CLASSES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    return functional.avg_pool2d(functional.pad(drawn, (1, 1, 1, 1), mode="replicate"), 3, stride=1) * 3


def _draw_images(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each image is its class's, shifted by up to a pixel, with noise."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
    images = _images()[labels].roll(shift, (2, 3))
    return images + IMAGE_NOISE * torch.randn(images.shape, generator=generator), labels


@functools.cache
def _held_out_images() -> tuple[Tensor, Tensor]:
    return _draw_images(1_024, torch.Generator().manual_seed(11))


def _loss(network: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    was_training = network.training
    network.eval()
    with torch.no_grad():
        value = functional.cross_entropy(network(inputs), targets).item()
    network.train(was_training)
    return value


def _held_out_source(network: nn.Module) -> float:
    _, held = _source()
    return _loss(network, *_windows(held, torch.arange(0, len(held) - CONTEXT - 1, CONTEXT), CONTEXT))


@functools.cache
def _markov() -> tuple[int, Callable[..., tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    data = text()
    return data.length, data.draw, data.held_out


def _draw_markov(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    length, draw, _ = _markov()
    return draw(torch.randint(length, (count,), generator=generator).tolist(), generator)


ADAM_TASKS = {
    task.name: task
    for task in (
        AdamTask("gpt", "byte-level GPT of 0.12 M parameters", 8, 240, 12, 3e-3, 30.0, GPT, _draw_source, _held_out_source),
        AdamTask(
            "cnn", "CNN with batch normalization, 0.08 M parameters", 16, 240, 12, 2e-3, 30.0, cnn, _draw_images,
            lambda network: _loss(network, *_held_out_images()),
        ),
        AdamTask(
            "markov", "transformer of 0.27 M parameters", 8, 300, 20, 2e-3, 30.0, Transformer, _draw_markov,
            lambda network: _loss(network, *_markov()[2]),
        ),
    )
}  # fmt: skip
