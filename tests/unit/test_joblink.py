"""The datagram's codec and the job segment's layout."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import ClockStatus
from timesyncd.errors import Malformed
from timesyncd.joblink import (
    MARK_SIZE,
    MAX_MARKS,
    MAX_RANKS,
    SIGNALS_VOID_AFTER_NS,
    Header,
    JobReader,
    JobWriter,
    Kind,
    Mark,
    Plan,
    Signals,
    decode,
    decode_segment,
    encode_header,
    encode_segment,
    job_id,
    pack_mark,
)
from timesyncd.segment import Epoch

HEADER = Header(
    job="llm-7b",
    attempt=2,
    rank=3,
    world_size=4,
    node="node-ä",
    boot_id=0x0123456789ABCDEF0123456789ABCDEF,
    time_namespace=4_026_531_834,
    real_minus_boot_ns=-5,
    status=ClockStatus.HOLDOVER,
    gm_bound_ns=0,
    utc_bound_ns=None,
    utc_seconds_removed=37,
    grandmaster_identity="001122.fffe.334455",
    lost=9,
)
MARKS = (Mark(7, 0, Kind.ALL_REDUCE, 1_000, 1_100, 2_000, 4_096), Mark(7, 1, Kind.BARRIER, -1, 0, 2**63 - 1, 0))

EPOCH = Epoch(2**127 + 5, 4_026_531_834)
PLAN = Plan(version=3, from_step=100, mode="timed", slack_ns=500_000, guard_ns=20_000)
SIGNALS = Signals(
    world_size=3,
    steps_complete=90,
    steps_incomplete=1,
    step=91,
    sync_overhead=0.125,
    arrival_skew_ns=5_000_000,
    arrival_skew_p50_ns=4_900_000,
    arrival_skew_error_ns=12_000,
    last_rank=1,
    slow_rank=0,
    alignment_ns=10_000,
    alignment_growth_ppb=100_000,
    wait_p50_ns=(0, 4_900_000, None),
)


def datagram(header: Header = HEADER, marks: tuple[Mark, ...] = MARKS) -> bytes:
    body = bytearray(len(marks) * MARK_SIZE)
    for index, mark in enumerate(marks):
        pack_mark(body, index * MARK_SIZE, *mark)
    return encode_header(header, len(marks)) + body


@pytest.mark.parametrize("change", [{}, {"gm_bound_ns": None, "utc_bound_ns": 7}, {"grandmaster_identity": None}])
def test_a_datagram_says_what_was_put_in(change: dict[str, int | None]) -> None:
    """Decoding gives back every field, and absent stays absent beside a true 0."""
    header = replace(HEADER, **change)  # type: ignore[arg-type]

    decoded = decode(datagram(header))

    assert decoded.header == header
    assert decoded.marks == MARKS


def test_the_datagram_is_laid_out_as_published() -> None:
    """The first bytes stand where schemas/joblink.md draws them."""
    data = datagram()

    assert data[:12] == b"TSJL" + bytes((1, 2, 0b1101, 6, 7, 0)) + struct.pack("<H", 2)
    assert struct.unpack_from("<III", data, 12) == (2, 3, 4)
    assert data[56:64] == bytes.fromhex("001122fffe334455")
    assert data[96:109] == "llm-7bnode-ä".encode()
    assert len(data) == 109 + 2 * 48


@pytest.mark.parametrize("cut", [0, 1, 50, 96, 105, 130, 204])
def test_a_datagram_that_was_cut_is_malformed(cut: int) -> None:
    """Every length but the right one is refused."""
    with pytest.raises(Malformed):
        decode(datagram()[:cut])


@pytest.mark.parametrize(
    ("offset", "octets"),
    [
        (0, b"X"),  # magic
        (4, b"\x02"),  # version
        (5, b"\x09"),  # status
        (7, b"\x00"),  # no name
        (16, b"\x04"),  # rank 4 of 4
        (31, b"\xff"),  # a negative bound
        (96, b"\xff"),  # not UTF-8
    ],
)
def test_a_datagram_with_a_wrong_field_is_malformed(offset: int, octets: bytes) -> None:
    """Magic, version, status, name, rank and bounds are checked before anybody believes them."""
    data = bytearray(datagram())
    data[offset : offset + 1] = octets

    with pytest.raises(Malformed):
        decode(bytes(data))


def test_more_marks_than_a_datagram_may_hold_are_malformed() -> None:
    """The number of marks has an end, whatever the length says."""
    assert len(decode(datagram(marks=MARKS[:1] * MAX_MARKS)).marks) == MAX_MARKS

    with pytest.raises(Malformed):
        decode(datagram(marks=MARKS[:1] * (MAX_MARKS + 1)))


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_decoded_or_malformed(noise: bytes, begin_well: bool) -> None:
    """Nothing else is ever raised for what anybody may send."""
    try:
        decode((datagram()[:12] if begin_well else b"") + noise)
    except Malformed:
        pass


def test_a_job_is_named_by_user_job_and_attempt() -> None:
    """The same job of another user, or another attempt of it, has another segment."""
    names = {job_id(1000, "a", 0), job_id(1001, "a", 0), job_id(1000, "b", 0), job_id(1000, "a", 1)}

    assert job_id(1000, "a", 0) == "5453564c07c7c171"
    assert len(names) == 4


def test_the_segment_says_what_was_put_in() -> None:
    """Signals and plan come back; the alignment has grown with its age, rounded up."""
    words = encode_segment(EPOCH, 1_000, SIGNALS, PLAN)

    read = decode_segment(words, EPOCH, 1_001 + 10**9)

    assert read == (replace(SIGNALS, age_ns=10**9 + 1, alignment_ns=10_000 + 100_001), PLAN)


def test_absent_signals_stay_absent() -> None:
    """What the hub does not know is None for the rank, never 0; an alignment without its growth is unknown."""
    unknown = Signals(world_size=2, steps_complete=0, steps_incomplete=0, alignment_ns=5)

    read = decode_segment(encode_segment(EPOCH, 0, unknown, Plan()), EPOCH, 0)

    assert read == (replace(unknown, alignment_ns=None, wait_p50_ns=(None, None)), Plan())


@pytest.mark.parametrize(
    ("epoch", "now_ns", "shown"),
    [
        (EPOCH, 1_000 + SIGNALS_VOID_AFTER_NS, True),
        (EPOCH, 1_001 + SIGNALS_VOID_AFTER_NS, False),
        (EPOCH, 999, False),
        (Epoch(EPOCH.boot_id ^ 1, EPOCH.time_namespace), 1_000, False),
        (Epoch(EPOCH.boot_id, EPOCH.time_namespace + 1), 1_000, False),
    ],
)
def test_old_or_foreign_signals_are_not_shown(epoch: Epoch, now_ns: int, shown: bool) -> None:
    """Signals are None after 30 s, from the future, and of another boot or time namespace."""
    words = encode_segment(EPOCH, 1_000, SIGNALS, PLAN)

    assert (decode_segment(words, epoch, now_ns) is not None) == shown


def test_ranks_beyond_the_cap_lose_their_wait_alone() -> None:
    """The segment has one size, however many ranks there are."""
    many = replace(SIGNALS, world_size=MAX_RANKS + 50, wait_p50_ns=tuple(range(MAX_RANKS + 50)))

    read = decode_segment(encode_segment(EPOCH, 0, many, PLAN), EPOCH, 0)

    assert read is not None
    assert read[0].wait_p50_ns == tuple(range(MAX_RANKS))
    assert read[0].world_size == MAX_RANKS + 50


def test_a_number_that_no_word_holds_is_refused_whole(tmp_path: Path) -> None:
    """Nothing of such a state is written: the segment goes on showing the one before."""
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    writer, reader = JobWriter(tmp_path / "job", EPOCH), JobReader(tmp_path / "job", EPOCH)
    writer.write(now_ns, SIGNALS, PLAN)

    with pytest.raises(struct.error):
        writer.write(now_ns, replace(SIGNALS, step=2**63), PLAN)

    read = reader.read()
    assert read is not None
    assert read[0].step == 91


def test_a_reader_finds_a_segment_that_comes_later_and_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that looked before the daemon wrote, or whose segment was removed and made again, reads the new one."""
    path = tmp_path / "job"
    reader = JobReader(path, EPOCH)
    clock = iter(range(0, 10**12, 2 * 10**9))
    monkeypatch.setattr("timesyncd.shm.time.monotonic_ns", lambda: next(clock))
    before = reader.read()
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    JobWriter(path, EPOCH).write(now_ns - SIGNALS_VOID_AFTER_NS, SIGNALS, PLAN)
    stale = reader.read()
    path.unlink()
    JobWriter(path, EPOCH).write(now_ns, SIGNALS, PLAN)
    reader.read()

    found = reader.read()

    assert (before, stale) == (None, None)
    assert found is not None
    assert found[1] == PLAN
