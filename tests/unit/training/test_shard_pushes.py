"""What a rank pushes to a parameter server: nothing is lost on the way, whatever is compressed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.training.policy.text import Compression, Fp16, Int8, TopK
from timesyncd.training.torch.shard import FlatBuffers, PushEncoder, add_parts, join_shards, nbytes

COMPRESSIONS: list[Compression | None] = [None, Fp16(), Int8(), TopK(0.3), TopK()]

#: Few of them: a shard may have none of a type.
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 9))


def arrive(pushes: PushEncoder, differences: FlatBuffers, shards: int) -> FlatBuffers:
    """What the server adds."""
    packed = pushes.packed(differences, shards)
    zeros = [
        [flat.new_zeros(len(piece)) for flat, piece in zip(differences, cuts, strict=True)]
        for cuts in _cuts(differences, shards)
    ]
    assert pushes.sent_bytes == sum(nbytes(part) for piece in packed for part in piece)
    return join_shards([add_parts(flats, parts) for flats, parts in zip(zeros, packed, strict=True)])


def _cuts(differences: FlatBuffers, shards: int) -> list[list[torch.Tensor]]:
    return [[flat.tensor_split(shards)[shard] for flat in differences] for shard in range(shards)]


def drawn(sizes: tuple[int, int], seed: int) -> FlatBuffers:
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.float64, torch.float32
    return [torch.randn(size, generator=generator, dtype=kind) for size, kind in zip(sizes, kinds, strict=True)]


@given(SIZES, st.integers(1, 4), st.lists(st.sampled_from(COMPRESSIONS), min_size=1, max_size=12))
def test_what_arrives_and_what_is_kept_is_what_was_pushed(
    sizes: tuple[int, int], shards: int, compressions: list[Compression | None]
) -> None:
    """Each push in another way than the one before; behind a whole one nothing is kept."""
    pushes = PushEncoder()
    pushed, arrived = [torch.zeros(size, dtype=torch.float64) for size in sizes], []
    arrived = [flat.clone() for flat in pushed]
    for seed, compression in enumerate(compressions):
        pushes.use(compression)
        differences = drawn(sizes, seed)
        pushed = add_parts(pushed, differences)
        arrived = add_parts(arrived, arrive(pushes, [flat.clone() for flat in differences], shards))

    kept = pushes.kept or [torch.zeros(size) for size in sizes]
    for one, other, rest in zip(pushed, arrived, kept, strict=True):
        torch.testing.assert_close(other + rest, one, rtol=0, atol=1e-5)
    pushes.use(None)
    pushes.packed([torch.zeros(size) for size in sizes], shards)
    assert pushes.kept is None


def test_the_largest_goes_first_and_the_rest_later() -> None:
    """One of four elements a push: 8, then 1 + 4, then 2 + 3."""
    pushes = PushEncoder()
    pushes.use(TopK(0.25))
    said = [
        arrive(pushes, [torch.tensor(step)], 1)[0].tolist()
        for step in ([8.0, 4.0, 3.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0])
    ]
    assert said == [[8, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0]]


@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_no_number_arrives_and_spoils_nothing_that_is_kept(compression: Compression, odd: float) -> None:
    """Whoever looks at the parameters sees it; the next push has what was kept before."""
    pushes = PushEncoder()
    pushes.use(compression)
    arrive(pushes, [torch.tensor([1.0, 0.3, 0.2, 1e-9])], 1)
    before = [flat.clone() for flat in pushes.kept or []]
    (flat,) = arrive(pushes, [torch.tensor([0.0, odd, 0.0, 0.0])], 1)

    assert not flat[1].isfinite()
    assert pushes.kept is not None
    assert torch.equal(pushes.kept[0], before[0])


def test_half_precision_sends_no_more_than_it_can_say() -> None:
    """The rest of a large one comes later, and is no infinity in the server for ever."""
    pushes = PushEncoder()
    pushes.use(Fp16())
    said = [arrive(pushes, [torch.tensor([push])], 1)[0].item() for push in (100_000.0, 0.0)]
    assert said == [65_504, 100_000 - 65_504]


def test_the_gain_test_of_a_rank_resumes() -> None:
    """Differences of which a few elements are nearly all: it sends fewer and fewer; saved and loaded it goes on as it was."""
    flat = torch.full((1_000,), 1e-6)
    flat[:2] = 1.0
    before, after = PushEncoder(), PushEncoder()
    sizes = []
    for pushes in (before, after):
        pushes.use(TopK())
    for _ in range(400):
        before.packed([flat.clone()], 1)
        sizes.append(before.sent_bytes)
    after.load_state_dict(before.state_dict())
    after.packed([flat.clone()], 1)
    before.packed([flat.clone()], 1)

    assert sizes[-1] < sizes[0] / 5
    assert after.sent_bytes == before.sent_bytes
    assert after.state_dict()["gain"] == before.state_dict()["gain"]
