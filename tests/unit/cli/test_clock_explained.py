"""An interval and the reason that is told with it are of one reading, whatever the daemon publishes between two calls."""

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
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the clock is lost, and known again as soon as a client has looked once."""
    publish(tmp_path, **LOST)
    carefully = Clock._carefully

    def published_after(clock: Clock, reference: Reference) -> tuple[Interval, Reason]:
        found = carefully(clock, reference)
        publish(tmp_path)
        return found

    monkeypatch.setattr(Clock, "_carefully", published_after)
    return tmp_path


def test_the_place_changes_between_two_calls(place: Path) -> None:
    """So each of the others would fail by one call for the interval and another for the reason."""
    clock = Clock(place)

    assert (clock.gm_now().status, clock.reason()) == (ClockStatus.DISRUPTED, "")


def test_the_clock_explains_the_interval_that_it_gives(place: Path) -> None:
    """The reason is of this interval; the next call sees what came after."""
    clock = Clock(place)
    first, later = clock.explained(), clock.explained()

    assert (first.interval.status, first.reason) == (ClockStatus.DISRUPTED, WHY)
    assert (later.interval.status, later.reason) == (ClockStatus.SYNCHRONIZED, "")


def test_now_prints_no_lost_clock_without_its_reason(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 3 a.m. a DISRUPTED with nothing after it helps nobody."""
    program.main(["now", "--runtime-dir", str(place)])

    assert capsys.readouterr().out.splitlines()[0].split(maxsplit=2) == ["grandmaster", "DISRUPTED", WHY]


def test_a_wait_tells_why_of_what_it_saw(place: Path) -> None:
    """Its first look found the clock lost; the interval and the reason are of one look after that."""
    waited = Clock(place).wait_until(GmNs(0), timeout_s=0)

    assert (waited.interval.status, waited.reason) == (ClockStatus.SYNCHRONIZED, "")


def test_a_rank_says_why_its_clock_is_not_to_be_trusted(place: Path) -> None:
    """To all ranks, as the reason of a plain barrier."""
    assert own_clock_bound(Job("job", 0, world_size=1, runtime_dir=place)) == (None, WHY)


def test_a_watch_records_what_belongs_together(place: Path) -> None:
    """Or tests that watch a clock would fail by the daemon's next word."""
    seen = Seen.of(Clock(place))

    assert (seen.interval.status, seen.reason) == (ClockStatus.SYNCHRONIZED, "")
