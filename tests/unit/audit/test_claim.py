"""The claims of vendors beside what a job gains: the turns of the variants, the changes, and what is printed."""

from __future__ import annotations

import random

import pytest

from timesyncd.audit.bootstrap import StepSample
from timesyncd.audit.claim import ClaimReport, changes, figures, lines
from timesyncd.training.claim_plan import Variant, blocks

MS = 1_000_000


def steps(length_ms: float, exposed_ms: float, count: int = 200) -> list[StepSample]:
    """Of about this length and exposed waiting."""
    drawn = random.Random(1)
    return [
        StepSample(length_ms * MS * drawn.uniform(0.95, 1.05), exposed_ms * MS * drawn.uniform(0.9, 1.1))
        for _ in range(count)
    ]


def found(samples: dict[Variant, list[StepSample]], reason: str = "") -> ClaimReport:
    return ClaimReport(
        ranks=2,
        shares=[0.7, 0.3],
        plan=["Advice"],
        clocks_reason=reason,
        figures=figures(samples),
        changes=changes(samples),
    )


def test_each_variant_takes_its_turn() -> None:
    """In every round, and each time another one begins; without clocks two of them are left out."""
    turns = [block.variant for block in blocks(6, 40, with_clocks=True)]

    assert [turns[6 * turn] for turn in range(6)] == list(Variant)
    assert all(sorted(turns[6 * turn : 6 * turn + 6]) == sorted(Variant) for turn in range(6))
    assert not any(block.variant.by_clock for block in blocks(2, 40, with_clocks=False))
    assert len({block.name for block in blocks(6, 40, with_clocks=True)}) == 36


def test_the_changes_are_against_before() -> None:
    """A step of 50 ms with 20 ms of waiting, and one of 40 ms with 10 ms: a fifth less, 37.5 % less, a quarter more."""
    of = {one.figure: one.change for one in changes({Variant.BEFORE: steps(50, 20), Variant.POLICIES: steps(40, 10)})}

    for figure, expected in (("training time", -0.2), ("synchronization overhead", -0.375), ("utilization", 0.25)):
        estimate = of[figure]
        assert estimate.value == pytest.approx(expected, abs=0.02)
        assert estimate.low is not None and estimate.high is not None
        assert estimate.low < expected + 0.01 and expected - 0.01 < estimate.high


def test_few_steps_have_no_interval() -> None:
    """And the text says so."""
    report = found({Variant.BEFORE: steps(50, 20, 20), Variant.TIMING: steps(40, 10, 20)})
    assert all(one.change.low is None for one in report.changes)
    assert "(too few steps for an interval)" in "\n".join(lines(report))


def test_each_claim_stands_beside_the_parts() -> None:
    """What was not run is unknown, with the reason once."""
    samples = {
        Variant.BEFORE: steps(50, 20),
        Variant.TIMING_WITHOUT_CLOCKS: steps(45, 15),
        Variant.POLICIES: steps(40, 10),
    }
    text = lines(found(samples, "no daemon runs"))

    assert "Unknown: what clocks add, because no daemon runs." in text
    at = text.index("training time: vendors claim 20 to 35 % less")
    assert text[at + 1].split() == ["timing", "unknown"]
    assert text[at + 2].startswith("  the same without clocks  -10.")
    assert text[at + 3].startswith("  policies                 -20.")
    assert "synchronization overhead: vendors claim 40 to 50 % less" in text
    assert "utilization: vendors claim 25 to 30 % more" in text
