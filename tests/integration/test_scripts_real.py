"""Three of the training scripts of tests/scripts, of which `make job-soak` tries all: run-audit changes no bit and names the late rank's place."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_cases import CASES, Ran, difference, judgement, run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BY_NAME = {case.name: case for case in CASES}


def audited(name: str, place: str, folder: Path) -> tuple[Ran, str]:
    """The script with rank 1 late at that place, and the judgement; of three runs, as load of this machine can make rank 0 late too."""
    case = BY_NAME[name]
    for attempt in ("first", "second", "third"):
        ran = run(case, folder / attempt, True, late_rank=1, place=place)
        found = judgement(case, ran.report, 1, place)
        if found == "right" or ran.status != case.status:
            break
    return ran, found


def test_a_gan_s_late_module_is_named_and_no_bit_changes(tmp_path: Path) -> None:
    """Rank 1 is 30 ms late in the generator's pass: that is bucket 1 of 70 steps, and weights and status are those of the script alone."""
    late, found = audited("GAN", "generator", tmp_path)
    alone = run(BY_NAME["GAN"], tmp_path / "alone", audit=False)

    assert difference(alone, late) == ""
    assert (alone.status, len(alone.bits)) == (0, 2)
    assert found == "right", late.report["headline"]
    assert late.report["steps"] == 70


@pytest.mark.parametrize(
    ("name", "place"), [("accumulation by no_sync", "backward"), ("two optimizers of one module", "update")]
)
def test_the_late_rank_s_place_is_stated(tmp_path: Path, name: str, place: str) -> None:
    """Rank 1 is 30 ms late in the middle of a backward pass that reduces, or in its first optimizer."""
    late, found = audited(name, place, tmp_path)

    assert (late.status, found) == (0, "right"), late.report["headline"]


@pytest.mark.parametrize("name", ["HSDP 2 x 2", "DP x PP 2 x 2, GPipe"])
def test_the_late_rank_of_a_mesh_is_named_with_its_group(tmp_path: Path, name: str) -> None:
    """
    Rank 1 of 2 x 2 is 30 ms late before each step: the others wait for it in several groups, and it alone is named, with one of its groups.
    Without it the job would take less time, or the report has a reason. Weights and status are those of the script alone.
    """
    late, found = audited(name, "data", tmp_path)
    alone = run(BY_NAME[name], tmp_path / "alone", audit=False)
    (one,) = late.report["stragglers"]
    (remedy,) = (each for each in late.report["remedies"] if each["name"] == "no_straggler")

    assert difference(alone, late) == ""
    assert (alone.status, len(alone.bits)) == (0, 4)
    assert (remedy["gain"] or 0) > 0 or remedy["reason"]
    assert (late.status, found) == (0, "right"), late.report["headline"]
    assert 1 in one["group"]
    assert len(one["group"]) == 2
    assert one["dimension"] in ("shard", "replicate", "dp", "pp")
    assert one["exposed_ns"] > 0
    assert sum(each["calls"] for each in late.report["unmetered"]) <= 0.01 * late.report["metered_calls"]
