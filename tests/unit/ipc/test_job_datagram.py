"""The datagram's codec and the job segment's layout."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from importlib import resources
from pathlib import Path

import pytest
from fake_clocks import replace_time
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.bound import ClockStatus
from timesyncd.errors import Malformed
from timesyncd.ipc import job_segment, seqlock
from timesyncd.ipc.clock_segment import Epoch
from timesyncd.ipc.job_datagram import (
    MARK_SIZE,
    MAX_MARKS,
    Datagram,
    Header,
    Kind,
    Mark,
    Trait,
    decode,
    encode_header,
    job_id,
    kinds_with,
    pack_mark,
    split_step,
    step_key,
    step_text,
)
from timesyncd.ipc.job_segment import (
    MAX_POLICY,
    MAX_RANKS,
    SIGNALS_VOID_AFTER_NS,
    DecodedSegment,
    JobReader,
    JobWriter,
    Method,
    Phase,
    Plan,
    PlanReason,
    Signals,
    encode_segment,
)
from timesyncd.training.policy.text import MAX_TEXT

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
    own_overhead_ns=1_234_567,
    joined_ns=86_400_000_000_001,
    past_growth_ppb=2_100,
)
MARKS = (Mark(7, 0, Kind.ALL_REDUCE, 1_000, 1_100, 2_000, 4_096), Mark(2**32 + 7, 1, Kind.BARRIER, -1, 0, 2**63 - 1, 0))

EPOCH = Epoch(2**127 + 5, 4_026_531_834)
PLAN = Plan(
    3,
    2**32 + 100,
    "timed",
    slack_ns=500_000,
    guard_ns=20_000,
    phase=Phase(120_000_000, 60_000_000, 50_000),
    reason_code=PlanReason.ALIGNED,
    policy="selsync(quantile=0.94) + topk(ratio=0.01)",
    policy_version=7,
    groups=((0, 0, 1), (0, 1, 1)),
)
WORDS = len(encode_segment(Epoch(1, 1), 0, Signals(1, 0, 0), Plan()))
EPOCH_WORDS = encode_segment(EPOCH, 0, Signals(1, 0, 0), Plan())[:3]

DOCUMENT = (resources.files("timesyncd.schemas") / "joblink.md").read_text()

SIGNALS = Signals(
    world_size=3,
    steps_complete=90,
    steps_incomplete=1,
    run=2,
    step=91,
    sync_overhead=0.125,
    sync_overhead_step=0.25,
    sync_overhead_epoch=1.0,
    arrival_skew_ns=5_000_000,
    arrival_skew_p50_ns=4_900_000,
    arrival_skew_p99_ns=9_100_000,
    arrival_skew_error_ns=12_000,
    last_rank=1,
    straggler_rank=0,
    comm_compute=7.5,
    staleness_p50=0,
    staleness_max=4,
    update_latency_p50_ns=8_000_000,
    alignment_ns=10_000,
    alignment_growth_ppb=100_000,
    alignment_reason="node-a and nøde-b: the sum of their gm bounds",
    alignment_reason_code="ok",
    trusted=True,
    method=Method.CLOCK_BOUNDS,
    wait_p50_ns=(0, 4_900_000, None),
    joined_ns=(86_400_000_000_001, 7),
)


def decode_segment(words: Sequence[int], epoch: Epoch, boottime_ns: int) -> tuple[Signals, Plan] | None:
    """The signals at `boottime_ns`; None where they are of another epoch, of the future, or too old."""
    decoded = DecodedSegment.of(words, epoch)
    return None if decoded is None else decoded.at(boottime_ns)


def datagram(header: Header = HEADER, marks: tuple[Mark, ...] = MARKS) -> bytes:
    body = bytearray(len(marks) * MARK_SIZE)
    for index, mark in enumerate(marks):
        pack_mark(body, index * MARK_SIZE, *astuple(mark))
    return encode_header(header, len(marks)) + body


@pytest.mark.parametrize("change", [{}, {"gm_bound_ns": None, "utc_bound_ns": 7}, {"grandmaster_identity": None}])
def test_a_datagram_round_trips(change: dict[str, int | None]) -> None:
    """Decoding gives back every field, and absent stays absent beside a true 0."""
    header = replace(HEADER, **change)  # type: ignore[arg-type]

    decoded = decode(datagram(header))

    assert decoded.header == header
    assert decoded.marks == MARKS


def test_the_datagram_is_laid_out_as_published() -> None:
    """The first bytes stand where schemas/joblink.md draws them."""
    data = datagram()

    assert data[:12] == b"TSJL" + bytes((3, 2, 0b1101, 6, 7, 0)) + struct.pack("<H", 2)
    assert struct.unpack_from("<III", data, 12) == (2, 3, 4)
    assert data[56:64] == bytes.fromhex("001122fffe334455")
    assert struct.unpack_from("<qqqq", data, 88) == (9, 1_234_567, 86_400_000_000_001, 2_100)
    assert data[120:133] == "llm-7bnode-ä".encode()
    assert len(data) == 133 + 2 * 48


@pytest.mark.parametrize("cut", [0, 1, 50, 96, 120, 129, 154, 228])
def test_a_datagram_that_was_cut_is_malformed(cut: int) -> None:
    """Every length but the right one is refused."""
    with pytest.raises(Malformed):
        decode(datagram()[:cut])


@pytest.mark.parametrize(
    ("offset", "octets"),
    [
        (0, b"X"),  # magic
        (4, b"\x01"),  # version
        (5, b"\x09"),  # status
        (7, b"\x00"),  # no name
        (16, b"\x04"),  # rank 4 of 4
        (31, b"\xff"),  # a negative bound
        (103, b"\xff"),  # a negative overhead
        (119, b"\x80"),  # a negative rate
        (120, b"\xff"),  # not UTF-8
    ],
)
def test_a_datagram_with_a_wrong_field_is_malformed(offset: int, octets: bytes) -> None:
    """Magic, version, status, name, rank and bounds are checked before anybody believes them."""
    data = bytearray(datagram())
    data[offset : offset + 1] = octets

    with pytest.raises(Malformed):
        decode(bytes(data))


def test_more_marks_than_a_datagram_may_hold_are_malformed() -> None:
    """The number of marks has an end, whatever the declared length is."""
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


def test_a_datagram_without_marks_announces_the_rank() -> None:
    """A rank that waits for its first step can be known already."""
    assert decode(datagram(marks=())).marks == ()


whole = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(0, 2**63 - 1)
names = st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable())
headers = st.builds(
    Header,
    job=names,
    attempt=st.integers(0, 2**32 - 1),
    rank=st.integers(0, 9),
    world_size=st.integers(10, 2**32 - 1),
    node=names,
    boot_id=st.integers(0, 2**128 - 1),
    time_namespace=counts,
    real_minus_boot_ns=whole,
    status=st.sampled_from(ClockStatus),
    gm_bound_ns=st.none() | counts,
    utc_bound_ns=st.none() | counts,
    utc_seconds_removed=st.none() | whole,
    grandmaster_identity=st.none() | st.just("001122.fffe.334455"),
    lost=counts,
    own_overhead_ns=counts,
    joined_ns=counts,
)
u32 = st.integers(0, 2**32 - 1)
marks = st.builds(Mark, whole, u32, u32, whole, whole, whole, whole)


@given(headers, st.lists(marks, max_size=4).map(tuple))
def test_any_datagram_comes_back(header: Header, sent: tuple[Mark, ...]) -> None:
    """Every field over its whole range, whatever the other fields hold."""
    assert decode(datagram(header, sent)) == Datagram(header, sent)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1))
def test_a_steps_key_comes_apart_again(epoch: int, step: int) -> None:
    """It fits an int64, orders by epoch and then step, and is a bare number for people while there is one epoch."""
    key = step_key(epoch, step)

    assert split_step(key) == (epoch, step)
    assert key < 2**63
    assert step_text(key) == (f"{epoch}:{step}" if epoch else f"{step}")


@pytest.mark.parametrize(("epoch", "step"), [(0, -1), (0, 2**32), (-1, 0), (2**31, 0)])
def test_a_step_out_of_range_has_no_key(epoch: int, step: int) -> None:
    """It would be taken for a step of another epoch."""
    with pytest.raises(ValueError, match=f"epoch {epoch}, step {step}"):
        step_key(epoch, step)


def test_kinds_are_as_published() -> None:
    """schemas/joblink.md has every kind with its number and its name, and marks those that are joined over all ranks."""
    rows = [row.split("|")[1:4] for row in DOCUMENT.splitlines() if re.match(r"\| \d+ \| [a-z_]+ \| ", row)]

    assert [(int(number), name.strip()) for number, name, _ in rows] == [(kind, kind.label) for kind in Kind]
    assert {int(number) for number, _, joined in rows if joined == " over all ranks "} == kinds_with(Trait.COLLECTIVE)
    assert {int(number) for number, _, joined in rows if joined.endswith(", by `sync` ")} == kinds_with(Trait.MESSAGE)


def test_a_job_is_named_by_user_job_and_attempt() -> None:
    """The same job of another user, or another attempt of it, has another segment."""
    names = {job_id(1000, "a", 0), job_id(1001, "a", 0), job_id(1000, "b", 0), job_id(1000, "a", 1)}

    assert job_id(1000, "a", 0) == "5453564c07c7c171"
    assert len(names) == 4


def test_the_segment_round_trips() -> None:
    """Signals and plan come back; the alignment has grown with its age, rounded up."""
    words = encode_segment(EPOCH, 1_000, SIGNALS, PLAN)

    read = decode_segment(words, EPOCH, 1_001 + 10**9)

    assert read == (replace(SIGNALS, age_ns=10**9 + 1, alignment_ns=10_000 + 100_001), PLAN)


def test_absent_signals_stay_absent() -> None:
    """What the hub does not know is None for the rank, never 0; an alignment without its growth is unknown."""
    unknown = Signals(world_size=2, steps_complete=0, steps_incomplete=0, alignment_ns=5)

    read = decode_segment(encode_segment(EPOCH, 0, unknown, Plan()), EPOCH, 0)

    assert read == (replace(unknown, alignment_ns=None, wait_p50_ns=(None, None)), Plan())


def words_drawn() -> dict[str, int]:
    """Each field of the segment and its first word, as schemas/joblink.md draws them."""
    drawn: dict[str, int] = {}
    for row in DOCUMENT[DOCUMENT.index("| word | field") :].splitlines():
        if found := re.match(r"\| (\d+)[^|]* \| ([^|]+) \|", row):
            drawn |= {name: int(found[1]) + nth for nth, name in enumerate(re.findall(r"`(\w+)`", found[2]))}
    return drawn


def test_the_segment_is_laid_out_as_published(tmp_path: Path) -> None:
    """Each word that the writer made lies where schemas/joblink.md draws it, and the last one ends the file."""
    path = tmp_path / "job"
    JobWriter(path, EPOCH).write(5, SIGNALS, PLAN)
    words = struct.unpack(f"<{path.stat().st_size // 8}q", path.read_bytes())
    drawn = words_drawn()
    published = {name: words[at] for name, at in drawn.items()}

    assert words[:3] == (int.from_bytes(b"tsyncjob", "little"), 4, 8 * len(words))
    assert (drawn["boot_id"], published["time_namespace"], published["as_of_ns"]) == (5, EPOCH.time_namespace, 5)
    for name in ("version", "from_step", "slack_ns", "guard_ns", "policy_version"):
        assert published[name] == getattr(PLAN, name)
    assert [published[f"phase_{name}"] for name in ("period_ns", "shift_ns", "hold_share_ppm")] == [
        120_000_000,
        60_000_000,
        50_000,
    ]
    for name in ("sync_overhead", "sync_overhead_step", "sync_overhead_epoch", "comm_compute"):
        assert published[name] == getattr(SIGNALS, name) * 10**9
    assert words[drawn["wait_p50_ns"] :][:4] == (0, 4_900_000, -(2**63), -(2**63))
    assert words[drawn["joined_ns"] :][:3] == (86_400_000_000_001, 7, -(2**63))
    reason = struct.pack("<32q", *words[drawn["alignment_reason"] :][:32])
    assert reason.rstrip(b"\0").decode() == SIGNALS.alignment_reason
    assert struct.pack("<12q", *words[drawn["policy"] :][:12]).rstrip(b"\0").decode() == PLAN.policy
    assert words[drawn["groups"] :][:4] == (0, 2**32, 2**32 + 1, -(2**63))
    assert published["plan_reason_code"] == PLAN.reason_code.number == 8
    assert published["method"] == 2
    code = struct.pack("<8q", *words[drawn["alignment_reason_code"] :][:8])
    assert code.rstrip(b"\0").decode() == SIGNALS.alignment_reason_code
    rest = set(SIGNALS.__dict__) & drawn.keys() - {
        "wait_p50_ns",
        "joined_ns",
        "alignment_reason",
        "alignment_reason_code",
        "comm_compute",
        "method",
    }
    assert {name: published[name] for name in rest if "overhead" not in name} == {
        name: getattr(SIGNALS, name) for name in rest if "overhead" not in name
    }
    assert drawn.keys() - {"boot_id", "time_namespace", "as_of_ns", "version", "from_step", "timed", "slack_ns", "guard_ns",
        "phase_period_ns", "phase_shift_ns", "phase_hold_share_ppm", "policy_version", "plan_reason_code", "policy", "groups"} == SIGNALS.__dict__.keys() - {"age_ns"}  # fmt: skip
    assert len(words) == drawn["groups"] + MAX_RANKS


def test_the_codes_of_a_plan_are_published() -> None:
    """schemas/joblink.md has every code with its number."""
    row = next(row for row in DOCUMENT.splitlines() if "`plan_reason_code`" in row)

    assert dict(re.findall(r"(\d+) ([a-z_]+)[,| ]", row.split("|")[3])) == {
        str(code.number): code for code in PlanReason
    }


@pytest.mark.parametrize("word", [0, 99, -1, -(2**63), 2**63 - 1])
def test_words_of_a_newer_daemon_are_not_known(word: int) -> None:
    """A method, a mode or a phase that this version has no name for is None or plain, and everything else is read."""
    published = words_drawn()
    words = list(encode_segment(EPOCH, 0, SIGNALS, PLAN))
    for name in ("method", "timed", "trusted", "phase_period_ns", "plan_reason_code"):
        words[published[name] - 5] = word

    read = decode_segment(words, EPOCH, 0)

    assert read is not None
    assert (read[0].method, read[0].trusted, read[1].mode) == (None, False, "plain")
    assert (read[1].phase is None) == (word <= 0)
    assert read[0] == replace(SIGNALS, method=None, trusted=False)
    assert read[1].reason_code is PlanReason.UNKNOWN


@given(st.binary(min_size=1, max_size=8 * WORDS), st.booleans())
def test_any_words_are_signals_or_none(octets: bytes, of_this_boot: bool) -> None:
    """A newer daemon's words, or a broken one's, never raise in a training process."""
    noise = struct.unpack(f"<{WORDS}q", (octets * 8 * WORDS)[: 8 * WORDS])

    read = decode_segment((*(EPOCH_WORDS if of_this_boot else noise[:3]), *noise[3:]), EPOCH, noise[3])

    assert read is None or of_this_boot


def test_a_long_reason_is_cut_between_characters() -> None:
    """The segment has one size, however long the nodes' names."""
    read = decode_segment(encode_segment(EPOCH, 0, replace(SIGNALS, alignment_reason="a" + "ü" * 200), PLAN), EPOCH, 0)

    assert read is not None
    assert read[0].alignment_reason == "a" + "ü" * 127


@pytest.mark.parametrize(
    ("groups", "published"),
    [
        (((0, 0, 1),), ((0, 0, 1),)),
        (((0, 1, 2), (0, 0, 1), (0, 0, 0)), ((0, 1, 2), (0, 0, 1))),
        (((0, 0),), ()),
        (((0, 0, 0),), ()),
        ((), ()),
    ],
    ids=["one level", "the outermost", "of too few ranks", "one group of all", "none"],
)
def test_groups_are_published_of_all_ranks_or_of_none(
    groups: tuple[tuple[int, ...], ...], published: tuple[tuple[int, ...], ...]
) -> None:
    """The two innermost levels; half a grouping would have ranks wait for others that know nothing of it."""
    read = decode_segment(encode_segment(EPOCH, 0, SIGNALS, replace(PLAN, groups=groups)), EPOCH, 0)

    assert read is not None
    assert read[1].groups == published


def test_beyond_the_limit_of_ranks_there_are_no_groups() -> None:
    """The last ranks would have no group."""
    many = replace(SIGNALS, world_size=MAX_RANKS + 1)
    plan = replace(PLAN, groups=((0, 1) * 128 + (1,),))

    read = decode_segment(encode_segment(EPOCH, 0, many, plan), EPOCH, 0)

    assert read is not None
    assert read[1].groups == ()


def test_a_policy_that_is_too_long_reaches_no_rank() -> None:
    """A truncated policy would be another policy."""
    longest = "x" * MAX_POLICY
    read = decode_segment(encode_segment(EPOCH, 0, SIGNALS, replace(PLAN, policy=longest)), EPOCH, 0)

    assert read is not None
    assert read[1].policy == longest
    assert MAX_POLICY == MAX_TEXT
    with pytest.raises(struct.error):
        encode_segment(EPOCH, 0, SIGNALS, replace(PLAN, policy=longest + "x"))


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


def test_a_reader_finds_a_segment_that_is_created_later_or_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that looked before the daemon wrote, or whose segment was removed and made again, reads the new one."""
    path = tmp_path / "job"
    reader = JobReader(path, EPOCH)
    clock = iter(range(0, 10**12, 2 * 10**9))
    replace_time(monkeypatch, seqlock, monotonic_ns=lambda: next(clock))
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


def test_a_segment_is_decoded_once_for_each_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are read in every barrier: only their age, and the alignment by it, are new each time."""
    decoded: list[DecodedSegment | None] = []
    of = DecodedSegment.of

    def counted(words: Sequence[int], epoch: Epoch) -> DecodedSegment | None:
        decoded.append(of(words, epoch))
        return decoded[-1]

    monkeypatch.setattr(DecodedSegment, "of", counted)
    boottime = iter((10**9, 2 * 10**9, 3 * 10**9))
    replace_time(monkeypatch, job_segment, clock_gettime_ns=lambda _: next(boottime))
    writer, reader = JobWriter(tmp_path / "job", EPOCH), JobReader(tmp_path / "job", EPOCH)
    writer.write(10**9, SIGNALS, PLAN)
    first, second = reader.read(), reader.read()
    writer.write(3 * 10**9, replace(SIGNALS, step=92), PLAN)
    third = reader.read()

    assert first == (SIGNALS, PLAN)
    assert second == (replace(SIGNALS, age_ns=10**9, alignment_ns=110_000), PLAN)
    assert third == (replace(SIGNALS, step=92), PLAN)
    assert len(decoded) == 2
