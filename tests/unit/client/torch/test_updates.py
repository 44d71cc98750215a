"""When a step of several optimizers ends."""

from __future__ import annotations

import pytest

from timesyncd.client.torch.updates import MAX_MISSED_STEPS, StepUpdates


def steps_of(order: str, known: str) -> list[str]:
    """The updates of each step, as a meter ends the steps; the last one may be partial."""
    updates, step = StepUpdates(), ""
    found: list[str] = []
    for one in known:
        updates.add(one)
    for one in order:
        if updates.has_updated(one):
            found, step = [*found, step], ""
            updates.end_step()
        updates.update(one)
        step += one
        if updates.is_complete:
            found, step = [*found, step], ""
            updates.end_step()
    return [*found, step] if step else found


@pytest.mark.parametrize(
    ("order", "known", "steps"),
    [
        ("ddd", "d", ["d", "d", "d"]),
        ("dgdgdg", "dg", ["dg", "dg", "dg"]),
        ("gdgd", "dg", ["gd", "gd"]),
        ("ddddgddddgd", "dg", ["d", "d", "d", "d", "g", "d", "d", "d", "dg", "d"]),
        ("dgdddgd", "dg", ["dg", "d", "d", "dg", "d"]),
        ("sss", "st", ["s", "s", "s"]),
    ],
)
def test_a_step_is_one_update_of_each_optimizer(order: str, known: str, steps: list[str]) -> None:
    """It ends with the last one of them, or before one begins again; a teacher's, which never updates, is not waited for."""
    assert steps_of(order, known) == steps


def test_an_optimizer_that_stopped_is_waited_for_no_more() -> None:
    """After so many steps without it the others end each step at once, until it updates again."""
    updates = StepUpdates()
    for one in "dg":
        updates.add(one)
        updates.update(one)
    updates.end_step()
    complete = []
    for _ in range(MAX_MISSED_STEPS + 1):
        updates.update("d")
        complete.append(updates.is_complete)
        updates.end_step()
    updates.update("g")

    assert complete == [False] * MAX_MISSED_STEPS + [True]
    assert updates.is_complete
    updates.end_step()
    updates.update("d")
    assert not updates.is_complete


def test_a_removed_optimizer_ends_nothing() -> None:
    """The step ends with those that are left."""
    updates = StepUpdates()
    for one in "dg":
        updates.add(one)
    updates.update("d")
    updates.remove("g")

    assert updates.is_complete
