"""The samples that each rank reads of a data set, also after a restart in the middle of an epoch."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from timesyncd.training.torch.data import DefDP, SelDP, label_sorted_part

Kind = type[SelDP] | type[DefDP]

SIZES = st.integers(1, 6).flatmap(lambda ranks: st.tuples(st.integers(ranks, 40), st.just(ranks)))
KINDS = pytest.mark.parametrize("kind", [SelDP, DefDP])


def samples_by_rank(kind: Kind, length: int, ranks: int, epoch: int = 0, seed: int = 3) -> list[list[int]]:
    """The samples of each rank."""
    samplers = [kind(length, rank, ranks, seed) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


def chunks(length: int, ranks: int, epoch: int = 0) -> list[set[int]]:
    """The samples of each chunk that this epoch uses."""
    return [set(part) for part in samples_by_rank(DefDP, length, ranks, epoch)]


@given(SIZES, st.integers(0, 3))
def test_def_dp_gives_disjoint_parts(sizes: tuple[int, int], epoch: int) -> None:
    """No sample goes to two ranks or twice to one, and all ranks get equally many."""
    length, ranks = sizes
    parts = samples_by_rank(DefDP, length, ranks, epoch)
    used_samples = [sample for part in parts for sample in part]
    assert {len(part) for part in parts} == {length // ranks} == {len(DefDP(length, 0, ranks, 3))}
    assert len(set(used_samples)) == len(used_samples) and set(used_samples) <= set(range(length))


@given(SIZES, st.integers(0, 3))
def test_sel_dp_gives_all_to_every_rank(sizes: tuple[int, int], epoch: int) -> None:
    """Each rank gets the same samples, each once: all but the remainder."""
    length, ranks = sizes
    parts = samples_by_rank(SelDP, length, ranks, epoch)
    assert {frozenset(part) for part in parts} == {frozenset(parts[0])}
    assert {len(part) for part in parts} == {len(set(parts[0]))} == {length - length % ranks}
    assert len(SelDP(length, 0, ranks, 3)) == len(parts[0])


@given(SIZES, st.integers(0, 3))
def test_sel_dp_rotates_the_chunks(sizes: tuple[int, int], epoch: int) -> None:
    """At position p rank n reads chunk n + p // size, which no other rank reads then; a chunk has the same order on all ranks."""
    length, ranks = sizes
    parts, of, size = samples_by_rank(SelDP, length, ranks, epoch), chunks(length, ranks, epoch), length // ranks
    for rank, part in enumerate(parts):
        assert all(sample in of[(rank + place // size) % ranks] for place, sample in enumerate(part))
        assert part == parts[0][rank * size :] + parts[0][: rank * size]


def test_three_ranks_by_hand() -> None:
    """Seven samples in chunks A, B and C of two, two and three: A B C, B C A, C A B."""
    a, b, c = (samples_by_rank(DefDP, 7, 3)[rank] for rank in range(3))
    assert samples_by_rank(SelDP, 7, 3) == [a + b + c, b + c + a, c + a + b]
    assert len({*a, *b, *c}) == 6


@KINDS
def test_an_epoch_shuffles_within_the_chunks(kind: Kind) -> None:
    """Another order in each epoch, of the same chunks; the same epoch again gives the same order."""
    assert chunks(300, 3, epoch=0) == chunks(300, 3, epoch=1)
    first, second = samples_by_rank(kind, 300, 3, epoch=0), samples_by_rank(kind, 300, 3, epoch=1)
    assert first != second and first == samples_by_rank(kind, 300, 3, epoch=0)
    assert samples_by_rank(kind, 300, 3, seed=4) != first


def test_chunks_are_alike() -> None:
    """The chunks of a data set that is sorted by label are random: each chunk of 1,000 has its share of the first half."""
    halves = [sum(sample < 1_500 for sample in part) for part in samples_by_rank(DefDP, 3_000, 3)]
    assert all(400 < first < 600 for first in halves)


def test_what_an_epoch_omits_is_used_in_another() -> None:
    """Of 11 samples for 3 ranks an epoch omits two; thirty epochs use every sample."""
    taken = Counter(sample for epoch in range(30) for part in samples_by_rank(DefDP, 11, 3, epoch) for sample in part)
    assert set(taken) == set(range(11)) and sum(taken.values()) == 30 * 9


@given(SIZES, st.sampled_from([SelDP, DefDP]), st.data())
def test_a_restart_continues_with_the_next_sample(sizes: tuple[int, int], kind: Kind, data: st.DataObject) -> None:
    """Stopped at any position, the rest of the epoch and the next one are those of an uninterrupted run; any rank's state serves."""
    length, ranks = sizes
    rank, other = data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, ranks - 1))
    whole, following = (
        samples_by_rank(kind, length, ranks, epoch=2)[rank],
        samples_by_rank(kind, length, ranks, epoch=3)[rank],
    )
    stopped = kind(length, other, ranks, 3)
    stopped.set_epoch(2)
    position = data.draw(st.integers(0, len(stopped)))
    for _ in zip(range(position), stopped, strict=False):
        pass
    again = kind(length, rank, ranks, 3)
    again.load_state_dict(stopped.state_dict())
    again.set_epoch(2)
    assert again.state_dict()["position"] == position
    assert list(again) == whole[position:]
    assert list(again) == whole
    again.set_epoch(3)
    assert list(again) == following


@KINDS
def test_a_restart_through_a_loader(kind: Kind) -> None:
    """Batches of 2 over chunks of 10: after 3 batches the rest equals that of the uninterrupted loader."""
    data = TensorDataset(torch.arange(30))
    sampler, again = kind(30, 1, 3, 0), kind(30, 1, 3, 0)
    batches = iter(DataLoader(data, batch_size=2, sampler=sampler))
    for _ in range(3):
        next(batches)
    again.load_state_dict(sampler.state_dict())
    rest, resumed = ([batch.tolist() for (batch,) in each] for each in (batches, DataLoader(data, 2, sampler=again)))
    assert rest == resumed != []


def test_a_restart_where_samples_were_read_ahead() -> None:
    """A loader's workers have read eight samples when four are trained on: the state is that of the four."""
    sampler, again = SelDP(30, 0, 3, 0), SelDP(30, 0, 3, 0)
    taken = list(islice(sampler, 8))
    assert sampler.state_dict()["position"] == 8
    again.load_state_dict(sampler.state_dict(used=4))
    assert list(islice(again, 4)) == taken[4:]


def test_an_abandoned_iteration_starts_again() -> None:
    """Only a loaded position is continued from; a second loop over the same epoch reads all of it."""
    sampler = SelDP(6, 0, 2, 0)
    assert next(iter(sampler)) == next(iter(sampler))
    assert sampler.state_dict()["position"] == 1
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"length": 6, "ranks": 2, "seed": 0, "epoch": 1, "position": 0}


@pytest.mark.parametrize("other", [SelDP(9, 0, 2, 0), SelDP(8, 0, 4, 0), SelDP(8, 0, 2, 1)])
def test_a_state_of_other_data_is_rejected(other: SelDP) -> None:
    """Other data, another number of ranks or another seed have another order."""
    with pytest.raises(ValueError, match="start the epoch without it"):
        SelDP(8, 0, 2, 0).load_state_dict(other.state_dict())


@pytest.mark.parametrize(("length", "rank", "ranks"), [(3, 0, 4), (9, 3, 3), (9, -1, 3), (0, 0, 0)])
def test_invalid_ranks_are_rejected(length: int, rank: int, ranks: int) -> None:
    """Fewer samples than ranks, or a rank out of range."""
    with pytest.raises(ValueError, match="the rank must be 0 or more and below the number of ranks"):
        SelDP(length, rank, ranks, 0)


def test_parts_by_label() -> None:
    """Seven samples of labels 2, 0 and 1 for three ranks: two each in the order of the labels, and the last one is omitted."""
    labels = [2, 0, 1, 0, 1, 2, 2]
    assert [label_sorted_part(labels, rank, 3) for rank in range(3)] == [[1, 3], [2, 4], [0, 5]]
    assert [label_sorted_part(labels, rank, 2) for rank in range(2)] == [[1, 3, 2], [4, 0, 5]]
