"""torchcomms' clock, served from the segment: UTC with its error, and no error of 0 where none is known."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from published import publish

from timesyncd.bound import Bound, ClockStatus, Reason, unbounded
from timesyncd.client import UtcNs
from timesyncd.client.precision_clock import PrecisionClock

UNKNOWN: dict[str, object] = {"utc_hard": unbounded(Reason.UTC_OFFSET_UNKNOWN), "utc_status": ClockStatus.UNKNOWN}


def test_the_five_calls_agree(tmp_path: Path) -> None:
    """The range holds CLOCK_REALTIME, its middle is the time, and its half the error: 1 ms here, and what has grown."""
    publish(tmp_path, utc_hard=Bound(1_000_000, 100))
    clock = PrecisionClock(tmp_path)
    before_ns = time.time_ns()
    known, now_ns, now, error_ns = clock.range_ns(), clock.now_ns(), clock.now(), clock.error_ns()
    after_ns = time.time_ns()

    assert known is not None and error_ns is not None and clock.using_ptp()
    assert isinstance(known[0], UtcNs) and isinstance(now_ns, UtcNs)
    assert known[0] <= UtcNs(before_ns) <= UtcNs(after_ns) + 2_000_000 and UtcNs(before_ns) <= known[1]
    assert UtcNs(before_ns) <= now_ns <= UtcNs(after_ns)
    assert before_ns // 1_000 <= (now - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6 + 1
    assert 1_000_000 <= error_ns


@pytest.mark.parametrize("changes", [UNKNOWN, None])
def test_an_unknown_error_is_none(tmp_path: Path, changes: dict[str, object] | None) -> None:
    """Without a bound on UTC, and without a daemon; the time is CLOCK_REALTIME's then."""
    if changes is not None:
        publish(tmp_path, **changes)
    clock, before_ns = PrecisionClock(tmp_path), time.time_ns()

    assert (clock.range_ns(), clock.error_ns(), clock.using_ptp()) == (None, None, False)
    assert UtcNs(before_ns) <= clock.now_ns() <= UtcNs(time.time_ns())


def test_it_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchcomms' own is: NCCL_USE_PTP=0."""
    publish(tmp_path)
    monkeypatch.setenv("NCCL_USE_PTP", "0")

    assert not PrecisionClock(tmp_path).using_ptp()


def test_a_daemon_that_starts_or_loses_its_clock_later_counts(tmp_path: Path) -> None:
    """No answer is kept for the life of the process."""
    publish(tmp_path, **UNKNOWN)
    clock = PrecisionClock(tmp_path)
    before = clock.using_ptp()
    publish(tmp_path)
    during = clock.using_ptp()
    publish(tmp_path, **UNKNOWN)

    assert (before, during, clock.using_ptp()) == (False, True, False)
