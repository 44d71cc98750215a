"""
Logs a job's signals to experiment trackers while the job runs.

The job's thread only reads shared memory and fills a queue. A thread for each tracker empties its queue. So a tracker
that is slow costs values, one that fails costs a line in the log, and neither delays a step.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from timesyncd.client.job import Job
from timesyncd.client.local import LocalSignals
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_segment import Signals

#: Put before the name of each value, so that trackers show them as one group.
PREFIX = "timesyncd/"

#: Signals change about once a second; a chart of a long run needs fewer points.
INTERVAL_S = 10.0

#: So many sets of values wait for a tracker that is slow. Further ones are dropped.
MAX_WAITING = 16

#: `close` waits at most so long for all trackers together.
CLOSE_TIMEOUT_S = 5.0

_LOG = logging.getLogger("timesyncd.trackers")


class Tracker(Protocol):
    """Where values go. Both methods may raise anything; neither ends the job."""

    def prepare(self) -> None:
        """Called in the job's thread before each set of values: find the run that is active there. It must not block."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Called in a thread of the tracker's own. It may block."""


def signal_values(signals: Signals | None, local: LocalSignals) -> dict[str, float]:
    """
    The values to log, by name. A value that is unknown is absent, so that a chart has a gap there.

    `local_sync_overhead` is what this rank measured itself. It alone is there without a daemon.
    """
    found: dict[str, float | None] = {"local_sync_overhead": local.sync_overhead_window}
    if signals is not None:
        found |= {
            "sync_overhead": signals.sync_overhead,
            "arrival_skew_p50_ns": signals.arrival_skew_p50_ns,
            "arrival_skew_p99_ns": signals.arrival_skew_p99_ns,
            "arrival_skew_error_ns": signals.arrival_skew_error_ns,
            "alignment_ns": signals.alignment_ns,
            "straggler_rank": signals.straggler_rank,
        }
    return {f"{PREFIX}{name}": value for name, value in found.items() if value is not None}


class SignalLog:
    """
    Logs the job's signals at most once every `interval_s` seconds, from rank 0 alone, since they are the whole job's.

    A pickled copy logs nothing: the process that loads it has another job. Nothing that a tracker raises comes out of
    here, and `log` never waits.
    """

    def __init__(self, job: Job, *trackers: Tracker, interval_s: float = INTERVAL_S) -> None:
        self._job: Job | None = job if job.rank == 0 else None
        self._workers = [_Worker(tracker) for tracker in trackers]
        self._interval_ns = round(interval_s * NS_PER_S)
        self._next_ns = 0

    def __getstate__(self) -> dict[str, object]:
        return {"_job": None, "_workers": [], "_interval_ns": self._interval_ns, "_next_ns": 0}

    @property
    def dropped(self) -> int:
        """Sets of values that a tracker was too slow for."""
        return sum(worker.dropped for worker in self._workers)

    def values(self) -> dict[str, float] | None:
        """What is to be logged now; None: nothing yet."""
        now_ns = time.monotonic_ns()
        if self._job is None or now_ns < self._next_ns:
            return None
        self._next_ns = now_ns + self._interval_ns
        return signal_values(self._job.signals(), self._job.meter.local_signals()) or None

    def log(self, step: int) -> None:
        """The step with this number is over."""
        values = self.values()
        if values is not None:
            for worker in self._workers:
                worker.put(values, step)

    def close(self) -> None:
        """Wait until the trackers have everything, at most CLOSE_TIMEOUT_S. `log` may be called again afterwards."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in self._workers:
            worker.finish(deadline)


class _Worker:
    """One tracker, its queue, and the thread that empties it."""

    def __init__(self, tracker: Tracker) -> None:
        self.dropped = 0
        self._tracker = tracker
        self._queue: queue.Queue[tuple[Mapping[str, float], int] | threading.Event] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._is_failing = False

    def put(self, values: Mapping[str, float], step: int) -> None:
        try:
            self._tracker.prepare()
        except Exception as error:  # noqa: BLE001  a tracker never ends the job
            self._failed(error)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="timesyncd-tracker", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait((values, step))
        except queue.Full:
            self.dropped += 1

    def finish(self, deadline: float) -> None:
        """End the thread once its queue is empty; `deadline` on time.monotonic. A tracker that hangs keeps its thread."""
        thread, done = self._thread, threading.Event()
        if thread is None:
            return
        try:
            self._queue.put(done, timeout=max(deadline - time.monotonic(), 0))
        except queue.Full:
            return
        if done.wait(max(deadline - time.monotonic(), 0)):
            self._thread = None

    def _run(self) -> None:
        while not isinstance(item := self._queue.get(), threading.Event):
            try:
                self._tracker.log(*item)
                self._is_failing = False
            except Exception as error:  # noqa: BLE001  as above
                self._failed(error)
        item.set()

    def _failed(self, error: Exception) -> None:
        """One line for each outage, however many values it costs."""
        if not self._is_failing:
            self._is_failing = True
            _LOG.warning(
                "%s did not take the job's signals: %s: %s", type(self._tracker).__name__, type(error).__name__, error
            )
