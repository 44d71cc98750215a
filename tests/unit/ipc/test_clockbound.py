"""The ClockBound v2 segment, read by its published layout alone."""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Interval, Reason, Reference, interval_now, unbounded
from timesyncd.clocks import NS_PER_S, SystemClocks, real_minus_boot_ns
from timesyncd.errors import ConfigError
from timesyncd.ipc import clockbound
from timesyncd.ipc.clockbound import ClockBoundWriter, content

UNKNOWN, SYNCHRONIZED, FREE_RUNNING, DISRUPTED = range(4)

#: The statuses of ours that each of theirs may represent: theirs may claim less about a clock, never more.
NOT_BETTER = {
    ClockStatus.SYNCHRONIZED: {SYNCHRONIZED, FREE_RUNNING, UNKNOWN},
    ClockStatus.HOLDOVER: {FREE_RUNNING, UNKNOWN},
    ClockStatus.UNKNOWN: {UNKNOWN},
    ClockStatus.DISRUPTED: {DISRUPTED},
}


class Refused(Exception):
    """Their reader gives an error instead of a time."""


class Theirs(NamedTuple):
    """What a client of theirs gets."""

    earliest: int
    latest: int
    status: int


def at(data: bytes, real_ns: int, monotonic_ns: int) -> Theirs:
    """The reader's arithmetic, on the 64 bytes after the header; fractions and truncation as in a client."""
    as_of_s, as_of_n, expiry_s, expiry_n, bound_ns = struct.unpack_from("=5q", data)
    [marker], [drift_ppb], [status], [support] = (
        struct.unpack_from(code, data, at) for code, at in (("=Q", 40), ("=I", 48), ("=i", 52), ("=B", 56))
    )
    as_of_ns, expiry_ns = as_of_s * NS_PER_S + as_of_n, expiry_s * NS_PER_S + expiry_n
    if drift_ppb >= 10**9 or monotonic_ns <= as_of_ns - 1000:
        raise Refused
    if status in (SYNCHRONIZED, FREE_RUNNING) and monotonic_ns >= as_of_ns + 5 * NS_PER_S:
        status = FREE_RUNNING if monotonic_ns < expiry_ns else UNKNOWN
    age_s = max(monotonic_ns - as_of_ns, 0) / 1e9
    width_ns = bound_ns + int(age_s * drift_ppb)

    assert bound_ns >= 0
    # Padding, which no client of theirs reads: by it timesyncd knows its own segment.
    assert (marker, support, data[57:]) == (0, 0, b"timesyn")
    assert 0 <= as_of_n < NS_PER_S and 0 <= expiry_n < NS_PER_S
    return Theirs(real_ns - width_ns, real_ns + width_ns, status)


class Reader:
    """A client: it maps the file once, for ever, and keeps a snapshot as long as the generation does not change."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._snapshot = bytes(64)
        self._of = 0
        if self._header()[:2] != (0x414D5A4E, 0x43420200) or 0 in self._header()[3:]:
            raise Refused
        assert self._header()[2] == len(self._map) == 80

    def _header(self) -> tuple[int, ...]:
        return struct.unpack_from("=IIIHH", self._map)

    @property
    def generation(self) -> int:
        return self._header()[4]

    def snapshot(self) -> bytes:
        version, first = self._header()[3:]
        assert version == 2
        while first not in (0, self._of) and first % 2 == 0:
            copy, second = self._map[16:80], self.generation
            if first == second:
                self._snapshot, self._of = copy, first
            first = second
        return self._snapshot

    def now(self) -> Theirs:
        real_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        return at(self.snapshot(), real_ns, time.clock_gettime_ns(time.CLOCK_MONOTONIC))


def bound_now(**changes: object) -> ErrorBound:
    clocks = SystemClocks()
    bound = ErrorBound(
        as_of_ns=clocks.boottime_ns(),
        real_minus_boot_ns=real_minus_boot_ns(clocks, 100),
        parent_hard=Bound(1_000),
        gm_hard=Bound(2_000),
        utc_hard=Bound(5_000, 50_100),
        gm_status=ClockStatus.SYNCHRONIZED,
        utc_status=ClockStatus.SYNCHRONIZED,
    )
    return replace(bound, **changes)  # type: ignore[arg-type]


NANOSECONDS = st.integers(0, 10**12)
AGES = st.integers(0, 2 * 10**12)
HARD = st.builds(Bound, NANOSECONDS, NANOSECONDS) | st.builds(Bound, NANOSECONDS, st.integers(0, 10**6))
BOUNDS = st.builds(
    ErrorBound,
    as_of_ns=st.integers(0, 10**18),
    real_minus_boot_ns=st.just(1_700_000_000 * NS_PER_S),
    parent_hard=st.just(Bound(1)),
    gm_hard=st.just(Bound(1)),
    utc_hard=HARD | st.just(unbounded(Reason.UTC_OFFSET_UNKNOWN)),
    gm_status=st.sampled_from(ClockStatus),
    utc_status=st.sampled_from(ClockStatus),
    holdover_after_ns=st.integers(1, 10**10) | st.just(5 * NS_PER_S),
    void_after_ns=st.integers(1, 10**13) | st.just(1000 * NS_PER_S),
)


def ours_and_theirs(bound: ErrorBound, written_age_ns: int, age_ns: int, suspended_ns: int) -> tuple[Interval, Theirs]:
    """Written at one age and read at a later one, by their clock that stood still for a while before."""
    data = content(bound, bound.as_of_ns + written_age_ns, suspended_ns)
    boot_ns = bound.as_of_ns + age_ns
    real_ns = boot_ns + bound.real_minus_boot_ns
    ours, _ = interval_now(bound, Reference.UTC, lambda: (real_ns, boot_ns))
    return ours, at(data, real_ns, boot_ns - suspended_ns)


@given(BOUNDS, AGES, AGES, st.integers(0, 10**18))
def test_theirs_is_never_better_than_ours(bound: ErrorBound, one: int, other: int, suspended_ns: int) -> None:
    """Theirs has no better status than ours, and an interval that holds ours; without a bound, one of 62 years."""
    ours, theirs = ours_and_theirs(bound, min(one, other), max(one, other), suspended_ns)
    real_ns = bound.as_of_ns + max(one, other) + bound.real_minus_boot_ns

    assert theirs.status in NOT_BETTER[ours.status]
    if ours.earliest is not None and ours.latest is not None:
        assert theirs.earliest <= ours.earliest and ours.latest <= theirs.latest
    elif bound.utc_hard.bound_ns is None:
        assert (theirs.earliest, theirs.latest) == (real_ns - 10**18, real_ns + 10**18)


@given(BOUNDS, st.integers(0, 1000 * NS_PER_S - 1), st.integers(0, 10**18))
def test_theirs_is_as_good_as_ours_where_the_layout_allows_it(
    bound: ErrorBound, age_ns: int, suspended_ns: int
) -> None:
    """With the usual holdover, and a drift below 1 s/s, the status is the same and the bound at most 2 ns more."""
    bound = replace(bound, holdover_after_ns=5 * NS_PER_S, void_after_ns=1000 * NS_PER_S)
    ours, theirs = ours_and_theirs(bound, 0, age_ns, suspended_ns)
    usual = {ClockStatus.SYNCHRONIZED: SYNCHRONIZED, ClockStatus.HOLDOVER: FREE_RUNNING}

    if ours.latest is not None and bound.utc_hard.growth_ppb < 10**9:
        assert theirs.status == usual[ours.status]
        assert theirs.latest - ours.latest <= 2


@pytest.mark.parametrize(
    ("age_ns", "status"),
    [(2 * NS_PER_S - 1, SYNCHRONIZED), (2 * NS_PER_S, FREE_RUNNING), (3 * NS_PER_S, UNKNOWN)],
)
def test_a_shorter_holdover_than_theirs_is_kept(age_ns: int, status: int) -> None:
    """Their five seconds end when ours do: as_of is dated back, and the bound at any moment is the same."""
    bound = bound_now(holdover_after_ns=2 * NS_PER_S, void_after_ns=3 * NS_PER_S, utc_hard=Bound(10**6, 50_100))
    _, theirs = ours_and_theirs(bound, 0, age_ns, 0)
    wanted = bound.utc_hard.at(age_ns)

    assert theirs.status == status
    assert wanted is not None and 0 <= (theirs.latest - theirs.earliest) // 2 - wanted <= 2


@pytest.mark.parametrize(("age_ns", "status"), [(1000 * NS_PER_S - 1, FREE_RUNNING), (1000 * NS_PER_S, UNKNOWN)])
def test_a_bound_expires_no_later_than_with_their_daemon(age_ns: int, status: int) -> None:
    """A holdover and a life of hours are theirs for 5 s and for 1000 s."""
    bound = bound_now(holdover_after_ns=10**13, void_after_ns=10**13)

    assert ours_and_theirs(bound, 0, age_ns, 0)[1].status == status


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"utc_hard": unbounded(Reason.ARBITRARY_TIMESCALE)}, UNKNOWN),
        ({"utc_status": ClockStatus.UNKNOWN}, UNKNOWN),
        ({"utc_status": ClockStatus.DISRUPTED, "utc_hard": unbounded(Reason.CLOCK_STEPPED)}, DISRUPTED),
        ({"utc_hard": Bound(5_000, 10**9)}, UNKNOWN),
        ({"utc_hard": Bound(5_000, 2**32)}, UNKNOWN),
        ({"utc_hard": Bound(10**18, 0)}, UNKNOWN),
        ({"as_of_ns": 2**62}, UNKNOWN),
    ],
)
def test_what_is_not_bounded_is_refused(tmp_path: Path, changes: dict[str, object], status: int) -> None:
    """No bound, a disruption, a drift too steep, a date in the future: the status is UNKNOWN, over 62 years."""
    ClockBoundWriter(tmp_path / "shm0").write(bound_now(**changes))
    theirs = Reader(tmp_path / "shm0").now()

    assert theirs.status == status
    assert theirs.latest - theirs.earliest == 2 * 10**18


def test_after_a_resume_the_age_is_whole_once_it_is_written_again() -> None:
    """CLOCK_MONOTONIC stood still for 900 s: the bound is taken for fresh until the next write, and no longer."""
    bound = bound_now(as_of_ns=NS_PER_S, utc_hard=Bound(5_000, 1_000), void_after_ns=10**13, holdover_after_ns=10**13)
    asleep_ns = 900 * NS_PER_S
    monotonic_ns = 2 * NS_PER_S
    gap = at(content(bound, NS_PER_S, 0), 0, monotonic_ns)
    whole = at(content(bound, monotonic_ns + asleep_ns, asleep_ns), 0, monotonic_ns)

    assert gap == Theirs(-6_001, 6_001, SYNCHRONIZED)
    assert whole == Theirs(-906_001, 906_001, FREE_RUNNING)


def test_it_holds_the_time(tmp_path: Path) -> None:
    """What was just written reads as synchronized, with the bound's width and its growth since."""
    ClockBoundWriter(tmp_path / "shm0").write(bound_now())
    theirs = Reader(tmp_path / "shm0").now()

    assert theirs.status == SYNCHRONIZED
    assert 10_000 <= theirs.latest - theirs.earliest <= 10_000 + 2 * 5 * 50_100


def test_suspension_is_never_understated() -> None:
    """The difference of the two clocks errs upward, so that an age does."""
    monotonic_first = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    measured = clockbound.suspended_ns()

    assert measured >= 0
    assert abs(measured - (boottime_ns - monotonic_first)) < NS_PER_S


def test_a_file_without_a_bound_is_refused_as_not_initialized(tmp_path: Path) -> None:
    """The file is there from the start, in a folder of its own, readable by all; generation 0: nothing was written."""
    path = tmp_path / "run" / "clockbound" / "shm0"
    ClockBoundWriter(path)

    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["shm0"]
    with pytest.raises(Refused):
        Reader(path)


def test_a_restart_keeps_the_file_and_its_content(tmp_path: Path) -> None:
    """A mapped client goes on with the former writer's bound, and sees the new writer's."""
    path = tmp_path / "shm0"
    first = ClockBoundWriter(path)
    first.write(bound_now())
    reader, inode = Reader(path), path.stat().st_ino
    first.close()
    second = ClockBoundWriter(path)
    between = Reader(path).now()
    second.write(bound_now(utc_hard=Bound(10**9)))

    assert between.status == SYNCHRONIZED
    assert reader.now().latest - reader.now().earliest >= 2 * 10**9 - 10**6
    assert path.stat().st_ino == inode


def generation(path: Path, new: int) -> None:
    with path.open("r+b") as file:
        file.seek(14)
        file.write(struct.pack("=H", new))


def test_a_write_that_was_interrupted_is_continued(tmp_path: Path) -> None:
    """At an odd generation a client keeps its snapshot; the next writer ends the odd one."""
    path = tmp_path / "shm0"
    ClockBoundWriter(path).write(bound_now())
    reader = Reader(path)
    kept = reader.snapshot()
    generation(path, 3)
    with path.open("r+b") as file:
        file.seek(48)
        file.write(bytes(8))
    torn = reader.snapshot()
    ClockBoundWriter(path).write(bound_now(utc_hard=Bound(10**9)))

    assert torn == kept
    assert (reader.generation, reader.now().status) == (4, SYNCHRONIZED)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 4), (65532, 65534), (65534, 2), (65533, 65534), (65535, 2)])
def test_the_generation_wraps_past_zero(tmp_path: Path, before: int, after: int) -> None:
    """After 65534 comes 2: 0 would mean that nothing was ever written. An odd one that was left is ended."""
    path = tmp_path / "shm0"
    made = ClockBoundWriter(path)
    generation(path, before)
    made.write(bound_now())

    assert Reader(path).generation == after


def test_another_writer_s_unfinished_segment_is_taken_over(tmp_path: Path) -> None:
    """Magic and size right, version and generation 0: what ClockBound's daemon leaves if it dies at its start."""
    path = tmp_path / "shm0"
    path.write_bytes(struct.pack("=IIIHH", 0x414D5A4E, 0x43420200, 80, 0, 0).ljust(80, b"\0"))
    ClockBoundWriter(path).write(bound_now())

    assert Reader(path).now().status == SYNCHRONIZED


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"precious",
        b"precious".ljust(80),
        struct.pack("=IIIHH", 0x414D5A4E, 0x43420200, 80, 3, 2).ljust(80, b"\0"),
        struct.pack("=IIIHH", 0x414D5A4E, 0x43420200, 80, 2, 2),
    ],
    ids=["empty", "short", "foreign", "later version", "cut off"],
)
def test_another_file_is_left_alone(tmp_path: Path, held: bytes) -> None:
    """A wrong path in the configuration overwrites no file."""
    path = tmp_path / "shm0"
    path.write_bytes(held)

    with pytest.raises(ConfigError, match="is not a ClockBound v2 segment"):
        ClockBoundWriter(path)
    assert path.read_bytes() == held


def test_clients_never_see_a_torn_value(tmp_path: Path) -> None:
    """Another process writes bounds whose drift is their width; no client ever sees two that differ."""
    path = tmp_path / "shm0"
    made = ClockBoundWriter(path)
    bound = bound_now(utc_hard=Bound(0, 0))
    made.write(bound)
    reader = Reader(path)
    reader.snapshot()  # a client keeps its last one while a write is under way; its very first would be zeros
    child = os.fork()
    if child == 0:
        for width in itertools.cycle(range(10**6)):
            made.write(replace(bound, utc_hard=Bound(width, width)))
    seen: set[tuple[int, int]] = set()
    deadline = time.monotonic() + 60
    until = time.monotonic() + 1
    while time.monotonic() < until or (len(seen) < 200 and time.monotonic() < deadline):
        width_ns, _, drift_ppb = struct.unpack_from("=qQI", reader.snapshot(), 32)
        seen.add((width_ns, drift_ppb))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    assert len(seen) >= 200
    assert {width_ns - drift_ppb for width_ns, drift_ppb in seen} == {1}
