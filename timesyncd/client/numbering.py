"""Steps and synchronizations as the job numbers them -> as they are marked. Depends on the numbers alone, so ranks agree."""

from __future__ import annotations

from operator import index

from timesyncd.ipc.job_datagram import split_step, step_key

#: Of a step that has no key, because it is no whole number from 0 to 2^32 - 1: its marks are lost.
NO_KEY = -1

_LARGEST_STEP = 2**32 - 1

#: So many steps can be in flight and still go on counting their synchronizations.
_STEPS_COUNTED = 8


class Numbering:
    """
    Keys of steps, whose numbers may begin anew with each epoch: a step below half of the last one begins the next epoch.

    Not safe between threads.
    """

    def __init__(self) -> None:
        self._first = 0
        self._last = self._former = -1
        self._last_key = self._former_key = NO_KEY
        self._synchronizations: dict[int, int] = {}
        self._others: dict[int, int] = {}

    def key(self, step: int) -> int:
        """The step's key; NO_KEY: it has none."""
        return self._last_key if step == self._last else self._turn(step)

    def late_key(self, step: int) -> int:
        """The same, but the step before the last one is late, and begins no epoch."""
        if step == self._last:
            return self._last_key
        return self._former_key if step == self._former else self._turn(step)

    def epoch(self, number: int) -> None:
        """Steps from now on are of this epoch. Raises ValueError: it is not within 0 to 2^31 - 1."""
        self._first = step_key(index(number), 0)
        if self._last >= 0:
            self._former, self._former_key = self._last, self._last_key
            self._last, self._last_key = -1, NO_KEY

    def next_sync(self, step: int) -> tuple[int, int]:
        """The step's key, and the number of its next synchronization, from 0."""
        key = self._last_key if step == self._last else self._turn(step)
        return key, _next(self._synchronizations, key)

    def next_other(self, step: int) -> tuple[int, int]:
        """The step's key, and the number of its next mark that is this rank's own; the step before the last one is late."""
        key = self.late_key(step)
        return key, _next(self._others, key)

    def _turn(self, step: int) -> int:
        try:
            number = index(step)
        except TypeError:
            return NO_KEY
        if not 0 <= number <= _LARGEST_STEP:
            return NO_KEY
        if 2 * number < self._last:
            self._begin_next_epoch()
        if self._last >= 0:
            self._former, self._former_key = self._last, self._last_key
        self._last, self._last_key = number, self._first + number
        return self._last_key

    def _begin_next_epoch(self) -> None:
        try:
            self._first = step_key(split_step(self._first)[0] + 1, 0)
        except ValueError:
            pass  # after two thousand million epochs the numbers repeat


def _next(counts: dict[int, int], key: int) -> int:
    count = counts.get(key)
    if count is None:
        if len(counts) >= _STEPS_COUNTED:
            oldest, *_ = counts
            # A signal handler that marks in between may have forgotten the same one.
            counts.pop(oldest, None)
        count = -1
    counts[key] = count + 1
    return count + 1
