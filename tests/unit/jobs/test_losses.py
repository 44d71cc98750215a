"""What the hub finds in the marks of losses: one that is not finite, and one above the reference's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from batches import NOW, batch, mark

from timesyncd.config import HubSettings
from timesyncd.hub.hub import Hub
from timesyncd.ipc.job_datagram import Kind, job_id, loss_of, loss_word


def test_a_loss_survives_its_mark() -> None:
    """In single precision, as a number that every reader of marks takes; too large ones as infinite."""
    losses = (0.25, -1.5, -1e300, math.inf, 1e-45)

    assert all(0 <= loss_word(loss) < 1 << 32 for loss in (*losses, math.nan))
    assert [loss_of(loss_word(loss)) for loss in losses] == [
        0.25,
        -1.5,
        -math.inf,
        math.inf,
        pytest.approx(1e-45, rel=1),
    ]
    assert math.isnan(loss_of(loss_word(math.nan)))
    assert math.isnan(loss_of(-1)) and math.isnan(loss_of(1 << 40))


class Marks:
    """A hub, and what the ranks of one job send to it."""

    def __init__(self) -> None:
        self.hub, self.sequence = Hub(HubSettings(), "node-0"), 0

    def send(self, rank: int, step: int, kind: Kind, value: float) -> None:
        self.sequence += 1
        marked = replace(mark(step), kind=kind, bytes=loss_word(value))
        self.hub.accept_marks(batch(rank, marked, sequence=self.sequence, world_size=3), NOW)
        self.hub.advance(NOW, 0)

    def findings(self) -> dict[tuple[str, str], str]:
        return {key: judged.evidence for key, judged in self.hub.findings().items()}


def test_the_rank_of_the_first_loss_that_is_not_finite_is_named() -> None:
    """After an averaging the others' follow: they are counted."""
    marks = Marks()
    marks.send(0, 10, Kind.LOSS, 2.5)
    assert marks.findings() == {}
    marks.send(1, 12, Kind.LOSS, math.nan)
    marks.send(2, 11, Kind.LOSS, math.inf)
    marks.send(2, 13, Kind.LOSS, math.nan)

    assert marks.findings() == {
        (
            "loss-not-finite",
            "train",
        ): "in step 11 of job 'train' of user 1000 a loss or gradient of rank 2 was not finite, "
        "the first so far; later of 1 more"
    }


def test_a_job_that_learns_worse_is_found_until_another_policy_is_in_force() -> None:
    """By rank 0's marks: the least by which its loss is higher, or no number."""
    marks = Marks()
    marks.send(0, 400, Kind.LEARNING, 0.031)
    assert marks.findings() == {
        (
            "learns-worse",
            "train",
        ): "by step 400 of job 'train' of user 1000 the loss under the policy in force is higher than "
        "that of its reference at equal steps, by 3.1% or more"
    }
    marks.send(0, 420, Kind.LEARNING, math.nan)
    assert marks.findings() == {}


def test_a_loss_is_no_sign_of_where_a_rank_is() -> None:
    """It is sent steps later: the newest mark of the rank stays the one before."""
    marks = Marks()
    marks.hub.accept_marks(batch(0, mark(20), sequence=0, world_size=3), NOW)
    marks.send(0, 3, Kind.LOSS, 2.5)
    job = marks.hub.job(job_id(1000, "train", 0))

    assert job is not None
    assert job.presence[0].last is not None and job.presence[0].last.step == 20
