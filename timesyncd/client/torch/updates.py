"""
Which of a job's optimizers have updated in the present step, and so when the step ends.

One iteration of a training loop may update several modules, as the two of a GAN: it is one step. Pure.
"""

from __future__ import annotations

#: An optimizer that did not update in so many steps is waited for no more, until it updates again.
MAX_MISSED_STEPS = 32


class StepUpdates:
    """
    A step ends when each optimizer has updated, or when one of them begins again.

    An optimizer that has never updated is waited for in one step only: a module may have none (a frozen teacher).
    """

    def __init__(self) -> None:
        self._missed: dict[object, int] = {}
        self._updated: set[object] = set()
        self._is_return = False

    def __len__(self) -> int:
        return len(self._missed)

    @property
    def is_partial(self) -> bool:
        """Whether some optimizers have updated in this step, and others are waited for."""
        return bool(self._updated)

    @property
    def is_complete(self) -> bool:
        """
        Whether each optimizer that is waited for has updated in this step.

        One that was not waited for ends a step at once: the step before, where its place is, may have ended without it.
        """
        return self._is_return or all(
            one in self._updated or missed >= MAX_MISSED_STEPS for one, missed in self._missed.items()
        )

    def add(self, one: object) -> None:
        self._missed[one] = MAX_MISSED_STEPS - 1

    def remove(self, one: object) -> None:
        self._missed.pop(one, None)

    def has_updated(self, one: object) -> bool:
        """Whether this optimizer has updated in this step: what it does now belongs to the next one."""
        return one in self._updated

    def update(self, one: object) -> None:
        self._updated.add(one)
        if one in self._missed:
            self._is_return = self._missed[one] >= MAX_MISSED_STEPS
            self._missed[one] = 0

    def end_step(self) -> None:
        if self._updated:
            for one in self._missed.keys() - self._updated:
                self._missed[one] += 1
            self._updated.clear()
            self._is_return = False
