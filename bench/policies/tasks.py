"""
Tasks with SGD: small enough for a step of some milliseconds on one core, big enough that their gradients fill a shaped link.

Digits are scikit-learn's 8 x 8 pictures (1,797), rolled by up to a pixel and noised again at each draw; the held-out fifth is drawn four times, once and
for all. The text is made from a Markov chain of order 2, whose own perplexity is the least that anybody can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn

NOISE = 0.12
HELD_OUT_DRAWS = 4
SYMBOLS, CONTEXT, WIDTH = 24, 16, 128
TRAINED, HELD_OUT = 60_000, 4_000


@dataclass(frozen=True)
class Data:
    """`draw` gives the inputs and targets of these samples, noised by that generator where the task has noise."""

    length: int
    labels: Sequence[int]
    draw: Callable[[Sequence[int], torch.Generator], tuple[Tensor, Tensor]]
    held_out: tuple[Tensor, Tensor]


class Transformer(nn.Module):
    """Two causal layers over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.symbol, self.place = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.out = nn.Linear(WIDTH, SYMBOLS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        seen = self.symbol(text) + self.place.weight
        for layer in self.layers:
            seen = layer(seen, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.out(seen)
        return logits.transpose(1, 2)


def mlp() -> nn.Module:
    """0.3 M parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def _noised(pictures: Tensor, generator: torch.Generator) -> Tensor:
    shifts = torch.randint(-1, 2, (len(pictures), 2), generator=generator)
    rows = (torch.arange(8) - shifts[:, :1]) % 8
    columns = (torch.arange(8) - shifts[:, 1:]) % 8
    rolled = pictures[torch.arange(len(pictures))[:, None, None], rows[:, :, None], columns[:, None, :]]
    return (rolled + NOISE * torch.randn(rolled.shape, generator=generator)).unsqueeze(1)


def digits() -> Data:
    found = load_digits()
    order = numpy.random.default_rng(0).permutation(len(found.target))
    pictures = torch.tensor(found.images[order] / 16, dtype=torch.float32)
    labels = torch.tensor(found.target[order])
    held = len(labels) // 5
    once = torch.Generator().manual_seed(0)
    repeated = _noised(pictures[:held].repeat(HELD_OUT_DRAWS, 1, 1), once)
    pictures, kept = pictures[held:], labels[held:]

    def draw(samples: Sequence[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(samples)
        return _noised(pictures[chosen], generator), kept[chosen]

    return Data(len(kept), kept.tolist(), draw, (repeated, labels[:held].repeat(HELD_OUT_DRAWS)))


def markov(length: int, seed: int) -> list[int]:
    """Each symbol depends on the two before it; the chain itself is the same for all seeds."""
    chain = numpy.random.default_rng(0).dirichlet([0.1] * SYMBOLS, (SYMBOLS, SYMBOLS)).cumsum(axis=2)
    text = [0, 0]
    for drawn in numpy.random.default_rng(seed).random(length).tolist():
        text.append(min(SYMBOLS - 1, int(chain[text[-2], text[-1]].searchsorted(drawn))))
    return text[2:]


def text() -> Data:
    trained, held = (torch.tensor(markov(length, seed)) for length, seed in ((TRAINED, 1), (HELD_OUT, 2)))

    def pieces(whole: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        both = whole[begins[:, None] + torch.arange(CONTEXT + 1)]
        return both[:, :-1], both[:, 1:]

    def draw(samples: Sequence[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return pieces(trained, torch.tensor(samples) * 4)

    held_out = pieces(held, torch.arange(0, HELD_OUT - CONTEXT - 1, CONTEXT))
    length = (TRAINED - CONTEXT - 1) // 4
    return Data(length, trained[2 : 2 + 4 * length : 4].tolist(), draw, held_out)


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """In percent."""
    return 100 * (logits.argmax(1) == targets).float().mean().item()
