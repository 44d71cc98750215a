"""Gradients that are reduced beside the backward pass: the slow rank and its cost, against a simulated job with a known truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from overlapping_job import OverlappingJob, kineto, run

from timesyncd.audit.blame import BlameReport, blame_report
from timesyncd.audit.trace_files import read_traces


def audited(job: OverlappingJob, folder: Path) -> BlameReport:
    found, _ = run(job)
    for rank, kernels in enumerate(found):
        (folder / f"rank{rank}.json").write_text(json.dumps(kineto(job, kernels, rank)))
    traces, errors = read_traces([folder])
    assert not errors
    return blame_report([], traces)


@pytest.mark.parametrize("transfer_ms", [2.0, 8.0], ids=["hidden-transfers", "bound-by-transfers"])
@pytest.mark.parametrize("factor", [1.1, 1.4])
def test_the_slow_rank_and_the_step_without_it_are_right(tmp_path: Path, transfer_ms: float, factor: float) -> None:
    """A reduction that queued behind another one needed no more computing than where it did not queue."""
    job = OverlappingJob(transfer_ms=transfer_ms, slow={2: factor})

    found = audited(job, tmp_path)

    assert [(cause.kind, cause.rank) for cause in found.causes] == [("rank", 2)]
    assert found.causes[0].step_ns_without == pytest.approx(run(job.healthy())[1] * 1e6, rel=0.01)
    assert found.replay_misfit is not None and found.replay_misfit < 1e-3


@pytest.mark.parametrize("transfer_ms", [2.0, 8.0])
def test_a_healthy_job_has_no_culprit(tmp_path: Path, transfer_ms: float) -> None:
    """Nothing is named, and the step is as recorded."""
    job = OverlappingJob(transfer_ms=transfer_ms)

    found = audited(job, tmp_path)

    assert (found.causes, found.unknown_code) == ([], None)
    assert found.step_ns == pytest.approx(run(job)[1] * 1e6, rel=1e-3)
