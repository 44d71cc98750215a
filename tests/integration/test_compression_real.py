"""Compressors over real gloo groups, whose ranks are threads of this process: by hand, to the bit, and with errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compression_lab import Chunk, Ranks, ranks, residual
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from timesyncd.errors import SyncError
from timesyncd.training.policy.encoding import WINDOW, Gain
from timesyncd.training.policy.text import Compression, Fp16, Int8, PowerSGD, TopK, topk_count

pytestmark = pytest.mark.integration

KEEPING: tuple[Compression, ...] = (PowerSGD(), TopK(0.1), TopK(), Int8())
NAMES = ["powersgd(rank=1)", "topk(ratio=0.1)", "topk", "int8"]


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with ranks(2) as group:
        yield group


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with ranks(3) as group:
        yield group


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with ranks(4) as group:
        yield group


def random_values(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_top_k_by_hand(two: Ranks) -> None:
    """One of four: -4 and 8 are in one place; then, without new gradients, the largest of the residuals; then of both."""
    parameters = [torch.zeros(4)]
    of = two.compressors(TopK(0.25), parameters)

    assert two.reduced(of, parameters, [1.0, 3, -4, 2], [2.0, 0, 8, 1]).tolist() == [0, 0, 2, 0]
    assert [residual(compressor).tolist() for compressor in of] == [[1, 3, 0, 2], [2, 0, 0, 1]]
    assert two.reduced(of, parameters, [0.0] * 4, [0.0] * 4).tolist() == [1, 1.5, 0, 0]
    assert two.reduced(of, parameters, [0.5, 0, 0, 0], [0.0, 9, 0, -11]).tolist() == [0, 0, 0, -4]
    assert [residual(compressor).tolist() for compressor in of] == [[1.5, 0, 0, 0], [0, 9, 0, 0]]


def test_int8_by_hand(two: Ranks) -> None:
    """Scales of 1 and 2: 3.25 is sent as 3, and 9.5 as 10. The rounding error is kept."""
    parameters = [torch.zeros(2)]
    of = two.compressors(Int8(), parameters)

    assert two.reduced(of, parameters, [127, 3.25], [-254, 9.5]).tolist() == [-63.5, 6.5]
    assert [residual(compressor).tolist() for compressor in of] == [[0, 0.25], [0, -0.5]]


def test_fp16_by_hand(two: Ranks) -> None:
    """Between 1,024 and 2,048 half precision has integers only; the rounding error is lost."""
    parameters = [torch.zeros(1)]
    of = two.compressors(Fp16(), parameters)

    assert two.reduced(of, parameters, [2049.0], [1.0]).tolist() == [1024]
    assert of[0].state_dict() == {"name": "fp16"}


def test_power_sgd_by_hand(two: Ranks) -> None:
    """A matrix of rank 1 is a product of two columns; a vector and a number are sent uncompressed; the first two steps send everything."""
    parameters = [torch.zeros(8, 8), torch.zeros(3), torch.zeros(())]
    of = two.compressors(PowerSGD(1), parameters)
    matrix = torch.outer(torch.arange(1.0, 9), torch.arange(8.0, 0, -1))
    rest = [1.0, 2, 4, 8]
    for _ in range(4):
        average = two.reduced(of, parameters, [*matrix.flatten(), *rest], [*(3 * matrix).flatten(), *[0.0] * 4])
        torch.testing.assert_close(average[:64].view(8, 8), 2 * matrix)
        assert average[64:].tolist() == [0.5, 1, 2, 4]
    assert of[0].sent_bytes == 2 * 68 * 4 + 2 * (8 + 8 + 4) * 4


def test_a_layer_without_gradients_stays_so(two: Ranks) -> None:
    """Columns of zeros have no direction; the average is still zeros, and not NaN."""
    parameters = [torch.zeros(8, 8)]
    of = two.compressors(PowerSGD(1), parameters)
    for _ in range(4):
        assert not two.reduced(of, parameters, [0.0] * 64, [0.0] * 64).any()


def test_the_octets_are_counted(two: Ranks) -> None:
    """Of 1,000 elements: 16 octets of norms and 8 each for 100 of them; or 4 for a scale, 4 to fill up, and 1 each."""
    parameters = [torch.zeros(1_000)]
    sent = {}
    for written in (Fp16(), TopK(0.1), Int8()):
        of = two.compressors(written, parameters)
        two.reduced(of, parameters, *random_values(1, 2, 1_000))
        assert of[0].raw_bytes == 4_000
        sent[of[0].name] = of[0].sent_bytes
    assert sent == {"fp16": 2_000, "topk(ratio=0.1)": 16 + 400 + 400, "int8": 8 + 1_000}


def test_top_k_of_three_ranks_is_what_one_process_computes(three: Ranks) -> None:
    """To the bit, over steps with two buckets each: sorted, added up and divided in the plainest way."""
    sizes = (300, 77)
    parameters = [torch.zeros(size) for size in sizes]
    of = three.compressors(TopK(0.05), parameters)
    kept = [[torch.zeros(size) for size in sizes] for _ in range(3)]
    for step in range(10):
        gradients = [
            [random_values(1_000 * step + 10 * rank + i, size) for i, size in enumerate(sizes)] for rank in range(3)
        ]
        buckets = [
            [Chunk([parameters[i]], gradients[rank][i].clone(), i, i == 1) for i in range(2)] for rank in range(3)
        ]
        got = three.step(of, buckets)
        for i, size in enumerate(sizes):
            total = torch.zeros(size)
            for rank in range(3):
                kept[rank][i] += gradients[rank][i]
                for place in kept[rank][i].abs().argsort(descending=True)[: topk_count(size, 0.05)].tolist():
                    total[place] += kept[rank][i][place]
                    kept[rank][i][place] = 0
            assert all(torch.equal(got[rank][i], total / 3) for rank in range(3))


def test_int8_of_three_ranks_is_what_one_process_computes(three: Ranks) -> None:
    """To the bit: one block, its scale, rounded multiples."""
    parameters = [torch.zeros(500)]
    of = three.compressors(Int8(), parameters)
    kept = torch.zeros(3, 500)
    for step in range(5):
        gradients = random_values(step, 3, 500)
        got = three.reduced(of, parameters, *gradients)
        kept += gradients
        scales = kept.abs().amax(1, keepdim=True) / 127
        sent = (kept / scales).round() * scales
        kept -= sent
        assert torch.equal(got, (sent[0] + sent[1] + sent[2]) / 3)


SIZES = (1, 5, 12)
SIXTEENTHS = st.lists(st.integers(-64, 64), min_size=sum(SIZES), max_size=sum(SIZES))


@settings(max_examples=40)
@given(st.data(), st.sampled_from([TopK(0.05), TopK(0.3), TopK(1.0), TopK()]), st.booleans())
def test_nothing_is_lost(two: Ranks, four: Ranks, data: st.DataObject, written: TopK, many: bool) -> None:
    """
    Over any steps, compressed or not, of any buckets: what was applied, times the ranks, and what is kept by all are the gradients, exactly.

    Sixteenths, of which there are few, are exact in all that is done with them here.
    """
    group = four if many else two
    parameters = [torch.zeros(size) for size in SIZES]
    of = group.compressors(written, parameters)
    missing = torch.zeros(sum(SIZES))
    for _ in range(data.draw(st.integers(1, 6))):
        gradients = [tensor(data.draw(SIXTEENTHS)) / 16 for _ in range(group.size)]
        order = data.draw(st.permutations(range(len(SIZES))))
        cut = data.draw(st.integers(1, len(SIZES)))
        buckets = [list(put(parameters, gradient, order, cut)) for gradient in gradients]
        got = group.step(of, buckets, dense=data.draw(st.booleans()))
        missing += sum(gradients)
        for i, bucket in enumerate(buckets[0]):
            assert all(torch.equal(got[0][i], others[i]) for others in got)
            for place, part in zip(places_of(bucket, parameters), bucket.gradients(), strict=True):
                missing.split(SIZES)[place].sub_(part * group.size)  # type: ignore[no-untyped-call]

    assert torch.equal(missing, torch.stack([residual(compressor) for compressor in of]).sum(0))


def put(parameters: list[torch.Tensor], values: torch.Tensor, order: list[int], cut: int) -> Iterator[Chunk]:
    """The parameters in this order, in a bucket or two."""
    parts = torch.split(values, [len(parameter) for parameter in parameters])
    buckets = [places for places in (order[:cut], order[cut:]) if places]
    for i, places in enumerate(buckets):
        yield Chunk([parameters[p] for p in places], torch.cat([parts[p] for p in places]), i, i + 1 == len(buckets))


def places_of(bucket: Chunk, parameters: list[torch.Tensor]) -> list[int]:
    return [next(i for i, known in enumerate(parameters) if known is one) for one in bucket.parameters()]


@pytest.mark.parametrize("written", KEEPING, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_nothing_is_lost_of_three_ranks(three: Ranks, written: Compression, dtype: torch.dtype) -> None:
    """To the rounding of what is applied; the residuals have what the gradients' own type does not represent."""
    parameters = [torch.zeros(20, 30, dtype=dtype), torch.zeros(30, dtype=dtype)]
    of = three.compressors(written, parameters)
    missing = torch.zeros(630, dtype=torch.float64)
    for step in range(8):
        gradients = random_values(step, 3, 630).to(dtype)
        average = three.reduced(of, parameters, *gradients)
        assert average.dtype == dtype
        missing += gradients.double().sum(0) - 3 * average.double()
    off = missing - sum(residual(compressor).double() for compressor in of)

    assert off.abs().max() < {torch.float32: 1e-5, torch.bfloat16: 0.3, torch.float64: 1e-7}[dtype]
    assert sum(residual(compressor).abs().sum() for compressor in of) > 1e-3


@pytest.mark.parametrize("written", KEEPING, ids=NAMES)
def test_an_uncompressed_step_sends_the_residuals(two: Ranks, written: Compression) -> None:
    """Then the mean of all gradients so far has arrived, and there are no residuals."""
    parameters = [torch.zeros(20, 30)]
    of = two.compressors(written, parameters)
    missing = torch.zeros(600)
    for step in range(4):
        gradients = random_values(step, 2, 600)
        missing += gradients.mean(0) - two.reduced(of, parameters, *gradients)
    assert missing.abs().max() > 1e-3
    gradients = random_values(9, 2, 600)
    got = two.step(of, [[Chunk(parameters, gradient.clone())] for gradient in gradients], dense=True)

    torch.testing.assert_close(got[0][0], missing + gradients.mean(0))
    assert torch.equal(got[0][0], got[1][0])
    assert all(not residual(compressor).any() for compressor in of)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("written", KEEPING, ids=NAMES)
def test_what_is_not_finite_does_not_enter_the_residuals(
    two: Ranks, written: Compression, dense: bool, wrong: float
) -> None:
    """One rank's value makes the bucket not finite on both, but not the residuals: the next step is as without it."""
    parameters = [torch.zeros(20, 30)]
    of, without = two.compressors(written, parameters), two.compressors(written, parameters)
    for step in range(3):
        for compressors in (of, without):
            two.reduced(compressors, parameters, *random_values(step, 2, 600))
    kept = [residual(compressor) for compressor in of]
    gradients = random_values(7, 2, 600)
    gradients[1, 77] = wrong
    got = two.step(of, [[Chunk(parameters, gradient.clone())] for gradient in gradients], dense=dense)

    assert not got[0][0].isfinite().all()
    assert not got[1][0].isfinite().all()
    assert all(torch.equal(residual(compressor), before) for compressor, before in zip(of, kept, strict=True))
    again = [two.reduced(compressors, parameters, *random_values(8, 2, 600)) for compressors in (of, without)]
    assert again[0].isfinite().all()
    if not isinstance(written, PowerSGD):  # whose factors start again
        assert torch.equal(*again)
    if written == TopK():
        assert 0 < of[0].gain.value <= 1


def test_a_missing_payload_is_not_used() -> None:
    """A rank is silent: the collective's own error is raised, whatever the uninitialized payload contains, and no residual is lost."""
    with ranks(2, timeout_s=5) as group:
        parameters = [torch.zeros(50)]
        of = group.compressors(Int8(), parameters)
        group.reduced(of, parameters, random_values(0, 50), random_values(1, 50))
        kept = residual(of[0])
        futures = [hook(Chunk(parameters, random_values(2, 50), 1)) for hook in (of[0].hook, of[0].dense)]
        for future in futures:
            with pytest.raises(RuntimeError, match="Timed out|pair closure"):
                future.wait()

        assert torch.equal(of[0]._residuals.flat(Chunk(parameters, torch.zeros(50))), kept)


def test_the_gain_test_is_the_same_on_different_ranks(two: Ranks) -> None:
    """One rank's gradients have a few large elements, the other's are noise, first small and then large: the ratios rise and fall in the same steps."""
    sizes = (400, 100)
    parameters = [torch.zeros(size) for size in sizes]
    of = two.compressors(TopK(), parameters)
    ratios = []
    for step in range(8 * WINDOW):
        peak = torch.zeros(500)
        peak[step % 3], peak[450] = 1_000, -500
        noise = random_values(step, 500) * (1e-3 if step < 4 * WINDOW else 1_000)
        both = [torch.split(values, list(sizes)) for values in (peak, noise)]
        two.step(of, [[Chunk([parameters[i]], parts[i].clone(), i, i == 1) for i in range(2)] for parts in both])
        assert of[0].gain == of[1].gain
        ratios.append(of[0].ratio)

    assert ratios[WINDOW - 1 :: WINDOW][:4] == [0.25, 0.16, 0.1, 0.06]
    assert ratios[-1] is None or ratios[-1] > 0.06
    assert of[0].sent_bytes == of[1].sent_bytes


def test_a_step_s_buckets_count_together(two: Ranks) -> None:
    """Of both ranks: one element in four is sent of each, 16 + 4 + 4 + 1 of 16 + 8 + 8 + 4."""
    parameters = [torch.zeros(4), torch.zeros(4)]
    of = two.compressors(TopK(), parameters)
    values = [[[4.0, 0, 0, 0], [2.0, 2, 0, 0]], [[2.0, 0, 2, 0], [1.0, 1, 1, 1]]]
    two.step(of, [[Chunk([parameters[i]], tensor(rank[i]), i, i == 1) for i in range(2)] for rank in values])
    two.all(lambda rank: of[rank].state_dict())

    assert of[0].gain.value == pytest.approx(25 / 36)


def test_where_the_mildest_ratio_fails_everything_is_sent(two: Ranks) -> None:
    """Uncompressed, with the residuals; after the cooldown the mildest ratio is tried again."""
    parameters = [torch.zeros(400)]
    of = two.compressors(TopK(), parameters)
    for compressor in of:
        compressor.gain = Gain(2, rung=0, cooldown=1)
    ratios = []
    for step in range(2 * WINDOW + 1):
        gradients = random_values(step, 2, 400)
        average = two.reduced(of, parameters, *gradients)
        ratios.append(of[0].ratio)
        assert torch.equal(average, (gradients[0] + gradients[1]) / 2) == (ratios[-1] is None)

    assert ratios == [None] * 2 * WINDOW + [0.25]


@pytest.mark.parametrize("other", [{"ratio": 0.2}, {"gain": Gain(2, rung=3)}])
def test_ranks_that_would_send_other_sizes_raise(two: Ranks, other: dict[str, Any]) -> None:
    """Each of them gets the error, before anything is sent: another policy, or a checkpoint that only one rank loaded."""
    parameters = [torch.zeros(100)]
    written = [TopK(0.1), TopK(0.2)] if "ratio" in other else [TopK(), TopK()]
    of = [two.compressors(one, parameters)[rank] for rank, one in enumerate(written)]
    if "gain" in other:
        of[1].gain = other["gain"]

    def message(rank: int) -> str:
        with pytest.raises(SyncError) as raised:
            of[rank].hook(Chunk(parameters, torch.ones(100)))
        return str(raised.value)

    messages = two.all(message)
    assert "ranks [1] would send other sizes than rank 0 of their group" in messages[0]
    assert "ranks [0] would send other sizes than rank 1 of their group; give every rank the same policy" in messages[1]


def test_a_step_waits_for_the_one_before(two: Ranks) -> None:
    """It begins before the former step's average is read: the residuals of the former step are not lost."""
    parameters = [torch.zeros(4)]
    of = two.compressors(TopK(0.25), parameters)

    def both(rank: int) -> list[list[float]]:
        chunks = [Chunk(parameters, tensor([1.0, 2, 4, 8])), Chunk(parameters, torch.zeros(4))]
        futures = [of[rank].hook(chunk) for chunk in chunks]
        return [future.wait().tolist() for future in futures]

    assert two.all(both) == [[[0, 0, 0, 8], [0, 0, 4, 0]]] * 2


@pytest.mark.parametrize("written", [Fp16(), *KEEPING], ids=["fp16", *NAMES])
def test_a_state_of_another_policy_is_rejected(two: Ranks, written: Compression) -> None:
    """The error names both compressions and what to do."""
    compressor = two.compressors(written, [torch.zeros(4)])[0]
    with pytest.raises(
        ValueError,
        match="the state was saved with compression int4, and this one is .*; start without it, or with that policy",
    ):
        compressor.load_state_dict({"name": "int4", "residuals": {}})


def test_a_gain_of_another_number_of_ranks_starts_over(two: Ranks, three: Ranks) -> None:
    """Their ladder differs; each rank keeps its residuals."""
    parameters = [torch.zeros(4)]
    of = two.compressors(TopK(), parameters)
    of[0].gain = Gain(2, rung=5)
    two.reduced(two.compressors(TopK(), parameters), parameters, [1.0] * 4, [1.0] * 4)
    (other, *_) = three.compressors(TopK(), parameters)
    other.load_state_dict(of[0].state_dict())

    assert other.gain == Gain(3)
    (again, _) = two.compressors(TopK(), parameters)
    again.load_state_dict(of[0].state_dict())
    assert again.gain == of[0].gain
