"""An interval and its reason come from one reading, whatever the daemon publishes between two calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import Seen
from published import LOST, publish

from timesyncd import __main__ as program
from timesyncd.bound import ClockStatus, Interval, Reason, Reference
from timesyncd.client import Clock, GmNs, Job
from timesyncd.client.barrier import own_clock_bound

WHY = Reason.PARENT_CHANGED.text


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder whose clock is DISRUPTED at the first reading and SYNCHRONIZED from the second on."""
    publish(tmp_path, **LOST)
    slow_path = Clock._slow_path

    def published_after(clock: Clock, reference: Reference) -> tuple[Interval, Reason]:
        found = slow_path(clock, reference)
        if clock._reader._path.parent == tmp_path:  # a thread of another test may read its own clock meanwhile
            publish(tmp_path)
        return found

    monkeypatch.setattr(Clock, "_slow_path", published_after)
    return tmp_path


def test_the_segment_changes_between_two_calls(runtime_dir: Path) -> None:
    """The other tests would fail if interval and reason came from two calls."""
    clock = Clock(runtime_dir)

    assert (clock.gm_now().status, clock.reason()) == (ClockStatus.DISRUPTED, "")


def test_read_returns_the_reason_of_its_interval(runtime_dir: Path) -> None:
    """The reason belongs to this interval; the next call reads the newer segment."""
    clock = Clock(runtime_dir)
    first, later = clock.read(), clock.read()

    assert (first.interval.status, first.reason_code, first.reason) == (
        ClockStatus.DISRUPTED,
        Reason.PARENT_CHANGED,
        WHY,
    )
    assert (later.interval.status, later.reason_code, later.reason) == (ClockStatus.SYNCHRONIZED, Reason.OK, "")


def test_now_prints_no_lost_clock_without_its_reason(runtime_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A status that is not SYNCHRONIZED is printed with its reason."""
    program.main(["now", "--runtime-dir", str(runtime_dir)])

    assert capsys.readouterr().out.splitlines()[0].split(maxsplit=2) == ["grandmaster", "DISRUPTED", WHY]


def test_a_wait_returns_the_reason_of_its_last_reading(runtime_dir: Path) -> None:
    """Its first reading found the clock DISRUPTED; interval and reason are of one reading after that."""
    waited = Clock(runtime_dir).wait_until(GmNs(0), timeout_s=0)

    assert (waited.interval.status, waited.reason) == (ClockStatus.SYNCHRONIZED, "")


def test_a_rank_gives_the_reason_why_its_clock_is_not_trusted(runtime_dir: Path) -> None:
    """It becomes the reason of a plain barrier."""
    assert own_clock_bound(Job("job", 0, world_size=1, runtime_dir=runtime_dir)) == (None, WHY)


def test_the_test_bed_records_interval_and_reason_of_one_reading(runtime_dir: Path) -> None:
    """Else tests that watch a clock would fail when the daemon publishes in between."""
    seen = Seen.of(Clock(runtime_dir))

    assert (seen.interval.status, seen.reason) == (ClockStatus.SYNCHRONIZED, "")
