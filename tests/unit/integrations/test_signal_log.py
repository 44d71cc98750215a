"""A job's signals on their way to experiment trackers, which may be slow, fail or hang."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from published_signals import job_with_signals

from timesyncd.client import Job, Signals
from timesyncd.client.local import LocalSignals
from timesyncd.integrations.trackers import SignalLog, signal_log, signal_values
from timesyncd.integrations.trackers.adapters import Mlflow, WeightsAndBiases

KNOWN: dict[str, Any] = {
    "sync_overhead": 0.25,
    "arrival_skew_p50_ns": 1_000,
    "arrival_skew_p99_ns": 9_000,
    "arrival_skew_error_ns": 600,
    "straggler_rank": 1,
    "alignment_ns": 600,
    "alignment_growth_ppb": 0,
}

#: Patience, not an expectation.
TIMEOUT_S = 60


class Recorder:
    """Keeps what it gets; raises, or waits for a gate, where the test sets it to."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.got: list[tuple[dict[str, float], int]] = []
        self.error: Exception | None = None
        self.has_begun = threading.Event()
        self._gate = gate

    def prepare(self) -> None:
        pass

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.has_begun.set()
        if self._gate is not None:
            assert self._gate.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        self.got.append((dict(values), step))


@pytest.fixture
def job(folder: Path) -> Iterator[Job]:
    with job_with_signals(folder, **KNOWN) as made:
        yield made


def test_what_is_known_is_logged_by_name() -> None:
    """Overhead, skew with its error, alignment and straggler of the job, and this rank's own overhead."""
    signals = Signals(world_size=2, steps_complete=9, steps_incomplete=0, **KNOWN)

    assert signal_values(signals, LocalSignals(steps=9, sync_overhead_window=0.2)) == {
        "timesyncd/local_sync_overhead": 0.2,
        "timesyncd/sync_overhead": 0.25,
        "timesyncd/arrival_skew_p50_ns": 1_000,
        "timesyncd/arrival_skew_p99_ns": 9_000,
        "timesyncd/arrival_skew_error_ns": 600,
        "timesyncd/straggler_rank": 1,
        "timesyncd/alignment_ns": 600,
    }


def test_what_is_unknown_is_absent() -> None:
    """An unknown alignment or straggler is a gap in the chart, never a 0; rank 0 as straggler is a value."""
    nothing = Signals(world_size=2, steps_complete=0, steps_incomplete=0)
    rank_0 = Signals(world_size=2, steps_complete=9, steps_incomplete=0, straggler_rank=0)

    assert signal_values(nothing, LocalSignals(steps=0)) == {}
    assert signal_values(rank_0, LocalSignals(steps=0)) == {"timesyncd/straggler_rank": 0}
    assert signal_values(None, LocalSignals(steps=0)) == {}


def test_signals_reach_every_tracker_at_their_step(job: Job) -> None:
    """Each tracker gets the same values; `close` waits for them, and logging goes on after it."""
    first, second = Recorder(), Recorder()
    log = SignalLog(job, first, second, interval_s=0)
    for step in (3, 4):
        log.log(step)
    log.close()
    log.log(5)
    log.close()

    assert [step for _, step in first.got] == [3, 4, 5]
    assert first.got == second.got
    assert first.got[0][0]["timesyncd/sync_overhead"] == 0.25


def test_values_are_logged_once_an_interval(job: Job) -> None:
    """A job of a thousand steps a second does not fill its tracker."""
    tracker = Recorder()
    log = SignalLog(job, tracker, interval_s=3_600)
    for step in range(1_000):
        log.log(step)
    log.close()

    assert [step for _, step in tracker.got] == [0]


def test_rank_0_alone_logs(folder: Path) -> None:
    """The signals are the whole job's: every rank would log the same."""
    tracker = Recorder()
    with job_with_signals(folder, rank=1, **KNOWN) as job:
        log = SignalLog(job, tracker, interval_s=0)
        log.log(0)
        log.close()

    assert tracker.got == []


def test_a_tracker_that_fails_harms_neither_job_nor_the_others(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """One line for each outage; the values after it arrive, and another tracker misses none."""
    failing, good = Recorder(), Recorder()
    log = SignalLog(job, failing, good, interval_s=0)
    for step, error in enumerate([ConnectionError("refused"), ConnectionError("refused"), None, OSError("full")]):
        failing.error = error
        log.log(step)
        log.close()

    assert [step for _, step in failing.got] == [2]
    assert [step for _, step in good.got] == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "Recorder did not take the job's signals: ConnectionError: refused",
        "Recorder did not take the job's signals: OSError: full",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_tracker_that_hangs_delays_no_step(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps go on, the values that find no place are counted, the other tracker gets its own, and `close` gives up."""
    monkeypatch.setattr(signal_log, "CLOSE_TIMEOUT_S", 0.2)
    gate = threading.Event()
    hanging, good = Recorder(gate), Recorder()
    log = SignalLog(job, hanging, good, interval_s=0)
    log.log(0)
    assert hanging.has_begun.wait(TIMEOUT_S)
    for step in range(1, 2 * signal_log.MAX_WAITING + 1):
        log.log(step)
        while len(good.got) <= step:  # so that it is the hanging one alone that drops
            threading.Event().wait(0.001)
    log.close()

    assert hanging.got == []
    assert log.dropped == signal_log.MAX_WAITING
    assert len(good.got) == 2 * signal_log.MAX_WAITING + 1
    gate.set()


def test_no_active_run_is_one_line(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """A tracker that the job has not opened is a line in the log that states what to call."""
    log = SignalLog(job, WeightsAndBiases(), Mlflow(), interval_s=0)
    for step in range(3):
        log.log(step)
    log.close()

    first, second = (record.getMessage() for record in caplog.records)
    assert (
        first
        == "WeightsAndBiases did not take the job's signals: LookupError: no W&B run is active: call wandb.init, or give the run"
    )
    assert second.startswith("Mlflow did not take the job's signals: LookupError: ")


def test_a_copy_logs_nothing(job: Job) -> None:
    """A trainer pickles its callbacks into other processes, where the job is another one."""
    tracker = Recorder()
    copy = pickle.loads(pickle.dumps(SignalLog(job, tracker, interval_s=0)))
    copy.log(0)
    copy.close()

    assert copy.values() is None
