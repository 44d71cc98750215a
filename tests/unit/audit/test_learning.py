"""The losses of two recordings in the audit: at equal steps and after equal times, with intervals, or why not."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

from audit_lab import job, noisy

from timesyncd.audit.build import report
from timesyncd.audit.html import html, summary
from timesyncd.audit.measured import measured
from timesyncd.audit.report import AuditReport
from timesyncd.jobs.recording import LossMark, Recording

STEPS = 200


def learnt(seed: int, higher: float = 0.0, validation: bool = False) -> Recording:
    """Both ranks have each step's loss, with a noise of their own; held-out losses every 20 steps."""
    chance = random.Random(seed)

    def loss(step: int) -> float:
        return (1 + 2 / (1 + step / 20)) * (1 + higher) * (1 + chance.gauss(0, 0.01))

    losses = {rank: [LossMark(step, loss(step)) for step in range(STEPS)] for rank in range(2)}
    if validation:
        losses[0] += [LossMark(step, loss(step), True) for step in range(0, STEPS, 20)]
    return replace(job(STEPS, 2, noisy(seed)), losses=losses)


def compared(before: Recording, after: Recording) -> AuditReport:
    return report(measured(after), measured(before))


def test_the_loss_of_before_and_after_is_compared() -> None:
    """Of training and of held-out data, each at equal steps and after equal times."""
    found = compared(learnt(1, validation=True), learnt(2, 0.05, validation=True)).before_after
    assert found is not None

    assert [(one.loss, one.at) for one in found.learning] == [
        ("training", "steps"),
        ("training", "time"),
        ("validation", "steps"),
        ("validation", "time"),
    ]
    training = found.learning[0]
    assert (training.verdict, training.values) == ("worse", STEPS)
    assert training.change is not None and training.change.low is not None and training.change.high is not None
    assert training.change.low < 0.05 < training.change.high
    assert training.sentence.startswith("The training loss at equal steps is worse than before: +")


def test_a_run_that_keeps_up_is_said_to() -> None:
    """In the summary for a terminal, and on the page."""
    before, after = learnt(1), learnt(2)
    found = compared(before, after)

    assert any(
        "The training loss at equal steps keeps up with that of before" in line for line in summary(found, Path())
    )
    page = html(found, measured(after), measured(before))
    assert '<table id="learning">' in page and "keeps up" in page


def test_what_is_unknown_has_its_reason() -> None:
    """A run without losses is not called anything."""
    found = compared(job(STEPS), learnt(2)).before_after
    assert found is not None

    assert [(one.verdict, one.reason_code) for one in found.learning] == [("unknown", "no_reference")] * 2
    assert "the reference has no losses: call record_loss(loss)" in found.learning[0].sentence
    none = compared(job(STEPS), job(STEPS)).before_after
    assert none is not None
    (one,) = none.learning
    assert (one.verdict, one.reason_code) == ("unknown", "no_losses")
    assert one.sentence.endswith("and a hub keeps none.")


def test_a_loss_that_is_not_finite_is_worse() -> None:
    """And the report stays valid JSON."""
    after = learnt(2)
    after = replace(after, losses={0: [*after.losses[0][:-1], LossMark(STEPS - 1, math.inf)]})
    found = compared(learnt(1), after)
    assert found.before_after is not None

    first = found.before_after.learning[0]
    assert (first.verdict, first.change) == ("worse", None)
    assert AuditReport.model_validate_json(found.model_dump_json()) == found
    assert "is worse: its loss is not finite in step 199" in first.sentence
