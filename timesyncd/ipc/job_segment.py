"""
The job segment: the signals and the plan that a daemon publishes to a job's ranks through shared memory, as 64-bit words.

schemas/joblink.md specifies the segment word by word. Every change of the layout increments its version.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.clock_segment import ABSENT, Epoch
from timesyncd.ipc.seqlock import SegmentReader, SegmentWriter

JOBS_NAME = "jobs"

#: Signals older than this are not shown: the hub, the broker or the daemon is away.
SIGNALS_VOID_AFTER_NS = 30 * NS_PER_S

#: Ranks from this number on find everything but their own wait in the job segment. As many processes of a node are told.
MAX_RANKS = 256

#: Of the reason of the alignment, in octets of UTF-8; longer ones are cut.
MAX_REASON = 256

#: Of a policy, in octets: a longer one cannot be told, since a part of it would be another.
MAX_POLICY = 96


class Method(IntEnum):
    """What arrivals were compared by. Numbers are part of the segment: append, never renumber."""

    ONE_CLOCK = 1
    CLOCKS = 2
    ENDS = 3


@dataclass(frozen=True, slots=True)
class Phase:
    """
    When a job's steps begin: where `period_ns` on the common clock (`gm_now`) has `shift_ns` behind it.

    A rank delays the start of a step towards that by at most `hold_share_ppm` of the period.
    """

    period_ns: int
    shift_ns: int
    hold_share_ppm: int


@dataclass(frozen=True, slots=True)
class Plan:
    """
    How rank 0 is to run the barrier, for steps from the key `from_step` on, and how the ranks synchronize; immutable for (attempt, version).

    `policy` is text (`timesyncd.training.policy.text`), "" where the hub has no wish; it is another wish when (`policy_version`, `policy`) is
    another pair. `groups`: by level, innermost first, each rank's group, by its number from 0; the one group of all ranks is left out, so
    that nothing is there where no groups are known, too.
    """

    version: int = 0
    from_step: int = 0
    mode: Literal["timed", "plain"] = "plain"
    slack_ns: int = 0
    guard_ns: int = 0
    phase: Phase | None = None
    policy: str = ""
    policy_version: int = 0
    groups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Signals:
    """
    A job's two signals, as a rank reads them: how well the clocks of its nodes agree, and what synchronization costs it.
    None is *not known*. docs/signals.md defines each; steps are keys, see `split_step`.

    `alignment_ns` is grown to the moment of reading. `sync_overhead` is the ratio of exposed synchronization time to elapsed
    time over the hub's window, and over the newest step and this epoch; `comm_compute` that of exposed communication to the rest.
    `last_rank` is the last to arrive in the newest complete step (None: inconclusive), `straggler_rank` the one that is last
    persistently. `trusted`: the skew is larger than what `method` can tell.

    `wait_p50_ns` is by rank, None where nothing is known. `joined_ns` tells which of this node's processes the hub knows as
    ranks, by the CLOCK_BOOTTIME at which they joined: without the own one these are a former run's signals.
    """

    world_size: int
    steps_complete: int
    steps_incomplete: int
    run: int = 0
    step: int | None = None
    sync_overhead: float | None = None
    sync_overhead_step: float | None = None
    sync_overhead_epoch: float | None = None
    arrival_skew_ns: int | None = None
    arrival_skew_p50_ns: int | None = None
    arrival_skew_p99_ns: int | None = None
    arrival_skew_error_ns: int | None = None
    last_rank: int | None = None
    straggler_rank: int | None = None
    comm_compute: float | None = None
    staleness_p50: int | None = None
    staleness_max: int | None = None
    update_latency_p50_ns: int | None = None
    alignment_ns: int | None = None
    alignment_growth_ppb: int | None = None
    alignment_reason: str = ""
    trusted: bool = False
    method: Method | None = None
    wait_p50_ns: tuple[int | None, ...] = ()
    joined_ns: tuple[int, ...] = ()
    age_ns: int = 0

    @property
    def one_clock(self) -> bool:
        """All ranks read one and the same clock: nothing else can agree without any error."""
        return self.alignment_ns == 0

    def at_age(self, age_ns: int) -> Signals:
        """The same, so old, and the alignment as it may have grown; of signals as of their publication."""
        aged = object.__new__(Signals)
        growth_ppb = self.alignment_growth_ppb
        known_ns = None if growth_ppb is None else self.alignment_ns
        # A tenth of the cost of `replace`: this runs in every barrier.
        aged.__dict__.update(self.__dict__, age_ns=age_ns, alignment_ns=Bound(known_ns, growth_ppb or 0).at(age_ns))
        return aged


#: The ratios are told in parts per billion.
_RATIOS = ("sync_overhead", "sync_overhead_step", "sync_overhead_epoch", "comm_compute")

#: The job segment's words after the epoch's three, in order; then the reason's, the policy's, the waits by rank, the processes, the groups by rank.
_PLAN = (
    "as_of_ns", "version", "from_step", "timed", "slack_ns", "guard_ns",
    "phase_period_ns", "phase_shift_ns", "phase_hold_share_ppm", "policy_version",
)  # fmt: skip
_SIGNALS = (
    "world_size", "run", "steps_complete", "steps_incomplete", "step",
    "sync_overhead", "sync_overhead_step", "sync_overhead_epoch",
    "arrival_skew_ns", "arrival_skew_p50_ns", "arrival_skew_p99_ns", "arrival_skew_error_ns", "last_rank", "straggler_rank",
    "comm_compute", "staleness_p50", "staleness_max", "update_latency_p50_ns",
    "alignment_ns", "alignment_growth_ppb", "trusted", "method",
)  # fmt: skip
_EPOCH = 3
_FIRST_SIGNAL = _EPOCH + len(_PLAN)
_FIRST_REASON = _FIRST_SIGNAL + len(_SIGNALS)
_REASON = struct.Struct(f"<{MAX_REASON // 8}q")
_FIRST_POLICY = _FIRST_REASON + MAX_REASON // 8
_POLICY = struct.Struct(f"<{MAX_POLICY // 8}q")
_FIRST_WAIT = _FIRST_POLICY + MAX_POLICY // 8
_FIRST_JOINED = _FIRST_WAIT + MAX_RANKS
_FIRST_GROUP = _FIRST_JOINED + MAX_RANKS
_WORD_COUNT = _FIRST_GROUP + MAX_RANKS
_SEGMENT = (int.from_bytes(b"tsyncjob", "little"), 3, _WORD_COUNT)

#: A rank's word has the number of its inner group in its lower half, that of its outer one above.
_GROUP_BITS = 32


def encode_segment(epoch: Epoch, as_of_ns: int, signals: Signals, plan: Plan) -> tuple[int, ...]:
    """
    The job segment's payload; `as_of_ns` is CLOCK_BOOTTIME when the hub published, and the signals are as of then.

    Raises struct.error: a number that 64 bits do not hold, a policy that is too long.
    """
    phase = plan.phase
    words = [
        *_epoch_words(epoch),
        as_of_ns,
        plan.version,
        plan.from_step,
        int(plan.mode == "timed"),
        plan.slack_ns,
        plan.guard_ns,
        *((ABSENT,) * 3 if phase is None else (phase.period_ns, phase.shift_ns, phase.hold_share_ppm)),
        plan.policy_version,
        *(_word(name, getattr(signals, name)) for name in _SIGNALS),
        *_REASON.unpack(_clipped(signals.alignment_reason, MAX_REASON).ljust(MAX_REASON, b"\0")),
        *_POLICY.unpack(plan.policy.encode(errors="replace").ljust(MAX_POLICY, b"\0")),
        *_filled(signals.wait_p50_ns),
        *_filled(signals.joined_ns),
        *_filled(_group_words(plan.groups, signals.world_size)),
    ]
    struct.pack(f"<{len(words)}q", *words)
    return tuple(words)


def decode_segment(words: Sequence[int], epoch: Epoch, boottime_ns: int) -> tuple[Signals, Plan] | None:
    """The signals at `boottime_ns`; None when they are of another epoch than ours, of the future, or too old."""
    found = Found.of(words, epoch)
    return None if found is None else found.at(boottime_ns)


@dataclass(frozen=True, slots=True)
class Found:
    """A segment's words, decoded: the signals as of `as_of_ns` on CLOCK_BOOTTIME."""

    as_of_ns: int
    signals: Signals
    plan: Plan

    @classmethod
    def of(cls, words: Sequence[int], epoch: Epoch) -> Found | None:
        """None: of another epoch. Words that this version does not know, as a newer daemon's, are None, or the plain plan."""
        if tuple(words[:_EPOCH]) != _epoch_words(epoch):
            return None
        as_of_ns, version, from_step, timed, slack_ns, guard_ns, *phase, changes = words[_EPOCH:_FIRST_SIGNAL]
        plan = Plan(
            version=version,
            from_step=from_step,
            mode="timed" if timed == 1 else "plain",
            slack_ns=slack_ns,
            guard_ns=guard_ns,
            phase=Phase(*phase) if phase[0] > 0 and ABSENT not in phase else None,
            policy=_text(_POLICY, words[_FIRST_POLICY:_FIRST_WAIT]),
            policy_version=changes,
            groups=_groups(words[_FIRST_GROUP : _FIRST_GROUP + MAX_RANKS], words[_FIRST_SIGNAL]),
        )
        return cls(as_of_ns, _signals(words), plan)

    def at(self, boottime_ns: int) -> tuple[Signals, Plan] | None:
        """None: of the future, or too old."""
        age_ns = boottime_ns - self.as_of_ns
        return (self.signals.at_age(age_ns), self.plan) if 0 <= age_ns <= SIGNALS_VOID_AFTER_NS else None


def _signals(words: Sequence[int]) -> Signals:
    told = {name: _value(name, word) for name, word in zip(_SIGNALS, words[_FIRST_SIGNAL:_FIRST_REASON], strict=True)}
    ranks = max(0, min(words[_FIRST_SIGNAL], MAX_RANKS))
    return Signals(
        **told,  # type: ignore[arg-type]
        alignment_reason=_text(_REASON, words[_FIRST_REASON:_FIRST_POLICY]),
        wait_p50_ns=tuple(None if word == ABSENT else word for word in words[_FIRST_WAIT : _FIRST_WAIT + ranks]),
        joined_ns=tuple(word for word in words[_FIRST_JOINED : _FIRST_JOINED + MAX_RANKS] if word != ABSENT),
    )


def _word(name: str, value: float | None) -> int:
    if value is None or not math.isfinite(value):
        return ABSENT
    return round(value * 1e9) if name in _RATIOS else int(value)


def _value(name: str, word: int) -> float | bool | Method | None:
    if name == "trusted":
        return word == 1
    if name == "method":
        return _METHODS.get(word)
    if word == ABSENT:
        return None
    return word / 1e9 if name in _RATIOS else word


_METHODS = {int(method): method for method in Method}


def _filled(values: Sequence[int | None]) -> Iterable[int]:
    return [ABSENT if value is None else value for value in (*values, *(None,) * MAX_RANKS)[:MAX_RANKS]]


def _group_words(groups: Sequence[Sequence[int]], world_size: int) -> Sequence[int]:
    """By rank; none where they are not known of each, or of too many ranks. Only the two innermost levels are told."""
    if not groups or world_size > MAX_RANKS or any(len(level) != world_size for level in groups):
        return ()
    inner, outer = groups[0], groups[1] if len(groups) > 1 else (0,) * world_size
    return [far << _GROUP_BITS | near for near, far in zip(inner, outer, strict=True)]


def _groups(words: Sequence[int], world_size: int) -> tuple[tuple[int, ...], ...]:
    of_ranks = words[: max(0, world_size)]
    if any(word < 0 for word in of_ranks):
        return ()
    inner = tuple(word & (1 << _GROUP_BITS) - 1 for word in of_ranks)
    outer = tuple(word >> _GROUP_BITS for word in of_ranks)
    return tuple(level for level in (inner, outer) if any(level))


def _text(layout: struct.Struct, words: Sequence[int]) -> str:
    return layout.pack(*words).rstrip(b"\0").decode(errors="replace")


def _epoch_words(epoch: Epoch) -> tuple[int, ...]:
    low, high = struct.unpack("<qq", epoch.boot_id.to_bytes(16, "little"))
    return low, high, epoch.time_namespace


def _clipped(text: str, octets: int) -> bytes:
    """Whole characters."""
    return text.encode(errors="replace")[:octets].decode(errors="ignore").encode()


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
    """A rank's end: never waits, never raises because of the daemon. Safe to share between threads, and over a fork."""

    def __init__(self, path: Path, epoch: Epoch) -> None:
        self._epoch = epoch
        self._segment = SegmentReader(path, *_SEGMENT)
        self._decoded: tuple[tuple[int, ...], Found | None] = ((), None)

    def read(self) -> tuple[Signals, Plan] | None:
        """The signals and the plan as of now; None: no segment, another layout or boot, or nothing new for 30 s."""
        words = self._segment.read()
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        found = None if words is None else self._decode(words)
        read = None if found is None else found.at(now_ns)
        if read is None:
            self._segment.look_again()
        return read

    def _decode(self, words: tuple[int, ...]) -> Found | None:
        """Once for each payload: the reader gives the same object as long as nothing new is published."""
        known = self._decoded
        if known[0] is not words:
            known = self._decoded = (words, Found.of(words, self._epoch))
        return known[1]
