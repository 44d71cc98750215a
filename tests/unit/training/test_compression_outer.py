"""Compressors of outer gradients: four-bit floats, and the elements that bfloat16 can see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compression_lab import Chunk, ranks, residual
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.compression.outer_gradients import FourBitPayload, visible_places
from timesyncd.training.policy.text import E3M0, Visible
from timesyncd.training.torch.shard import PushEncoder

NAN, INF = float("nan"), float("inf")


def decoded(values: torch.Tensor) -> torch.Tensor:
    payload, total = FourBitPayload(values), torch.zeros(len(values))
    payload.add(total, payload.octets, 1)
    return total


@given(st.integers(0, 2**32), st.integers(1, 9_000))
def test_the_nearest_power_is_sent(seed: int, elements: int) -> None:
    """Of eight magnitudes with a sign, in a block of at most 4,096 elements by its largest."""
    values = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    found, width = decoded(values), -(-elements // -(-elements // 4096))
    width += width % 2
    for begin in range(0, elements, width):
        block, its = values[begin : begin + width], found[begin : begin + width]
        allowed = torch.tensor([0.0, *(2.0**-k for k in range(7))]) * block.abs().max()
        allowed = torch.cat([allowed, -allowed])
        nearest = (block.unsqueeze(1) - allowed).abs().min(1).values
        assert torch.allclose((block - its).abs(), nearest, rtol=1e-4, atol=1e-6)


def test_two_elements_share_an_octet() -> None:
    """And a scale of four octets serves a block; each part is padded to eight octets."""
    assert FourBitPayload(torch.randn(4096)).octets.nbytes == 8 + 2048


@pytest.mark.parametrize("bad", [NAN, INF])
def test_what_is_not_finite_comes_out_so(bad: float) -> None:
    """Zeros beside it too, as their scale is not finite; a block of zeros is zeros."""
    assert not decoded(torch.tensor([1.0, bad, 0.0])).isfinite().any()
    assert torch.equal(decoded(torch.zeros(5)), torch.zeros(5))


def test_four_bits_have_no_error_feedback() -> None:
    """As in the paper: what a step does not send is lost, and all ranks get the same bits."""
    parameter = torch.zeros(3)
    with ranks(2) as group:
        compressors = group.compressors(E3M0(), [parameter])
        first = group.reduced(compressors, [parameter], [1.0, 0.3, 0.0], [1.0, 0.3, 0.001])
        second = group.reduced(compressors, [parameter], [0.0] * 3, [0.0] * 3)
    assert first.tolist() == [1.0, 0.25, 0.0]
    assert second.tolist() == [0.0] * 3


def test_a_parameter_server_has_no_four_bits() -> None:
    """It keeps what a push omits, which the method does not."""
    with pytest.raises(ValueError, match="e3m0 has no error feedback; a parameter server allows fp16, int8 and topk"):
        PushEncoder().use(E3M0())


def test_a_change_is_visible_where_bfloat16_changes() -> None:
    """At 1, a step of bfloat16 is 1/128 upwards; half of it rounds away. What is not a number is visible."""
    anchor = torch.tensor([1.0, 1.0, 0.0, 1.0])
    assert visible_places(anchor, torch.tensor([0.002, 0.01, 1e-9, NAN])).tolist() == [1, 2, 3]


class Difference(Chunk):
    """A bucket of differences to an anchor."""

    def __init__(self, parameter: torch.Tensor, values: Any, anchor: torch.Tensor) -> None:
        super().__init__([parameter], torch.as_tensor(values).clone())
        self.anchor = anchor


def test_what_is_not_visible_waits() -> None:
    """It is sent once enough of it has come together; what was sent and what waits is all there was."""
    parameter, anchor = torch.zeros(8), torch.ones(8)
    small = torch.zeros(8)
    small[0], small[5] = 0.003, 0.5
    with ranks(2) as group:
        compressors = group.compressors(Visible(), [parameter])
        sent = []
        for _ in range(3):
            buckets = [[Difference(parameter, small, anchor)], [Difference(parameter, torch.zeros(8), anchor)]]
            (first,), (second,) = group.step(compressors, buckets)
            assert torch.equal(first, second)
            sent.append(first.clone())
        waiting = residual(compressors[0])
    assert [float(each[0]) for each in sent] == [0.0, pytest.approx(0.003), 0.0]
    assert [float(each[5]) for each in sent] == [0.25] * 3
    assert torch.allclose(2 * sum(sent, torch.zeros(8)) + waiting, 3 * small)
    assert compressors[0].sent_bytes == 3 * (8 + 8)


def test_where_most_is_visible_all_is_sent() -> None:
    """Values and places would be no fewer octets; nothing waits then."""
    parameter, anchor = torch.zeros(4), torch.ones(4)
    values = torch.tensor([0.5, 0.5, 0.5, 0.001])
    with ranks(2) as group:
        compressors = group.compressors(Visible(), [parameter])
        (first,), _ = group.step(compressors, [[Difference(parameter, values, anchor)] for _ in range(2)])
        assert torch.allclose(first, values)
        assert not residual(compressors[0]).any()


def test_visible_needs_differences() -> None:
    """A gradient changes no parameter by itself."""
    parameter = torch.zeros(4)
    with ranks(1) as group:
        (made,) = group.compressors(Visible(), [parameter])
        with pytest.raises(ValueError, match="visible needs differences of parameters"):
            made.hook(Chunk([parameter], torch.ones(4)))
