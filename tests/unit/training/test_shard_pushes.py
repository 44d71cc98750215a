"""PushEncoder: nothing is lost on the way to a parameter server, with any compression."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.text import Compression, Fp16, Int8, TopK
from timesyncd.training.torch.shard import FlatBuffers, PushEncoder, add_parts, join_shards, nbytes

COMPRESSIONS: list[Compression | None] = [None, Fp16(), Int8(), TopK(0.3), TopK()]

#: Small, so that a shard may have no elements of a type.
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def arrive(encoder: PushEncoder, differences: FlatBuffers, shards: int) -> FlatBuffers:
    """What the server adds."""
    parts = encoder.encode(differences, shards)
    zeros = [
        [flat.new_zeros(len(piece)) for flat, piece in zip(differences, cuts, strict=True)]
        for cuts in _cuts(differences, shards)
    ]
    assert encoder.sent_bytes == sum(nbytes(part) for piece in parts for part in piece)
    return join_shards([add_parts(flats, parts) for flats, parts in zip(zeros, parts, strict=True)])


def _cuts(differences: FlatBuffers, shards: int) -> list[list[torch.Tensor]]:
    return [[flat.tensor_split(shards)[shard] for flat in differences] for shard in range(shards)]


def drawn(sizes: tuple[int, int], seed: int) -> FlatBuffers:
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.float64, torch.float32
    return [torch.randn(size, generator=generator, dtype=kind) for size, kind in zip(sizes, kinds, strict=True)]


@given(SIZES, st.integers(1, 4), st.lists(st.sampled_from(COMPRESSIONS), min_size=1, max_size=12))
def test_what_arrives_and_the_residuals_are_what_was_pushed(
    sizes: tuple[int, int], shards: int, compressions: list[Compression | None]
) -> None:
    """With another compression for each push; after an uncompressed push there are no residuals."""
    encoder = PushEncoder()
    pushed, arrived = [torch.zeros(size, dtype=torch.float64) for size in sizes], []
    arrived = [flat.clone() for flat in pushed]
    for seed, compression in enumerate(compressions):
        encoder.use(compression)
        differences = drawn(sizes, seed)
        pushed = add_parts(pushed, differences)
        arrived = add_parts(arrived, arrive(encoder, [flat.clone() for flat in differences], shards))

    residuals = encoder.residuals or [torch.zeros(size) for size in sizes]
    for one, other, rest in zip(pushed, arrived, residuals, strict=True):
        torch.testing.assert_close(other + rest, one, rtol=0, atol=1e-5)
    encoder.use(None)
    encoder.encode([torch.zeros(size) for size in sizes], shards)
    assert encoder.residuals is None


def test_the_largest_element_is_sent_first_and_the_rest_later() -> None:
    """One of four elements per push: 8, then 1 + 4, then 2 + 3."""
    encoder = PushEncoder()
    encoder.use(TopK(0.25))
    received = [
        arrive(encoder, [torch.tensor(step)], 1)[0].tolist()
        for step in ([8.0, 4.0, 3.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0])
    ]
    assert received == [[8, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0]]


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_not_finite_arrives_and_leaves_the_residuals_unchanged(compression: Compression, odd: float) -> None:
    """It shows in the parameters; the next push contains the former residuals."""
    encoder = PushEncoder()
    encoder.use(compression)
    arrive(encoder, [torch.tensor([1.0, 0.3, 0.2, 1e-9])], 1)
    before = [flat.clone() for flat in encoder.residuals or []]
    (flat,) = arrive(encoder, [torch.tensor([0.0, odd, 0.0, 0.0])], 1)

    assert not flat[1].isfinite()
    assert encoder.residuals is not None
    assert torch.equal(encoder.residuals[0], before[0])


def test_half_precision_does_not_overflow() -> None:
    """The rest of a large value is sent later, instead of an infinity that would stay in the server."""
    encoder = PushEncoder()
    encoder.use(Fp16())
    received = [arrive(encoder, [torch.tensor([push])], 1)[0].item() for push in (100_000.0, 0.0)]
    assert received == [65_504, 100_000 - 65_504]


def test_the_gain_test_of_a_rank_resumes() -> None:
    """With differences of a few large elements it sends fewer and fewer; saved and loaded it continues unchanged."""
    flat = torch.full((1_000,), 1e-6)
    flat[:2] = 1.0
    before, after = PushEncoder(), PushEncoder()
    sizes = []
    for encoder in (before, after):
        encoder.use(TopK())
    for _ in range(400):
        before.encode([flat.clone()], 1)
        sizes.append(before.sent_bytes)
    after.load_state_dict(before.state_dict())
    after.encode([flat.clone()], 1)
    before.encode([flat.clone()], 1)

    assert sizes[-1] < sizes[0] / 5
    assert after.sent_bytes == before.sent_bytes
    assert after.state_dict()["gain"] == before.state_dict()["gain"]
