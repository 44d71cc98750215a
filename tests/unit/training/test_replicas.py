"""The hash of replicas, and the state of optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from timesyncd.training.torch.replicas import replica_hash, state_tensors


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40), st.data())
def test_a_hash_covers_every_bit(values: list[float], data: st.DataObject) -> None:
    """Whichever bit of whichever number differs; the same bits have the same hash, wherever they lie."""
    tensor, other = torch.tensor(values), torch.tensor(values)
    assert 0 <= replica_hash([tensor]) == replica_hash([other.clone()]) < 2**61
    place, bit = data.draw(st.integers(0, len(values) - 1)), data.draw(st.integers(0, 31))
    other.view(torch.int32)[place] ^= torch.tensor(1 << bit, dtype=torch.int64).to(torch.int32)
    assert replica_hash([tensor]) != replica_hash([other])


def test_a_hash_covers_the_order() -> None:
    """Of numbers and of tensors; halves of odd length and tensors of other strides have one too."""
    assert replica_hash([torch.ones(2), torch.zeros(2)]) != replica_hash([torch.zeros(2), torch.ones(2)])
    assert replica_hash([torch.tensor([1.0, 2.0])]) != replica_hash([torch.tensor([2.0, 1.0])])
    assert replica_hash([torch.ones(3, dtype=torch.half)]) != replica_hash([torch.zeros(3, dtype=torch.half)])
    assert replica_hash([torch.zeros(0, 3), torch.ones(1)]) == replica_hash([torch.zeros(0, 3), torch.ones(1)])
    square = torch.arange(4.0).view(2, 2)
    assert replica_hash([square.t()]) == replica_hash([square.t().contiguous()]) != replica_hash([square])


@pytest.mark.parametrize(
    ("optimizer", "shapes"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), []),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), [(1, 3), (1,), ()]),
        (lambda p: torch.optim.AdamW(p, lr=0.1), [(1, 3)] * 2 + [(1,)] * 2 + [()] * 2),
    ],
)
def test_the_state_of_an_optimizer(optimizer: Any, shapes: list[tuple[int, ...]]) -> None:
    """Includes states of one number, as of a bias of one output; excludes the step count, which is equal on all ranks."""
    module = nn.Linear(3, 1)
    module.scale = nn.Parameter(torch.tensor(2.0))
    its = optimizer(module.parameters())
    (module(torch.ones(2, 3)) * module.scale).sum().backward()
    its.step()
    assert sorted(tuple(t.shape) for t in state_tensors(its)) == sorted(shapes)
