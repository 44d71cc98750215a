"""Numbers a job's steps and synchronizations for its marks. The result depends on the job's own numbers alone, so ranks agree."""

from __future__ import annotations

from operator import index

from timesyncd.ipc.job_datagram import split_step, step_key

#: The key of a step that is not a whole number from 0 to 2^32 - 1: its marks are lost.
NO_KEY = -1

_LARGEST_STEP = 2**32 - 1

#: The number of steps that can be in flight and keep their count of synchronizations.
_STEPS_COUNTED = 8


class Numbering:
    """
    Keys of steps, whose numbers may restart with each epoch: a step below half of the last one starts the next epoch.

    Not safe between threads.
    """

    def __init__(self) -> None:
        self._first = 0
        self._last = self._previous = -1
        self._last_key = self._previous_key = NO_KEY
        self._synchronizations: dict[int, int] = {}
        self._own: dict[int, int] = {}
        self._of_kind: dict[int, dict[int, int]] = {}

    def step_key(self, step: int) -> int:
        """The step's key, or NO_KEY."""
        return self._last_key if step == self._last else self._advance(step)

    def late_key(self, step: int) -> int:
        """As `step_key`, but the step before the last one counts as late and starts no epoch."""
        if step == self._last:
            return self._last_key
        return self._previous_key if step == self._previous else self._advance(step)

    def set_epoch(self, epoch: int) -> None:
        """Steps from now on belong to this epoch. Raises ValueError for one that is not within 0 to 2^31 - 1."""
        self._first = step_key(index(epoch), 0)
        if self._last >= 0:
            self._previous, self._previous_key = self._last, self._last_key
            self._last, self._last_key = -1, NO_KEY

    def next_sync(self, step: int) -> tuple[int, int]:
        """The step's key, and the number of its next synchronization, from 0."""
        key = self._last_key if step == self._last else self._advance(step)
        return key, _next(self._synchronizations, key)

    def next_own(self, step: int) -> tuple[int, int]:
        """The step's key, and the number of its next mark of this rank alone, from 0; the step before the last one counts as late."""
        key = self.late_key(step)
        return key, _next(self._own, key)

    def next_of_kind(self, key: int, kind: int) -> int:
        """How many synchronizations of this kind came before the next one in the step with this key."""
        counts = self._of_kind.get(key)
        if counts is None:
            if len(self._of_kind) >= _STEPS_COUNTED:
                oldest, *_ = self._of_kind
                self._of_kind.pop(oldest, None)
            counts = self._of_kind[key] = {}
        counts[kind] = counts.get(kind, -1) + 1
        return counts[kind]

    def _advance(self, step: int) -> int:
        try:
            number = index(step)
        except TypeError:
            return NO_KEY
        if not 0 <= number <= _LARGEST_STEP:
            return NO_KEY
        if 2 * number < self._last:
            self._start_next_epoch()
        if self._last >= 0:
            self._previous, self._previous_key = self._last, self._last_key
        self._last, self._last_key = number, self._first + number
        return self._last_key

    def _start_next_epoch(self) -> None:
        try:
            self._first = step_key(split_step(self._first)[0] + 1, 0)
        except ValueError:
            pass  # after 2^31 epochs the numbers repeat


def _next(counts: dict[int, int], key: int) -> int:
    count = counts.get(key)
    if count is None:
        if len(counts) >= _STEPS_COUNTED:
            oldest, *_ = counts
            # A signal handler that marks in between may have removed the same one.
            counts.pop(oldest, None)
        count = -1
    counts[key] = count + 1
    return count + 1
