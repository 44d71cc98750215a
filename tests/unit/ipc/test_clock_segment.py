"""The clock segment in memory, and what a client makes of it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Interval, Reason, Reference, Term, interval_now, unbounded
from timesyncd.client import Clock
from timesyncd.clocks import NS_PER_S, SystemClocks, boot_id, real_minus_boot_ns, time_namespace
from timesyncd.ipc import clock_segment, seqlock

EPOCH = clock_segment.Epoch(boot_id(), time_namespace())


def bound_now(**changes: object) -> ErrorBound:
    clocks = SystemClocks()
    bound = ErrorBound(
        as_of_ns=clocks.boottime_ns(),
        real_minus_boot_ns=real_minus_boot_ns(clocks, 100),
        parent_hard=Bound(4_000, 50_100),
        gm_hard=Bound(5_000, 50_100),
        utc_hard=unbounded(Reason.ARBITRARY_TIMESCALE),
        gm_status=ClockStatus.SYNCHRONIZED,
        utc_status=ClockStatus.UNKNOWN,
        grandmaster_identity="ff1122.fffe.334455",
        parent_identity="001122.fffe.334455",
        utc_seconds_removed=0,
        clock="realtime",
        terms={Term.OFFSET: -3, Term.PATH_DELAY: 2_000},
    )
    return replace(bound, **changes)  # type: ignore[arg-type]


def writer(folder: Path) -> seqlock.SegmentWriter:
    return seqlock.SegmentWriter(
        folder / clock_segment.NAME, clock_segment.MAGIC, clock_segment.LAYOUT_VERSION, clock_segment.WORD_COUNT
    )


def publish(folder: Path, bound: ErrorBound, epoch: clock_segment.Epoch = EPOCH) -> seqlock.SegmentWriter:
    made = writer(folder)
    made.write(clock_segment.encode(bound, epoch))
    return made


def remap_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seqlock, "_REMAP_INTERVAL_NS", 0)


def test_what_is_written_is_read() -> None:
    """
    Every field survives, absent ones as absent and identities with their top bit.
    """
    bound = bound_now(utc_seconds_removed=None, clock="phc:3")

    assert clock_segment.decode(clock_segment.encode(bound, EPOCH)) == (bound, EPOCH)


def test_the_interval_holds_the_clock_and_has_the_bound_s_width(tmp_path: Path) -> None:
    """
    Earliest and latest lie around CLOCK_REALTIME by the bound as it has grown.
    """
    publish(tmp_path, bound_now())
    clock = Clock(tmp_path)
    for interval in (clock.gm_now(), clock.gm_now()):
        assert interval.status is ClockStatus.SYNCHRONIZED
        assert interval.reference is Reference.GRANDMASTER
        assert interval.earliest is not None and interval.latest is not None
        assert 10_000 <= interval.latest - interval.earliest <= 10_000 + 2 * 5 * 50_100
    assert clock.reason() == ""


def test_utc_is_unknown_with_its_reason(tmp_path: Path) -> None:
    """
    The grandmaster's bound is never given as UTC's.
    """
    publish(tmp_path, bound_now())
    clock = Clock(tmp_path)

    assert clock.now() == Interval(None, None, ClockStatus.UNKNOWN, Reference.UTC)
    assert "arbitrary timescale" in clock.reason(Reference.UTC)


def test_without_a_segment_the_time_is_unknown_until_the_daemon_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A client that was opened first finds the segment later, and never raises.
    """
    clock = Clock(tmp_path)
    before, why = clock.gm_now(), clock.reason()
    remap_at_once(monkeypatch)
    publish(tmp_path, bound_now())

    assert before == Interval(None, None, ClockStatus.UNKNOWN, Reference.GRANDMASTER)
    assert "start timesyncd" in why
    assert clock.gm_now().status is ClockStatus.SYNCHRONIZED


def test_a_reinstalled_daemon_s_new_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When the mapped file no longer is the one at the path, the client changes over.
    """
    remap_at_once(monkeypatch)
    publish(tmp_path, bound_now(as_of_ns=0))
    clock = Clock(tmp_path)
    stale = clock.gm_now()
    (tmp_path / clock_segment.NAME).unlink()
    publish(tmp_path, bound_now())
    clock.gm_now()

    assert stale.status is not ClockStatus.SYNCHRONIZED
    assert clock.gm_now().status is ClockStatus.SYNCHRONIZED


@pytest.mark.parametrize(
    ("changes", "epoch", "reason"),
    [
        ({}, clock_segment.Epoch(EPOCH.boot_id ^ 1, EPOCH.time_namespace), Reason.OTHER_BOOT),
        ({}, clock_segment.Epoch(EPOCH.boot_id, EPOCH.time_namespace + 1), Reason.OTHER_TIME_NAMESPACE),
        ({"as_of_ns": 2**62}, EPOCH, Reason.AS_OF_IN_FUTURE),
        ({"as_of_ns": -(2**61)}, EPOCH, Reason.EXPIRED),
        (
            {"gm_hard": unbounded(Reason.PARENT_CHANGED), "gm_status": ClockStatus.DISRUPTED},
            EPOCH,
            Reason.PARENT_CHANGED,
        ),
        ({"real_minus_boot_ns": 12_345}, EPOCH, Reason.CLOCK_STEPPED),
    ],
)
def test_never_a_confident_wrong_interval(
    tmp_path: Path, changes: dict[str, object], epoch: clock_segment.Epoch, reason: Reason
) -> None:
    """
    Another boot, another time namespace, a future or ancient segment, a disruption, a step: no interval, and the reason.
    """
    publish(tmp_path, bound_now(**changes), epoch)
    clock = Clock(tmp_path)
    interval = clock.gm_now()

    assert (interval.earliest, interval.latest) == (None, None)
    assert interval.status in (ClockStatus.UNKNOWN, ClockStatus.DISRUPTED)
    assert clock.reason() == reason.text


def test_the_bound_grows_in_holdover() -> None:
    """
    Ten seconds at 50 100 ppb add 501 us to 5 us.
    """
    bound = bound_now(as_of_ns=1_000 * NS_PER_S, real_minus_boot_ns=0)
    at = 1_010 * NS_PER_S
    interval, reason = interval_now(bound, Reference.GRANDMASTER, lambda: (at, at))

    assert (interval.status, reason) == (ClockStatus.HOLDOVER, Reason.STALE)
    assert interval.latest == at + 5_000 + 501_000


def test_a_preempted_reading_is_no_step() -> None:
    """
    A pause between the two clock reads looks like a step back; the best of three readings counts.
    """
    bound = bound_now(as_of_ns=0, real_minus_boot_ns=0)
    readings = iter([(0, 1_000_000), (1_000_000, 1_900_000), (2_000_000, 2_000_000)])

    assert interval_now(bound, Reference.GRANDMASTER, lambda: next(readings))[0].status is ClockStatus.SYNCHRONIZED


def test_a_writer_that_died_during_a_write_leaves_the_cached_value(tmp_path: Path) -> None:
    """
    The generation stays odd for ever: a client that had read it continues with the ageing payload; a new one reports the torn segment.
    """
    made = publish(tmp_path, bound_now())
    clock = Clock(tmp_path)
    first = clock.gm_now()
    made._words[seqlock.GENERATION] += 1
    made._words[seqlock.PAYLOAD + 3] = 0

    assert clock.gm_now().status is first.status is ClockStatus.SYNCHRONIZED
    assert Clock(tmp_path).gm_now().status is ClockStatus.UNKNOWN


def test_a_restarted_writer_keeps_the_file(tmp_path: Path) -> None:
    """
    One inode for ever, so that mapped readers survive; also when the former writer died in the middle.
    """
    made = publish(tmp_path, bound_now())
    inode = (tmp_path / clock_segment.NAME).stat().st_ino
    clock = Clock(tmp_path)
    clock.gm_now()
    made._words[seqlock.GENERATION] += 1
    publish(tmp_path, bound_now(gm_hard=Bound(70_000, 0)))
    interval = clock.gm_now()

    assert (tmp_path / clock_segment.NAME).stat().st_ino == inode
    assert interval.latest is not None and interval.earliest is not None
    assert interval.latest - interval.earliest >= 140_000


def test_a_corrupted_word_is_not_believed(tmp_path: Path) -> None:
    """
    The checksum covers generation and payload.
    """
    made = publish(tmp_path, bound_now())
    made._words[seqlock.PAYLOAD + 11] ^= 1

    assert Clock(tmp_path).gm_now().status is ClockStatus.UNKNOWN


def test_readers_never_see_a_torn_value(tmp_path: Path) -> None:
    """
    Another process writes words that are all equal; no reader ever sees two that differ.
    """
    path = tmp_path / "words"
    made = seqlock.SegmentWriter(path, 1, 1, 16)
    made.write([0] * 16)
    reader = seqlock.SegmentReader(path, 1, 1, 16)
    reader.read()
    child = os.fork()
    if child == 0:
        for value in itertools.count(1):
            made.write([value] * 16)
    seen: set[tuple[int, ...] | None] = set()
    deadline = time.monotonic() + 60
    while len(seen) < 200 and time.monotonic() < deadline:
        seen.add(reader.read())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    assert len(seen) == 200
    assert all(words is not None and len(set(words)) == 1 for words in seen)


def test_it_works_over_a_fork(tmp_path: Path) -> None:
    """
    A child of the process that opened the clock reads what is published after the fork.
    """
    made = publish(tmp_path, bound_now())
    clock = Clock(tmp_path)
    clock.gm_now()
    child = os.fork()
    if child == 0:
        made.write(
            clock_segment.encode(bound_now(gm_hard=unbounded(Reason.EXPIRED), gm_status=ClockStatus.UNKNOWN), EPOCH)
        )
        os._exit(int(clock.gm_now().status is not ClockStatus.UNKNOWN))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert clock.gm_now().status is ClockStatus.UNKNOWN


def test_a_negative_index_names_no_phc() -> None:
    """No daemon writes one; what is read of it can be written again."""
    words = clock_segment.encode(bound_now(clock="phc:3"), EPOCH)
    words[words.index(3)] = -1
    bound, epoch = clock_segment.decode(words)

    assert bound.clock == "phc"
    assert clock_segment.decode(clock_segment.encode(bound, epoch)) == (bound, epoch)
