"""
What crosses between a training job's rank and its node's daemon: the datagram, and the job segment's words.

schemas/joblink.md draws both, byte by byte; a change there is a new version.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal, NamedTuple

from timesyncd.bound import Bound, ClockStatus
from timesyncd.clocks import NS_PER_S
from timesyncd.errors import Malformed
from timesyncd.sample import identity_number, identity_text
from timesyncd.segment import ABSENT, Epoch
from timesyncd.shm import SegmentReader, SegmentWriter

SOCKET_NAME = "job.sock"
JOBS_NAME = "jobs"

#: A datagram holds at most this many marks, and a name at most this many octets of UTF-8.
MAX_MARKS = 512
MAX_NAME = 255

#: Signals older than this are not shown: the hub, the broker or the daemon is away.
SIGNALS_VOID_AFTER_NS = 30 * NS_PER_S

#: Ranks from this number on find everything but their own wait in the job segment.
MAX_RANKS = 256

_MAGIC = b"TSJL"
_VERSION = 1
_HEAD = struct.Struct("<4sBBBBBxHIIIqqqq8s16sqq")
_MARK = struct.Struct("<qIIqqqq")
MARK_SIZE = _MARK.size
pack_mark = _MARK.pack_into


class Kind(IntEnum):
    """What a synchronization was. Numbers are part of the datagram: append, never renumber."""

    CUSTOM = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    BARRIER = 3
    PUSH = 4
    PULL = 5


class Mark(NamedTuple):
    """One synchronization of one rank, CLOCK_REALTIME nanoseconds: arrived, began, ended."""

    step: int
    sync: int
    kind: int
    arrival_ns: int
    begin_ns: int
    end_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """
    Who sends, and how well its clock was known then. `node` is what the rank calls its host; `lost` counts the marks that
    this rank had to drop since its start. `boot_id` and `time_namespace` tell which ranks read one clock.
    """

    job: str
    attempt: int
    rank: int
    world_size: int
    node: str
    boot_id: int
    time_namespace: int
    real_minus_boot_ns: int
    status: ClockStatus
    gm_bound_ns: int | None
    utc_bound_ns: int | None
    utc_seconds_removed: int | None
    grandmaster_identity: str | None
    lost: int


@dataclass(frozen=True, slots=True)
class Datagram:
    header: Header
    marks: tuple[Mark, ...]


def job_id(uid: int, job: str, attempt: int) -> str:
    """The name of a job's segment and topics: 16 hexadecimal digits."""
    return hashlib.sha256(f"{uid}/{job}/{attempt}".encode()).hexdigest()[:16]


def encode_header(header: Header, mark_count: int) -> bytes:
    """All of a datagram but its marks, which follow as `pack_mark` wrote them. Raises struct.error: a number out of range."""
    job, node = header.job.encode(), header.node.encode()
    identity = header.grandmaster_identity
    optional = (header.gm_bound_ns, header.utc_bound_ns, header.utc_seconds_removed, identity)
    return (
        _HEAD.pack(
            _MAGIC,
            _VERSION,
            header.status,
            sum(1 << bit for bit, value in enumerate(optional) if value is not None),
            len(job),
            len(node),
            mark_count,
            header.attempt,
            header.rank,
            header.world_size,
            header.gm_bound_ns or 0,
            header.utc_bound_ns or 0,
            header.utc_seconds_removed or 0,
            header.real_minus_boot_ns,
            (identity_number(identity) if identity else 0).to_bytes(8, "big"),
            header.boot_id.to_bytes(16, "big"),
            header.time_namespace,
            header.lost,
        )
        + job
        + node
    )


def decode(data: bytes) -> Datagram:
    """Raises Malformed for anything that `encode_header` and `pack_mark` cannot have written."""
    try:
        return _decode(data)
    except (struct.error, ValueError) as error:
        raise Malformed(f"job datagram of {len(data)} bytes: {error}") from error


def _decode(data: bytes) -> Datagram:
    (
        magic, version, status, present, job_length, node_length, mark_count, attempt, rank, world_size,
        gm_bound_ns, utc_bound_ns, utc_seconds_removed, real_minus_boot_ns, identity, boot, namespace, lost,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(f"{magic!r} version {version}, wanted {_MAGIC!r} version {_VERSION}")
    names = _HEAD.size + job_length
    body = names + node_length
    if mark_count > MAX_MARKS or len(data) != body + mark_count * MARK_SIZE:
        raise ValueError(f"another length than its {mark_count} marks need")
    if not job_length or rank >= world_size:
        raise ValueError(f"rank {rank} of {world_size} in a job with a name of {job_length} bytes")
    if min(gm_bound_ns, utc_bound_ns, namespace, lost) < 0:
        raise ValueError("a number below 0 that cannot be")
    header = Header(
        job=data[_HEAD.size : names].decode(),
        attempt=attempt,
        rank=rank,
        world_size=world_size,
        node=data[names:body].decode(),
        boot_id=int.from_bytes(boot, "big"),
        time_namespace=namespace,
        real_minus_boot_ns=real_minus_boot_ns,
        status=ClockStatus(status),
        gm_bound_ns=gm_bound_ns if present & 1 else None,
        utc_bound_ns=utc_bound_ns if present & 2 else None,
        utc_seconds_removed=utc_seconds_removed if present & 4 else None,
        grandmaster_identity=identity_text(int.from_bytes(identity, "big")) if present & 8 else None,
        lost=lost,
    )
    return Datagram(header, tuple(Mark(*fields) for fields in _MARK.iter_unpack(data[body:])))


@dataclass(frozen=True, slots=True)
class Plan:
    """How rank 0 is to run the barrier, for steps from `from_step` on; immutable for (attempt, version)."""

    version: int = 0
    from_step: int = 0
    mode: Literal["timed", "plain"] = "plain"
    slack_ns: int = 0
    guard_ns: int = 0


@dataclass(frozen=True, slots=True)
class Signals:
    """
    A job's two signals, as a rank reads them: how well the clocks of its nodes agree, and what synchronization costs it.

    `alignment_ns` is grown to the moment of reading (None: unknown).
    `sync_overhead` is the ratio of time in synchronization to elapsed time over the hub's window, `last_rank` the last to
    arrive in the newest complete step (None: inconclusive), `slow_rank` the one that is last persistently.
    `wait_p50_ns` is by rank, None where nothing is known.
    """

    world_size: int
    steps_complete: int
    steps_incomplete: int
    step: int | None = None
    sync_overhead: float | None = None
    arrival_skew_ns: int | None = None
    arrival_skew_p50_ns: int | None = None
    arrival_skew_error_ns: int | None = None
    last_rank: int | None = None
    slow_rank: int | None = None
    alignment_ns: int | None = None
    alignment_growth_ppb: int | None = None
    wait_p50_ns: tuple[int | None, ...] = ()
    age_ns: int = 0

    @property
    def one_clock(self) -> bool:
        """All ranks read one and the same clock: nothing else can agree without any error."""
        return self.alignment_ns == 0


#: The job segment's words after the epoch's three, in order; then one word a rank: its wait.
_FIELDS = (
    "as_of_ns", "version", "from_step", "timed", "slack_ns", "guard_ns",
    "world_size", "steps_complete", "steps_incomplete", "step", "sync_overhead_ppb",
    "arrival_skew_ns", "arrival_skew_p50_ns", "arrival_skew_error_ns", "last_rank", "slow_rank",
    "alignment_ns", "alignment_growth_ppb",
)  # fmt: skip
_EPOCH = 3
_FIRST_RANK = _EPOCH + len(_FIELDS)
_WORD_COUNT = _FIRST_RANK + MAX_RANKS
_SEGMENT = (int.from_bytes(b"tsyncjob", "little"), 1, _WORD_COUNT)


def encode_segment(epoch: Epoch, as_of_ns: int, signals: Signals, plan: Plan) -> tuple[int, ...]:
    """
    The job segment's payload; `as_of_ns` is CLOCK_BOOTTIME when the hub published, and the signals are as of then.

    Raises struct.error: a number that 64 bits do not hold.
    """
    overhead = signals.sync_overhead
    values = {name: getattr(signals, name, None) for name in _FIELDS} | {
        "as_of_ns": as_of_ns,
        "version": plan.version,
        "from_step": plan.from_step,
        "timed": plan.mode == "timed",
        "slack_ns": plan.slack_ns,
        "guard_ns": plan.guard_ns,
        "sync_overhead_ppb": None if overhead is None else round(overhead * 1e9),
    }
    waits = (signals.wait_p50_ns + (None,) * MAX_RANKS)[:MAX_RANKS]
    words = [ABSENT if value is None else int(value) for value in (*values.values(), *waits)]
    struct.pack(f"<{len(words)}q", *words)
    return _epoch_words(epoch) + tuple(words)


def decode_segment(words: Sequence[int], epoch: Epoch, boottime_ns: int) -> tuple[Signals, Plan] | None:
    """The signals at `boottime_ns`; None when they are of another epoch than ours, of the future, or too old."""
    raw = dict(zip(_FIELDS, words[_EPOCH:_FIRST_RANK], strict=True))
    age_ns = boottime_ns - raw["as_of_ns"]
    if tuple(words[:_EPOCH]) != _epoch_words(epoch) or not 0 <= age_ns <= SIGNALS_VOID_AFTER_NS:
        return None
    overhead_ppb = _present(raw["sync_overhead_ppb"])
    growth_ppb = _present(raw["alignment_growth_ppb"])
    alignment_ns = None if growth_ppb is None else _present(raw["alignment_ns"])
    signals = Signals(
        world_size=raw["world_size"],
        steps_complete=raw["steps_complete"],
        steps_incomplete=raw["steps_incomplete"],
        step=_present(raw["step"]),
        sync_overhead=None if overhead_ppb is None else overhead_ppb / 1e9,
        arrival_skew_ns=_present(raw["arrival_skew_ns"]),
        arrival_skew_p50_ns=_present(raw["arrival_skew_p50_ns"]),
        arrival_skew_error_ns=_present(raw["arrival_skew_error_ns"]),
        last_rank=_present(raw["last_rank"]),
        slow_rank=_present(raw["slow_rank"]),
        alignment_ns=Bound(alignment_ns, growth_ppb or 0).at(age_ns),
        alignment_growth_ppb=growth_ppb,
        wait_p50_ns=tuple(_present(word) for word in words[_FIRST_RANK:][: raw["world_size"]]),
        age_ns=age_ns,
    )
    mode: Literal["timed", "plain"] = "timed" if raw["timed"] == 1 else "plain"
    return signals, Plan(raw["version"], raw["from_step"], mode, raw["slack_ns"], raw["guard_ns"])


def _epoch_words(epoch: Epoch) -> tuple[int, ...]:
    low, high = struct.unpack("<qq", epoch.boot_id.to_bytes(16, "little"))
    return low, high, epoch.time_namespace


def _present(word: int) -> int | None:
    return None if word == ABSENT else word


def segment_path(runtime_dir: Path, identifier: str) -> Path:
    return runtime_dir / JOBS_NAME / identifier


class JobWriter:
    """The daemon's end of one job's segment. Raises OSError when the file cannot be made."""

    def __init__(self, path: Path, epoch: Epoch) -> None:
        self._epoch = epoch
        self._segment = SegmentWriter(path, *_SEGMENT)

    def write(self, as_of_ns: int, signals: Signals, plan: Plan) -> None:
        """Raises struct.error, and writes nothing, for a number that 64 bits do not hold."""
        self._segment.write(encode_segment(self._epoch, as_of_ns, signals, plan))

    def close(self) -> None:
        self._segment.close()


class JobReader:
    """A rank's end: never waits, never raises because of the daemon."""

    def __init__(self, path: Path, epoch: Epoch) -> None:
        self._epoch = epoch
        self._segment = SegmentReader(path, *_SEGMENT)

    def read(self) -> tuple[Signals, Plan] | None:
        """The signals and the plan as of now; None: no segment, another layout or boot, or nothing new for 30 s."""
        words = self._segment.read()
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        found = None if words is None else decode_segment(words, self._epoch, now_ns)
        if found is None:
            self._segment.look_again()
        return found
