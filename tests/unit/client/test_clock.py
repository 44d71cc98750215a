"""The clock: three scales, three-valued comparisons, steps and suspends, threads and forks."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
from pathlib import Path

import pytest
from published import LOST, publish

from timesyncd.bound import Bound, ClockStatus, Interval, Reason, Reference, unbounded
from timesyncd.client import Clock, GmNs, TaiNs, Timestamp, UtcNs, past
from timesyncd.client import clock as clock_module
from timesyncd.clocks import NS_PER_S

MS = 1_000_000


def test_tai_is_utc_plus_the_removed_seconds(tmp_path: Path) -> None:
    """The same width, 37 s ahead, under TAI's own name."""
    publish(tmp_path)
    clock = Clock(tmp_path)
    utc, tai = clock.now(), clock.tai_now()

    assert utc.latest is not None and tai.earliest is not None
    assert (tai.status, tai.reference) == (ClockStatus.SYNCHRONIZED, Reference.TAI)
    assert 37 * NS_PER_S <= tai.earliest - utc.latest + 2 * 6_000 + MS <= 38 * NS_PER_S


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"utc_seconds_removed": None}, Reason.UTC_OFFSET_UNKNOWN),
        ({"utc_seconds_removed": 0}, Reason.ARBITRARY_TIMESCALE),
        ({"utc_hard": unbounded(Reason.GRANDMASTER_ERROR_NOT_REPORTED)}, Reason.GRANDMASTER_ERROR_NOT_REPORTED),
    ],
)
def test_unknown_tai_has_the_reason(tmp_path: Path, changes: dict[str, object], reason: Reason) -> None:
    """Without the number of removed seconds, with none removed, or without UTC, TAI is unknown."""
    publish(tmp_path, **changes)
    clock = Clock(tmp_path)

    assert clock.tai_now() == Interval(None, None, ClockStatus.UNKNOWN, Reference.TAI)
    assert clock.reason(Reference.TAI) == reason.text


@pytest.mark.parametrize(("scale", "ahead_s"), [(UtcNs, 0), (GmNs, 0), (TaiNs, 37)])
def test_a_timestamp_is_past_or_future_or_undecided(
    tmp_path: Path, scale: type[UtcNs | GmNs | TaiNs], ahead_s: int
) -> None:
    """Each scale uses its own interval; inside the interval it is undecided."""
    publish(tmp_path, gm_hard=Bound(500 * MS), utc_hard=Bound(500 * MS))
    clock = Clock(tmp_path)
    t = scale(time.time_ns() + ahead_s * NS_PER_S)
    moments: list[Timestamp] = [t - NS_PER_S, t, t + NS_PER_S]

    assert [(clock.before(t), clock.after(t)) for t in moments] == [(False, True), (None, None), (True, False)]


def test_with_an_unknown_clock_before_and_after_are_undecided(tmp_path: Path) -> None:
    """Both return None, and raise nothing."""
    clock = Clock(tmp_path)

    assert (clock.before(GmNs(0)), clock.after(GmNs(0))) == (None, None)


def test_an_interval_of_the_fast_path_is_an_interval(tmp_path: Path) -> None:
    """It compares, unpacks, prints, copies and pickles as an Interval."""
    publish(tmp_path)
    clock = Clock(tmp_path)
    clock.gm_now()
    quick = clock.gm_now()
    earliest, latest, status, reference = quick

    assert isinstance(quick, Interval) and type(quick) is not Interval
    assert quick == Interval(earliest, latest, status, reference)
    assert repr(quick) == repr(Interval(*quick))
    assert [type(x) for x in (pickle.loads(pickle.dumps(quick)), copy.copy(quick))] == [Interval, Interval]
    assert quick._replace(earliest=1).earliest == 1


@pytest.mark.parametrize("step_ns", [-3_000, 3_000, NS_PER_S])
def test_the_next_call_detects_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_ns: int) -> None:
    """The fast path is not used after a step of more than 2 us, up or down."""
    publish(tmp_path)
    clock = Clock(tmp_path)
    before = clock.gm_now().status, clock.now().status
    monkeypatch.setattr(clock_module, "_realtime_ns", lambda: time.time_ns() + step_ns)

    assert before == (ClockStatus.SYNCHRONIZED, ClockStatus.SYNCHRONIZED)
    assert (clock.gm_now().status, clock.now().status) == (ClockStatus.DISRUPTED, ClockStatus.DISRUPTED)
    assert clock.reason() == Reason.CLOCK_STEPPED.text


def test_a_suspend_is_no_step_and_counts_as_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """REALTIME and BOOTTIME advance by ten seconds that MONOTONIC does not count: the bound is ten seconds older."""
    publish(tmp_path)
    clock = Clock(tmp_path)
    clock.gm_now()
    monkeypatch.setattr(clock_module, "_realtime_ns", lambda: time.time_ns() + 10 * NS_PER_S)
    real_boottime_ns = past.boottime_ns
    monkeypatch.setattr(past, "boottime_ns", lambda: real_boottime_ns() + 10 * NS_PER_S)
    interval = clock.gm_now()

    assert interval.status is ClockStatus.HOLDOVER
    assert interval.earliest is not None and interval.latest is not None
    assert interval.latest - interval.earliest >= 2 * (5_000 + 501_000)


@pytest.mark.parametrize("growth_ppb", [1, 999, 50_100, 500_000, 900_000_000])
def test_the_bound_of_the_fast_path_is_never_below_the_exact_one(tmp_path: Path, growth_ppb: int) -> None:
    """It is rounded outward, by a nanosecond or two and the growth's own rounding."""
    part = Bound(5_000, growth_ppb)
    publish(tmp_path, gm_hard=part)
    clock = Clock(tmp_path)
    known = clock.snapshot()
    _, _, until_ns, origin_ns, period_ns, *_ = clock._gm

    assert known is not None
    for age_ns in (0, 1, 19_960, NS_PER_S, known.holdover_after_ns - 1):
        exact_ns = part.at(age_ns)
        quick_ns = (until_ns - known.holdover_after_ns + age_ns - origin_ns) // period_ns
        assert exact_ns is not None
        rounded_ns = 3 + (2 * age_ns + exact_ns * growth_ppb) // NS_PER_S
        assert exact_ns <= quick_ns <= exact_ns + rounded_ns


def test_a_bound_that_grows_faster_than_time_uses_the_slow_path(tmp_path: Path) -> None:
    """It grows too fast for the fast path, which is then never used."""
    publish(tmp_path, gm_hard=Bound(5_000, 1_500_000_000))
    clock = Clock(tmp_path)

    assert [clock.gm_now().status for _ in range(3)] == [ClockStatus.SYNCHRONIZED] * 3


def test_threads_share_a_clock(tmp_path: Path) -> None:
    """While two bounds are published in turn, each reader reads one or the other, never a mixture."""
    publish(tmp_path, gm_hard=Bound(5_000))
    clock = Clock(tmp_path)
    clock.gm_now()
    seen: set[int] = set()

    def read() -> None:
        deadline_ns = time.monotonic_ns() + 20 * NS_PER_S
        while len(seen) < 2 and time.monotonic_ns() < deadline_ns:
            earliest, latest, _, _ = clock.gm_now()
            assert earliest is not None and latest is not None
            seen.add(round(latest - earliest, -4))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        publish(tmp_path, gm_hard=Bound(20_000))
        publish(tmp_path, gm_hard=Bound(5_000))
    for thread in threads:
        thread.join()

    assert seen == {10_000, 40_000}


def test_a_forked_child_reads_what_is_published_later(tmp_path: Path) -> None:
    """It continues to read, wait and translate, and so does its parent."""
    publish(tmp_path)
    clock = Clock(tmp_path)
    clock.gm_now()
    ready_read, ready_write = os.pipe()
    deadline_ns = time.monotonic_ns() + 20 * NS_PER_S
    child = os.fork()
    if child == 0:
        good = clock.wait_after(GmNs(time.time_ns()), timeout_s=5).reached is True
        good &= clock.translate(monotonic_ns=time.monotonic_ns()).interval.status is ClockStatus.SYNCHRONIZED
        os.write(ready_write, b"x")
        while clock.gm_now().status is ClockStatus.SYNCHRONIZED and time.monotonic_ns() < deadline_ns:
            pass
        os._exit(0 if good and clock.gm_now().status is ClockStatus.DISRUPTED else 1)
    os.read(ready_read, 1)
    publish(tmp_path, **LOST)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(ready_read)
    os.close(ready_write)

    assert status == 0
    assert clock.gm_now().status is ClockStatus.DISRUPTED
