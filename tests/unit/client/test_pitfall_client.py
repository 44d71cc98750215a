"""Pitfalls of the client: a daemon that is stopped, not started yet, or on another scale."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
from fake_clocks import FakeClocks
from published import good_bound, publish
from samples import nth

from timesyncd.bound import Bound, ClockStatus, Interval, Reason, Reference, interval_now
from timesyncd.client import Clock, TaiNs, UtcNs
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc import seqlock
from timesyncd.model.ensemble import Ensemble
from timesyncd.model.error_bound import EnsembleSettings


def test_pitfall_04_the_window_grows_while_the_daemon_is_stopped() -> None:
    """No daemon writes any more: wider with each second, then unknown, and never 0."""
    clocks = FakeClocks()
    bound = good_bound(
        as_of_ns=clocks.boot_ns, real_minus_boot_ns=clocks.real_ns - clocks.boot_ns, gm_hard=Bound(5_000, 1_000)
    )
    intervals = []
    for _ in range(1_001):
        intervals.append(interval_now(bound, Reference.GRANDMASTER, lambda: (clocks.real_ns, clocks.boot_ns))[0])
        clocks.advance(NS_PER_S)
    widths = [latest - earliest for earliest, latest, *_ in intervals if earliest is not None and latest is not None]

    assert widths == [2 * (5_000 + 1_000 * age_s) for age_s in range(1_000)]
    assert [each.status for each in intervals[::200]] == [
        ClockStatus.SYNCHRONIZED,
        *[ClockStatus.HOLDOVER] * 4,
        ClockStatus.UNKNOWN,
    ]
    assert intervals[-1] == Interval(None, None, ClockStatus.UNKNOWN, Reference.GRANDMASTER)


def test_pitfall_06_tai_and_utc_cannot_be_mixed_up(tmp_path: Path) -> None:
    """37 s apart, they are two types that neither compare nor subtract, and the clock answers each on its own scale."""
    publish(tmp_path)
    clock = Clock(tmp_path)
    utc_ns = clock.now().latest
    assert utc_ns is not None
    in_20_s = utc_ns + 20 * NS_PER_S
    utc, tai = UtcNs(in_20_s), TaiNs(in_20_s)

    assert (clock.before(utc), clock.after(utc)) == (True, False)
    assert (clock.before(tai), clock.after(tai)) == (False, True)
    for mix in (operator.lt, operator.ge, operator.sub, operator.add):
        with pytest.raises(TypeError):
            mix(tai, utc)
    with pytest.raises(TypeError, match="has no scale"):
        clock.before(in_20_s)  # type: ignore[arg-type]


@pytest.mark.parametrize("announced_s", [0, 36, 38, None])
def test_another_utc_offset_than_is_taken_out_leaves_utc_unknown(announced_s: int | None) -> None:
    """
    ptp4l removes its own 37 s whatever Announce states: where Announce states another number, it is unknown which is right.
    """
    ensemble = Ensemble({"ptp": EnsembleSettings()})
    announced = {"ptp_timescale": True, "time_traceable": True, "current_utc_offset_s": announced_s}
    bound = [ensemble.accept(nth(index, **announced)).bound for index in range(12)][-1]

    assert bound is not None
    assert (bound.gm_status, bound.utc_status, bound.utc_seconds_removed) == (
        ClockStatus.SYNCHRONIZED, ClockStatus.UNKNOWN, 37,
    )  # fmt: skip
    assert bound.utc_hard.reason is (Reason.UTC_OFFSET_UNKNOWN if announced_s is None else Reason.UTC_OFFSET_DIFFERS)


def test_pitfall_19_a_consumer_may_start_before_the_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder need not exist: the clock is unknown, and finds the segment once it is created."""
    monkeypatch.setattr(seqlock, "_REMAP_INTERVAL_NS", 0)
    folder = tmp_path / "timesyncd"
    clock = Clock(folder)
    before = clock.gm_now(), clock.reason()
    folder.mkdir()
    empty = clock.gm_now(), clock.reason()
    publish(folder)

    assert before == empty == (Interval(None, None, ClockStatus.UNKNOWN, Reference.GRANDMASTER), Reason.NO_SEGMENT.text)
    assert clock.gm_now().status is ClockStatus.SYNCHRONIZED
