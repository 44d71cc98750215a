"""The job of `timesyncd claim`: all its variants on real ranks, recorded so that the audit reads each, with pauses by one clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from timesyncd.audit.measured import measured
from timesyncd.cli import claim
from timesyncd.jobs.recording_files import load
from timesyncd.training.claim_plan import AUDIT, OUTCOME, Variant, blocks

pytestmark = pytest.mark.integration


def test_the_job_records_every_variant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of short blocks: each is a recording of its own, by one clock."""
    monkeypatch.setattr(claim, "_STEPS", 24)
    report = claim._claim(folder, 1)

    assert (report.clocks_reason, report.ranks) == ("", 2)
    assert sum(report.shares) == pytest.approx(1)
    assert [one.variant for one in report.figures] == list(Variant)
    assert [one.steps for one in report.figures] == [23] * len(Variant)
    assert report.plan[0].startswith("Advice for claim-audit, by 101 steps")
    assert (folder / OUTCOME).exists()
    for block in (AUDIT, *blocks(1, 24, with_clocks=True)):
        assert measured(load(folder / block.name)).recording.world_size == 2
