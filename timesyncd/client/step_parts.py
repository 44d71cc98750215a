"""Which part of a step a rank's thread is in: loading data, the backward pass, the optimizer; and when it was in which."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from timesyncd.ipc.job_datagram import OwnPart

#: So many spans are kept until their step ends; the oldest ones are then dropped, and the parts of that step are unknown.
MAX_SPANS = 4_096

_Span = tuple[OwnPart, int, int]
"""From, until, in CLOCK_REALTIME ns."""


class StepParts:
    """
    The spans since the last step's end. What is entered inside a part belongs to that part, as a backward pass inside an
    optimizer's step does. Only one thread counts, that of the optimizers: another one works beside the step.
    """

    def __init__(self) -> None:
        self._thread: int | None = None
        self._spans: deque[_Span] = deque()
        self._open: list[object] = []
        self._part = OwnPart.DATA
        self._since_ns = 0
        self._dropped = False

    def enter(self, part: OwnPart, key: object) -> None:
        """`key`: whose part it is. If it is inside already, an error ended it then."""
        thread = threading.get_ident()
        if self._thread is None or (part is OwnPart.OPTIMIZER and self._thread != thread):
            self._thread, self._open = thread, []
        if self._thread != thread:
            return
        if key in self._open:
            del self._open[self._open.index(key) :]
        if not self._open:
            self._part, self._since_ns = part, time.time_ns()
        self._open.append(key)

    def leave(self, key: object) -> None:
        """Without a former `enter` it has no effect."""
        if self._thread != threading.get_ident() or key not in self._open:
            return
        del self._open[self._open.index(key) :]
        if not self._open:
            if len(self._spans) >= MAX_SPANS:
                self._spans.popleft()
                self._dropped = True
            self._spans.append((self._part, self._since_ns, time.time_ns()))

    def end_step(self, begin_ns: int, end_ns: int) -> list[_Span] | None:
        """The spans within the step. What goes on in the next step counts there. None: not all are known."""
        dropped, self._dropped = self._dropped, False
        found = [(part, max(begin, begin_ns), min(end, end_ns)) for part, begin, end in self._until(end_ns)]
        while self._spans and self._spans[0][2] <= end_ns:
            self._spans.popleft()
        return None if dropped else [span for span in found if span[2] > span[1]]

    def _until(self, end_ns: int) -> Iterator[_Span]:
        """All spans that begin before that moment, with the one that goes on."""
        yield from [span for span in tuple(self._spans) if span[1] < end_ns]
        if self._open and self._since_ns < end_ns:
            yield self._part, self._since_ns, end_ns
