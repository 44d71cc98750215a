"""Averages of parameters without another process: chunks, differences, and delays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from compression_lab import ranks
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from timesyncd.client.packing import packing_times
from timesyncd.ipc.network_record import PackingPart, PackingTime
from timesyncd.training.torch.averaging import (
    Averaging,
    DenseReducer,
    local_gradient,
    make_chunks,
)


class FakeReducer:
    """A group in the test: averages with another rank, whose buckets are `other` everywhere."""

    def __init__(self, other: float = 0) -> None:
        self.other = other
        self.sent_bytes = 0
        self.sent: list[torch.Tensor] = []

    def hook(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.sent.append(bucket.buffer().clone())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer().add_(self.other).div_(2))
        return future

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def of(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([value, value], dtype=torch.float32) for value in values]


def numbers(tensors: Sequence[torch.Tensor]) -> list[float]:
    return [float(tensor[0]) for tensor in tensors]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=1, max_size=20), st.integers(1, 300))
def test_chunks_hold_every_tensor_once(sizes: list[tuple[int, bool]], chunk_bytes: int) -> None:
    """In their order within a type, none larger than allowed unless a tensor is larger itself, and the last one is marked."""
    tensors = [torch.zeros(size, dtype=torch.float64 if wide else torch.float32) for size, wide in sizes]
    chunks = make_chunks(tensors, chunk_bytes=chunk_bytes)

    assert sorted(id(t) for chunk in chunks for t in chunk.parameters()) == sorted(map(id, tensors))
    for dtype in (torch.float32, torch.float64):
        held = [id(t) for chunk in chunks for t in chunk.parameters() if t.dtype is dtype]
        assert held == [id(t) for t in tensors if t.dtype is dtype]
    assert [chunk.index() for chunk in chunks] == list(range(len(chunks)))
    assert [chunk.is_last() for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(chunk.buffer().nbytes <= chunk_bytes or len(chunk.parameters()) == 1 for chunk in chunks)


def test_a_chunk_is_as_a_bucket_to_a_hook() -> None:
    """What is in its buffer is in its gradients too, each in its parameter's shape; a parameter of many strides as well."""
    tensors = [torch.arange(6.0).view(2, 3).t(), torch.ones(4)]
    (chunk,) = make_chunks(tensors)
    chunk.fill()
    assert [g.shape for g in chunk.gradients()] == [(3, 2), (4,)]
    assert torch.equal(chunk.gradients()[0], tensors[0])
    chunk.set_buffer(chunk.buffer() * 2)
    assert torch.equal(chunk.gradients()[1], torch.full((4,), 2.0))
    chunk.write_back(chunk.buffer())
    assert torch.equal(tensors[0], torch.arange(6.0).view(2, 3).t() * 2)


def test_the_mean_replaces_the_tensors() -> None:
    """2 and 4 with a rank that has 6 are 4 and 5; with a scale of 3 the rank sends three times its values."""
    tensors, reducer = of(2, 4), FakeReducer(6)
    averaging = Averaging(tensors, reducer)
    averaging.average()
    assert numbers(tensors) == [4, 5]
    averaging.average(scale=3)
    assert numbers(tensors) == [9, 10.5]


def test_a_mean_that_arrives_later_keeps_what_was_done_meanwhile() -> None:
    """The mean of 2 and 6 is 4: it arrives when 2 has become 12, which becomes 14."""
    tensors = of(2)
    averaging = Averaging(tensors, FakeReducer(6))
    averaging.begin()
    tensors[0] += 10
    assert averaging.pending and numbers(tensors) == [12]
    averaging.finish()
    assert not averaging.pending and numbers(tensors) == [14]
    averaging.finish()
    assert numbers(tensors) == [14]


def test_one_averaging_ends_before_the_next_begins() -> None:
    """Otherwise the buffer of the first would be overwritten in transit."""
    averaging = Averaging(of(2), FakeReducer())
    averaging.begin()
    with pytest.raises(RuntimeError, match="not finished"):
        averaging.begin()


def test_differences_are_counted_from_the_last_mean() -> None:
    """From 10 to 14 is 4, and the other rank's 2: 13; then 3 more, and 2, are 2.5."""
    tensors, reducer = of(10), FakeReducer(2)
    averaging = Averaging(tensors, reducer, differences=True)
    for moved in (4, 3):
        tensors[0] += moved
        averaging.average()
    assert numbers(reducer.sent) == [4, 3]
    assert numbers(tensors) == [15.5]


def test_differences_may_arrive_later_too() -> None:
    """10 becomes 14: the mean of 4 and 2 is 3, so the common value is 13, and 100 added meanwhile stay."""
    tensors, reducer = of(10), FakeReducer(2)
    averaging = Averaging(tensors, reducer, differences=True)
    tensors[0] += 4
    averaging.begin()
    tensors[0] += 100
    averaging.finish()
    assert numbers(tensors) == [113]
    averaging.average()
    assert numbers(reducer.sent) == [4, 100]


@pytest.mark.parametrize("differences", [False, True])
def test_an_averaging_resumes_with_pending_transfers(differences: bool) -> None:
    """Saved between begin and finish, and loaded by another averaging on restored tensors."""
    ends = []
    for restarted in (False, True):
        tensors = of(10, 20)
        averaging = Averaging(tensors, FakeReducer(2), differences)
        tensors[0] += 4
        averaging.begin()
        tensors[1] += 7
        if restarted:
            state = averaging.state_dict()
            averaging = Averaging(tensors, FakeReducer(2), differences)
            averaging.load_state_dict(state)
            assert averaging.pending
        averaging.finish()
        averaging.average()
        ends.append(numbers(tensors))
    assert ends[0] == ends[1]


def test_a_state_of_another_kind_is_rejected() -> None:
    """A state with anchors does not fit an averaging without differences."""
    with pytest.raises(ValueError, match="another compression"):
        Averaging(of(1), FakeReducer()).load_state_dict(Averaging(of(1), FakeReducer(), differences=True).state_dict())


def test_gradients_can_be_averaged() -> None:
    """A parameter without one takes part with zeros; the parameters stay as they are."""
    parameters = [nn.Parameter(value) for value in of(1, 1)]
    parameters[0].grad = torch.full((2,), 8.0)
    Averaging(parameters, FakeReducer(2), select=local_gradient).average()
    assert [p.grad.tolist() for p in parameters if p.grad is not None] == [[5, 5], [1, 1]]
    assert numbers([p.detach() for p in parameters]) == [1, 1]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_parameters_are_averaged_in_their_own_memory(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the group takes several tensors at once: no flat copy is made. A tensor that is not contiguous goes by the copy."""
    monkeypatch.setattr(DenseReducer, "takes_several", lambda reducer, device: True)
    with ranks(2) as group:
        tensors = [[torch.full((3, 5), 2.0 + 2 * rank), torch.full((7,), 1.0 + 2 * rank)] for rank in range(2)]
        kept = [[tensor.data_ptr() for tensor in of] for of in tensors]
        averagings = [Averaging(of, DenseReducer(each)) for of, each in zip(tensors, group.groups, strict=True)]
        group.all(lambda rank: averagings[rank].average(scale))
        copied = [[tensor.t() for tensor in of[:1]] for of in tensors]
        others = [Averaging(of, DenseReducer(each)) for of, each in zip(copied, group.groups, strict=True)]
        group.all(lambda rank: others[rank].average())

    assert [[tensor.data_ptr() for tensor in of] for of in tensors] == kept
    assert all("flat" not in vars(chunk) for averaging in averagings for chunk in averaging._chunks)
    assert all("flat" in vars(chunk) for averaging in others for chunk in averaging._chunks)
    for of in tensors:
        assert (of[0] == 3 * scale).all() and (of[1] == 2 * scale).all()


def test_what_an_averaging_packs_is_counted_once() -> None:
    """With the CPU time of filling and of writing back, for the audit; the octets are those that were sent."""
    before = packing_times().get(PackingPart.AVERAGING, PackingTime(0, 0))
    Averaging([torch.ones(1_000)], FakeReducer()).average()
    after = packing_times()[PackingPart.AVERAGING]

    assert after.bytes - before.bytes == 4_000
    assert after.cpu_ns > before.cpu_ns
