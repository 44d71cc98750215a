"""Real gloo ranks under each policy: their replicas, compared with what one process computes alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_group import printed_by
from torch_ranks import run_ranks

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("policy_child.py")
#: Of double precision, in sums of few numbers.
ROUNDING = 1e-12
#: Policies that leave replicas apart.
APART = ("local_sgd(h=6, delay=4)", "aggregate=gradients")

Results = list[dict[str, Any]]


def run(folder: Path, *scenes: str, world_size: int = 2) -> Results:
    results = run_ranks(CHILD, ["--folder", str(folder), "--scenes", *scenes], world_size)
    assert [each.pop("warnings") for each in results] == [[]] * world_size
    return results


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(
        tmp_path_factory.mktemp("two"),
        "numbers",
        "low_communication",
        "ordered",
        "balanced",
        "selsync",
        "modules",
        "switched",
        "momentum_united",
        "gathered",
        "conserved",
        "shared",
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(tmp_path_factory.mktemp("three"), "numbers", "selsync", "switched", world_size=3)


@pytest.fixture(params=["two", "three"])
def results(request: pytest.FixtureRequest) -> Results:
    found: Results = request.getfixturevalue(request.param)
    return found


def of_each(results: Results, *scenes: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The observations of all ranks in each case."""
    for scene in scenes:
        for case in results[0][scene]:
            yield case, [rank[scene][case] for rank in results]


def assert_same(ranks: list[dict[str, Any]], *names: str) -> None:
    for name in names:
        assert all(rank[name] == ranks[0][name] for rank in ranks), name


def test_the_parameters_are_those_of_the_papers(results: Results) -> None:
    """Each policy, with and without momentum, after thirty steps; SelSync after sixty: up to the rounding of another order of additions."""
    for case, ranks in of_each(results, "numbers", "selsync"):
        assert max(rank["off"] for rank in ranks) < ROUNDING, case


def test_the_low_communication_methods_are_those_of_the_papers(two: Results) -> None:
    """With AdamW inside and batch statistics, after thirty steps; replicas are equal after each synchronization, or at the end where the method mixes or averages in part."""
    for case, ranks in of_each(two, "low_communication"):
        assert max(rank["off"] for rank in ranks) < ROUNDING, case
        assert_same(ranks, "synced", "closed")
        assert {rank["differed"] for rank in ranks} == {0}
        if case.startswith(("diloco", "post_local_sgd", "fedavg")):
            assert_same(ranks, "hashes")
            assert len(ranks[0]["hashes"]) >= 7
    streamed, desynced = (
        two[0]["low_communication"][case]["synced"]
        for case in ("streaming_diloco(h=6, fragments=2, delay=2, alpha=0.25)", "des_loc(kx=2, ku=3, kv=8)")
    )
    assert streamed == [2, 5, 8, 11, 14, 17, 20, 23, 26, 29]
    assert desynced == [step for step in range(30) if (step + 1) % 2 == 0 or (step + 1) % 3 == 0]


def test_averages_that_arrive_in_the_forward_pass_have_the_same_bits(two: Results) -> None:
    """As those that the step waits for, with an outer optimizer and compressed too, and the replicas are equal at the end."""
    first, second = (rank["ordered"] for rank in two)
    assert any(first.pop("pending")) and any(second.pop("pending"))
    assert len(first) == 5
    for policy, hashes in first.items():
        assert hashes[0] == hashes[1], policy
        assert second[policy][0] == second[policy][1], policy
        assert hashes[0][-1] == second[policy][0][-1], policy


def test_batches_by_speed_leave_the_gradient_as_it_was(two: Results) -> None:
    """Each step's parameters are those of whole batches; the slow rank's part becomes smaller, and no sample is left out."""
    first, second = (rank["balanced"] for rank in two)

    assert max(first["off"], second["off"]) < ROUNDING
    assert first["shares"] == second["shares"] and second["shares"][1] < 0.45
    for (begin, middle), (same, end) in zip(first["parts"], second["parts"], strict=True):
        assert (begin, middle, end) == (0, same, 24)
    assert first["parts"][0] == [0, 12] and first["parts"][-1][1] > 12


def test_replicas_are_the_same_bits_after_each_synchronization(results: Results) -> None:
    """Except where a policy lets them diverge; and those are averaged at the end."""
    for case, ranks in of_each(results, "numbers", "selsync"):
        assert_same(ranks, "synced", "closed")
        assert len(ranks[0]["hashes"]) == len(ranks[0]["synced"]) >= 5
        if any(apart in case for apart in APART):
            assert ranks[0]["hashes"] != ranks[1]["hashes"], case
        else:
            assert_same(ranks, "hashes")
        assert {rank["differed"] for rank in ranks} == {0}


def test_selsync_synchronizes_when_the_paper_does(results: Results) -> None:
    """With votes that count zero, one and two steps later; the share of local steps is Eq. 4's, and neither 0 nor 1."""
    for case, ranks in of_each(results, "selsync"):
        for rank in ranks:
            assert rank["synced"] == rank["expected"], case
            assert rank["lssr"] == pytest.approx(1 - len(rank["expected"]) / 60)
            assert 0.2 < rank["lssr"] < 0.9


def test_known_synchronizations_are_in_their_steps(two: Results) -> None:
    """In the steps that the policy's text determines."""
    synced = {
        case: two[0]["numbers"][f"{case} plain"]["synced"] for case in ("accumulate(k=4)", "qsr(h=2, alpha=0.11)")
    }
    assert list(synced.values()) == [[3, 7, 11, 15, 19, 23, 27]] * 2
    assert two[0]["numbers"]["local_sgd(h=6, delay=4) plain"]["synced"] == [5, 11, 17, 23, 29]
    assert two[0]["numbers"]["post_local_sgd(start=5, h=4) plain"]["synced"] == [0, 1, 2, 3, 4, 8, 12, 16, 20, 24, 28]


def test_statistics_of_batches_are_averaged_too(two: Results) -> None:
    """Batch normalization's running means, under AdamW: replicas are equal, including buffers."""
    ranks = [rank["modules"]["normalized"] for rank in two]
    assert max(rank["off"] for rank in ranks) < ROUNDING
    assert_same(ranks, "hashes", "closed")


@pytest.mark.parametrize("policy", ["bsp", "local_sgd(h=4)", "accumulate(k=4)"])
def test_ways_to_use_ddp_still_work(two: Results, policy: str) -> None:
    """Gradients as views of buckets, two passes per step with one in no_sync, parameters that only rank 0 uses."""
    view, halves, uneven = (
        [rank["modules"][f"{way} {policy}"] for rank in two] for way in ("view", "no_sync", "uneven")
    )
    for ranks in (view, halves, uneven):
        assert_same(ranks, "hashes")
    assert max(rank["off"] for rank in view + halves) < ROUNDING
    assert_same(uneven, "closed")


def test_all_ranks_change_the_policy_in_the_same_step(results: Results) -> None:
    """As rank 0 requested, soon afterwards, however slow the others are; and they synchronize in the same steps."""
    ranks = [rank["switched"] for rank in results]
    policies = ranks[0]["policies"]
    turns = [(step, policy) for step, policy in enumerate(policies) if step and policy != policies[step - 1]]

    assert_same(ranks, "policies", "synced", "closed")
    requested = [
        (15, "local_sgd(h=3)"),
        (40, "selsync(delta=0.02, late=2)"),
        (65, "local_sgd(h=5, delay=4)"),
        (90, "bsp"),
    ]
    assert [policy for _, policy in turns] == [policy for _, policy in requested]
    assert all(when < step <= when + 20 for (step, _), (when, _) in zip(turns, requested, strict=True))


def test_replicas_are_equal_under_bsp_again(results: Results) -> None:
    """Including momentum and buffers: equal gradients keep them equal from the first step on."""
    ranks = [rank["switched"] for rank in results]
    last = len(ranks[0]["policies"]) - ranks[0]["policies"][::-1].index("local_sgd(h=5, delay=4)")
    after = [index for index, step in enumerate(ranks[0]["synced"]) if step >= last]

    assert len(after) >= 15
    assert all(rank["hashes"][after[0] :] == ranks[0]["hashes"][after[0] :] for rank in ranks)


def test_a_momentum_of_one_number_is_averaged_too(two: Results) -> None:
    """A bias of one output stays equal in steps of BSP after many local ones."""
    ranks = [rank["momentum_united"] for rank in two]
    assert ranks[0]["policies"][-1] == "bsp"
    assert_same(ranks, "hashes")


def test_accumulated_gradients_are_not_lost_in_a_change(two: Results) -> None:
    """Four or five of them make one update, and BSP continues from there with its momentum."""
    ranks = [rank["gathered"] for rank in two]
    assert ranks[0]["policies"][-1] == "bsp" and ranks[0]["policies"][3] == "accumulate(k=20)"
    assert max(rank["off"] for rank in ranks) < ROUNDING
    assert_same(ranks, "hashes")


def test_an_averaging_in_the_background_loses_nothing(two: Results) -> None:
    """In each step the sum over the ranks is that of all their updates, whatever is in transit; in between the replicas differ."""
    ranks = [rank["conserved"] for rank in two]
    assert max(rank["off"] for rank in ranks) < ROUNDING
    assert ranks[0]["apart"] != ranks[1]["apart"]
    assert_same(ranks, "closed")


def test_the_mean_is_there_for_an_evaluation(two: Results) -> None:
    """Also that of a moving average; then each rank has its own replica again. Under BSP all have it already."""
    for policy, ranks in of_each(two, "shared"):
        assert_same(ranks, "inside")
        assert max(rank["off"] for rank in ranks) < ROUNDING, policy
        assert all(rank["is_own"] and rank["error"].startswith("an update inside averaged()") for rank in ranks)
    local, bsp = (two[0]["shared"][policy] for policy in ("local_sgd(h=4)", "bsp"))
    assert local["later"] < ROUNDING and local["own"] not in local["inside"]
    assert bsp["own"] == bsp["inside"][0]


def test_a_restart_continues_to_the_same_bits(tmp_path: Path) -> None:
    """From step 13, within an interval, with rows and averages in transit and residuals: the same bits and the same synchronizations."""
    saved = [rank["saved"] for rank in run(tmp_path, "saved")]
    resumed = [rank["resumed"] for rank in run(tmp_path, "resumed")]

    for rank in (0, 1):
        assert resumed[rank] == saved[rank]
    assert {facts["policy"] for facts in saved[0].values()} == {"local_sgd(h=3)"}


def test_only_data_parallel_ranks_average(tmp_path: Path) -> None:
    """On a mesh of two by two: each shard equals that of one process with whole replicas; tensor-parallel peers synchronize in the same steps."""
    results = [rank["mesh"] for rank in run(tmp_path, "mesh", world_size=4)]

    for policy, facts in results[0].items():
        ranks = [rank[policy] for rank in results]
        assert_same(ranks, "synced", "steps")
        assert max(rank["off"] for rank in ranks) < ROUNDING, policy
        assert 5 < len(facts["synced"]) <= facts["steps"] == 30
        assert [rank["closed"] for rank in ranks[:2]] == [rank["closed"] for rank in ranks[2:]]
        assert ranks[0]["closed"] != ranks[1]["closed"]


def test_the_example_changes_its_policy() -> None:
    """As a user starts it: it prints both policies, with the step and the reason of the change."""
    script = Path(__file__).parents[2] / "examples" / "policies.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    words = printed_by([*command, "--steps", "60", "--policy", "local_sgd(h=4)", "--then", "bsp"], {})

    assert (
        "from step 0: local_sgd(h=4) (given by the script at the start)\nfrom step 44: bsp (requested by rank 0's script or plan)\n"
        in words
    )
    assert "60 steps, " in words
