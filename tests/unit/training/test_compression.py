"""The parts of compressors, without a group: the choice of elements, the layout of payloads, residuals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compression_lab import Chunk
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from timesyncd.training.compression.compressors import (
    SCALE_ELEMENTS,
    QuantizedPayload,
    SparsePayload,
    largest_places,
    norms_from_rows,
    pack,
    unpack,
)
from timesyncd.training.compression.feedback import Residuals
from timesyncd.training.policy.text import PowerSGD, TopK, topk_count

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("elements", "ratio", "count"), [(100, 0.07, 7), (100, 0.071, 8), (5, 1.0, 5), (3, 1e-9, 1)])
def test_the_count_is_the_written_ratio_rounded_up(elements: int, ratio: float, count: int) -> None:
    """0.07 of 100 are 7, although 0.07 * 100 is more than 7 in binary; at least one element is sent."""
    assert topk_count(elements, ratio) == count


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.1, NAN])
def test_a_ratio_is_a_share(ratio: float) -> None:
    """Another value is rejected, in one line that states what is allowed."""
    with pytest.raises(ValueError, match=r"ratio is .*; it must be above 0 and at most 1"):
        TopK(ratio)


def test_a_rank_is_positive() -> None:
    """A product with no columns contains nothing."""
    with pytest.raises(ValueError, match="rank is 0; it must be at least 1"):
        PowerSGD(0)


@given(
    st.integers(0, 2**32), st.integers(1, 20_000), st.floats(1e-4, 1.0), st.sampled_from(["spread", "few", "one row"])
)
def test_the_largest_are_chosen(seed: int, elements: int, ratio: float, kind: str) -> None:
    """For any sample, and with many equal magnitudes: the magnitudes are those of a full sort, and no place occurs twice."""
    values = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    if kind == "few":
        values = values.round()
    if kind == "one row":  # what is sampled is not like the rest
        values[::61] *= 1e6
    count = topk_count(elements, ratio)
    places = largest_places(values, count)

    assert len(set(places.tolist())) == count
    assert torch.equal(values[places].abs().sort().values, values.abs().sort().values[-count:])


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 7_777])
def test_what_is_not_finite_is_chosen_first(wrong: float, place: int) -> None:
    """Inside and outside of the sample: every rank must receive it."""
    values = torch.randn(10_000)
    values[place] = wrong

    assert place in largest_places(values, 3)


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=40), st.integers(0, 40))
def test_packed_parts_are_unpacked_unchanged(numbers: list[int], more: int) -> None:
    """Parts of any length and type, each aligned for its views."""
    parts = [tensor(numbers, dtype=torch.int8), torch.rand(2, dtype=torch.float64), torch.rand(more).bfloat16()]
    octets = pack(*parts)
    found = unpack(octets, *((len(part), part.dtype) for part in parts))

    assert all(map(torch.equal, found, parts))
    assert len(octets) % 8 == 0


def test_a_sparse_payload_by_hand() -> None:
    """The two largest of four, 3 and -4, with squared norms of 25 and 30, are added at their places, or subtracted."""
    sent = SparsePayload(tensor([1.0, 3.0, -4.0, 2.0]), 2, torch.float32)
    total = torch.ones(4)
    sent.add(total, sent.octets, 1)

    assert total.tolist() == [1, 4, -3, 1]
    assert norms_from_rows([sent.octets]).tolist() == [[25, 30]]
    sent.add(total, sent.octets, -1)
    assert total.tolist() == [1, 1, 1, 1]
    assert len(sent.octets) == 16 + 8 + 8


def test_a_quantized_payload_by_hand() -> None:
    """The largest magnitude is 127 of 127; what is not a multiple is rounded; a block of zeros stays zero."""
    whole = tensor([254.0, -254.0, 3.1, 0.0])
    sent, total = QuantizedPayload(whole), torch.zeros(4)
    sent.add(total, sent.octets, 1)

    assert total.tolist() == [254, -254, 4, 0]
    zeros, total = QuantizedPayload(torch.zeros(3)), torch.ones(3)
    zeros.add(total, zeros.octets, 1)
    assert total.tolist() == [1, 1, 1]
    assert zeros.finite([zeros.octets])


@given(st.integers(0, 2**32), st.integers(1, 20_000))
def test_quantized_values_differ_by_half_a_scale_at_most(seed: int, elements: int) -> None:
    """Of the scale of the element's block. One octet per element, and 4 for each block of at most 4,096."""
    whole = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    whole[0] = 1e6
    sent, total = QuantizedPayload(whole), torch.zeros(elements)
    sent.add(total, sent.octets, 1)
    blocks = -(-elements // SCALE_ELEMENTS)
    width = -(-elements // blocks)

    for part, found in zip(torch.split(whole, width), torch.split(total, width), strict=True):
        assert (part - found).abs().max() <= part.abs().max() / 127 * 0.501
    assert len(sent.octets) <= elements + 5 * blocks + 16


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
def test_a_quantized_block_that_is_not_finite(wrong: float) -> None:
    """The block becomes not finite, and every rank detects it by the scale."""
    whole = torch.ones(3 * SCALE_ELEMENTS)
    whole[SCALE_ELEMENTS + 5] = wrong
    sent, total = QuantizedPayload(whole), torch.zeros(3 * SCALE_ELEMENTS)
    sent.add(total, sent.octets, 1)

    assert not sent.finite([sent.octets])
    assert not total[SCALE_ELEMENTS : 2 * SCALE_ELEMENTS].isfinite().any()
    assert total[2 * SCALE_ELEMENTS :].isfinite().all()


def two() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 2), torch.zeros(3)


def test_residuals_follow_their_parameters() -> None:
    """In other buckets, in another order, and two buckets in one: each parameter keeps its own residual."""
    first, second = two()
    residuals = Residuals([first, second])
    residuals.flat(Chunk([first], torch.zeros(4))).copy_(tensor([1.0, 2, 3, 4]))
    residuals.flat(Chunk([second], torch.zeros(3))).copy_(tensor([5.0, 6, 7]))

    together = residuals.flat(Chunk([second, first], torch.zeros(7)))
    assert together.tolist() == [5, 6, 7, 1, 2, 3, 4]
    together += 10
    assert residuals.flat(Chunk([first], torch.zeros(4))).tolist() == [11, 12, 13, 14]
    residuals.flat(Chunk([first], torch.zeros(4))).zero_()
    assert residuals.flat(Chunk([first, second], torch.zeros(7))).tolist() == [0, 0, 0, 0, 15, 16, 17]


@given(st.lists(st.permutations(range(5)), min_size=1, max_size=6), st.data())
def test_residuals_survive_any_order_of_buckets(orders: list[list[int]], data: st.DataObject) -> None:
    """With any buckets in a step, each parameter's residual is what was added to it."""
    parameters = [torch.zeros(size) for size in (1, 2, 3, 4, 5)]
    residuals, expected = Residuals(parameters), [0.0] * 5
    for order in orders:
        cut = data.draw(st.integers(0, 5))
        for places in filter(None, (order[:cut], order[cut:])):
            bucket = Chunk([parameters[place] for place in places], torch.zeros(sum(place + 1 for place in places)))
            flat = residuals.flat(bucket)
            assert flat.tolist() == [expected[place] for place in places for _ in range(place + 1)]
            flat += torch.cat([torch.full((place + 1,), 2.0**place) for place in places])
            for place in places:
                expected[place] += 2.0**place


def test_residuals_in_a_steady_state_are_not_copied() -> None:
    """The same buckets have the same memory in each step."""
    first, second = two()
    residuals = Residuals([first, second])
    buckets = [Chunk([first], torch.zeros(4)), Chunk([second], torch.zeros(3))]
    flats = [residuals.flat(bucket) for bucket in buckets]

    assert [residuals.flat(bucket) is flat for bucket, flat in zip(buckets, flats, strict=True)] == [True, True]


def test_residuals_of_half_precision_are_wider() -> None:
    """Otherwise what half precision cannot represent would be lost."""
    (first, _) = two()
    assert Residuals([first]).flat(Chunk([first], torch.zeros(4).bfloat16())).dtype == torch.float32
    assert Residuals([first]).flat(Chunk([first], torch.zeros(4).double())).dtype == torch.float64


def test_residuals_are_saved_and_loaded() -> None:
    """By place, and independent of later changes."""
    first, second = two()
    residuals = Residuals([first, second])
    bucket = Chunk([second, first], torch.zeros(7))
    residuals.flat(bucket).copy_(torch.arange(7.0))
    saved = residuals.state_dict()
    residuals.flat(bucket).zero_()
    other = Residuals([first, second])
    other.load_state_dict(saved)
    other.flat(bucket).add_(1)

    assert {place: values.tolist() for place, values in saved.items()} == {"0": [3, 4, 5, 6], "1": [0, 1, 2]}
    assert other.flat(bucket).tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("saved", [{"0": torch.zeros(5)}, {"7": torch.zeros(4)}])
def test_residuals_of_another_network_are_rejected(saved: dict[str, Any]) -> None:
    """The present residuals stay."""
    (first, _) = two()
    residuals = Residuals([first])
    residuals.flat(Chunk([first], torch.zeros(4))).fill_(1)
    with pytest.raises(ValueError, match=r"of parameter [07] was saved for another network; start without this state"):
        residuals.load_state_dict(saved)
    assert residuals.flat(Chunk([first], torch.zeros(4))).tolist() == [1, 1, 1, 1]


def test_a_bucket_of_unknown_parameters_is_rejected() -> None:
    """An equal tensor is not the same parameter, nor is a part of it."""
    first, second = two()
    with pytest.raises(
        ValueError, match="a parameter that its compressor does not know; pass all parameters to compressor"
    ):
        Residuals([first]).flat(Chunk([second], torch.zeros(3)))
    with pytest.raises(ValueError, match="not as large as its parameters; put whole parameters into buckets"):
        Residuals([first]).flat(Chunk([first], torch.zeros(2)))
