"""Four real gloo ranks that average over groups, and two or three that share samples: compared with sums by hand and with torch's own averager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_ranks import run_ranks

from timesyncd.training.torch.data import sharing_ranks

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("hierarchy_child.py")
WAYS = pytest.mark.parametrize("name", ["2+2", "3+1", "apart", "flat"])

Results = list[dict[str, Any]]

#: Of 0, 1, 4 and 9, by rank and level.
MEANS = {
    "2+2": [[0.5, 3.5], [0.5, 3.5], [6.5, 3.5], [6.5, 3.5]],
    "3+1": [[5 / 3, 3.5], [5 / 3, 3.5], [5 / 3, 3.5], [9, 3.5]],
    "apart": [[0, 2, 3.5], [5, 5, 3.5], [4, 2, 3.5], [5, 5, 3.5]],
    "flat": [[3.5]] * 4,
}

#: By rank: a hook's 8 octets in the inner group and, of its lowest rank, among the groups; 16 in each averaging with others.
SENT = {"2+2": [48, 40, 48, 40], "3+1": [48, 40, 40, 24], "apart": [40, 64, 40, 56], "flat": [24] * 4}


@pytest.fixture(scope="module")
def results() -> Results:
    return run_ranks(CHILD, ["means", "averager", "hooked", "within", "differ"], world_size=4)


def of(results: Results, scene: str) -> Results:
    return [each[scene] for each in results]


@WAYS
def test_means_by_hand(results: Results, name: str) -> None:
    """The hook gives every rank the mean of all ranks, with equal weights; an averaging gives each the mean of its group at that level."""
    for each, levels in zip(of(results, "means"), MEANS[name], strict=True):
        hook, *averages = each[name]["means"]
        assert hook == [3.5, -3.5]
        assert averages == [[pytest.approx(mean, rel=1e-6)] * 3 for mean in levels]


@WAYS
def test_the_octets_that_were_sent(results: Results, name: str) -> None:
    """Only the lowest rank of a group sends over the slow links, and no rank to itself."""
    assert [each[name]["sent"] for each in of(results, "means")] == SENT[name]


@WAYS
def test_every_rank_has_the_same_bits(results: Results, name: str) -> None:
    """With three buckets at once, in any order of the groups."""
    first, *others = (each[name]["random"] for each in of(results, "means"))
    assert [len(bucket) for bucket in first] == [1_000, 1_001, 1_002]
    assert all(other == first for other in others)


def test_the_numbers_of_torchs_averager(results: Results) -> None:
    """Where the groups are equal, contiguous and of the whole world, HierarchicalModelAverager gives the same bits at each step."""
    assert [each["same"] for each in of(results, "averager")] == [[True] * 6] * 4


@WAYS
def test_a_module_trains_with_the_hook(results: Results, name: str) -> None:
    """The gradients are those of DDP's all-reduce to rounding, and the parameters end as the same bits on every rank."""
    ran = [each[name] for each in of(results, "hooked")]
    assert [each["close"] for each in ran] == [True] * 4
    assert len({str(each["ended"]) for each in ran}) == 1


def test_groups_within_a_part_of_the_world(results: Results) -> None:
    """Ranks 1, 2 and 3 average among themselves, rank 0 alone, although one of them had more groups before."""
    assert [each["inner"] for each in of(results, "within")] == [0, 1, 2.5, 2.5]
    assert [each["mean"] for each in of(results, "within")] == [0, *[pytest.approx(14 / 3)] * 3]


def test_ranks_with_other_levels(results: Results) -> None:
    """All ranks get an error that names the one that differs; none waits for a group that will not exist."""
    assert {each["error"].partition(";")[0] for each in of(results, "differ")} == {
        "ranks 0 and 3 of the world have different levels of groups"
    }


@pytest.mark.parametrize("scene", ["leave", "silent"])
def test_a_rank_that_ends_or_is_silent(scene: str) -> None:
    """After two steps rank 1 has ended, or is silent: every other rank's backward ends, and the SyncError names what it waited for."""
    ran = of(run_ranks(CHILD, [scene], world_size=4), scene)
    waited = [
        "summing among ranks 0, 1 failed",
        "averaging among ranks 0, 2 failed",
        "spreading the mean among ranks 2, 3 failed",
    ]
    for each, words in zip((ran[0], ran[2], ran[3]), waited, strict=True):
        assert each["steps"] == 2
        assert f"SyncError: {words}" in each["backward"]
        assert each["hook"].startswith(words) and "\n" not in each["hook"]
        assert each["average"] == each["hook"]


def batch(rank: int, size: int) -> tuple[list[list[float]], list[int]]:
    numbers = [100 * rank + number for number in range(size)]
    return [[number, -number] for number in numbers], [number + 2**60 for number in numbers]


@pytest.fixture(scope="module", params=[2, 3])
def sharing(request: pytest.FixtureRequest) -> Results:
    return of(run_ranks(CHILD, ["injected"], world_size=request.param), "injected")


def test_samples_are_shared(sharing: Results) -> None:
    """In each step each rank has its own samples, then the first half of those of each sharing rank; types and octets as sent."""
    world_size = len(sharing)
    sent = [0] * world_size
    for step in range(6):
        givers = sharing_ranks(0.5, world_size, 13, step)
        sizes = [{(0, 0): 1, (3, 1): 0}.get((step, rank), 4) for rank in range(world_size)]
        for rank in givers:
            sent[rank] += 48  # how many, two rows of two float32, two int64: 16 octets each
        for rank, each in enumerate(sharing):
            inputs, targets = batch(rank, sizes[rank])
            for other in givers:
                if other != rank:
                    theirs = batch(other, min(2, sizes[other]))
                    inputs, targets = inputs + theirs[0], targets + theirs[1]
            assert each["steps"][step] == {
                "inputs": inputs,
                "targets": targets,
                "kinds": ["torch.float32", "torch.int64"],
            }
    assert [each["octets"] for each in sharing] == [[own, sum(sent) - own] for own in sent]


def test_samples_of_odd_sizes(sharing: Results) -> None:
    """Three octets per sample beside a float64, shared by all."""
    for rank, each in enumerate(sharing):
        ranks = [rank, *(other for other in range(len(sharing)) if other != rank)]
        assert each["odd"] == [[[other] * 3 for other in ranks], [other / 4 for other in ranks]]


def test_samples_that_differ_in_shape(sharing: Results) -> None:
    """All ranks get the error, so that none waits."""
    assert {each["mistake"] for each in sharing} == {
        "a sample is torch.float32 [] with torch.float32 [1] on rank 0, torch.float32 [] with torch.float32 [2] on rank 1; pad all samples to one shape"
    }
