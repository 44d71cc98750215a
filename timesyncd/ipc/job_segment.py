"""
The job segment: the signals and the plan that a daemon publishes to a job's ranks through shared memory, as 64-bit
words.

schemas/joblink.md specifies the segment word by word. Every change of the layout increments its version.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from timesyncd.bound import Bound
from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.clock_segment import ABSENT, Epoch
from timesyncd.ipc.seqlock import SegmentReader, SegmentWriter
from timesyncd.ipc.wire_types import MAX_RATIO, Code, Count64, Int64, Limits

JOBS_NAME = "jobs"

#: A reader ignores signals that are older than this: the hub, the broker or the daemon has stopped.
SIGNALS_VOID_AFTER_NS = 30 * NS_PER_S

#: The segment has room for the wait and the groups of so many ranks, and for so many processes of one node.
#: Ranks with a larger number find everything else.
MAX_RANKS = 256

#: Octets of UTF-8 for the reason of the alignment; a longer reason is cut.
MAX_REASON = 256

#: Octets of the code of that reason.
MAX_REASON_CODE = 64

#: Octets of a policy. A longer policy is refused, since a part of it would be another policy.
MAX_POLICY = 96


class Method(Code):
    """What the ranks' arrivals were compared by."""

    ONE_CLOCK = "one_clock"
    CLOCK_BOUNDS = "clock_bounds"
    COLLECTIVE_ENDS = "collective_ends"


class PlanReason(Code):
    """Why a plan's barrier is timed or plain."""

    UNKNOWN = "unknown"
    NOT_PLANNED = "not_planned"
    JOB_RESTARTED = "job_restarted"
    ALIGNMENT_UNKNOWN = "alignment_unknown"
    ALIGNMENT_EXPIRES = "alignment_expires"
    CLOCKS_TOO_FAR_APART = "clocks_too_far_apart"
    TOO_FEW_BARRIERS = "too_few_barriers"
    ALIGNED = "aligned"


@dataclass(frozen=True, slots=True)
class Phase:
    """
    When a job's steps begin: each time the common clock (`gm_now`) modulo `period_ns` is `shift_ns`.

    A rank delays the start of a step until then, by at most `hold_share_ppm` of the period.
    """

    period_ns: Int64
    shift_ns: Int64
    hold_share_ppm: Int64


#: Printable ASCII, so that each character is one octet. A reader of another version may not know the policy.
PolicyText = Annotated[str, Limits(max_length=MAX_POLICY, pattern=r"^[ -~]*$")]

GroupNumber = Annotated[int, Limits(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class Plan:
    """
    How rank 0 runs the barrier, when steps begin, and how ranks synchronize, from the step with the key `from_step` on.
    Immutable for (attempt, version).

    A timed barrier releases `slack_ns + guard_ns` after rank 0's decision. `reason` is a sentence for people and is not
    in the segment; programs use `reason_code`. `policy` is text (`timesyncd.training.policy.text`), "" where the hub
    requests none; each (`policy_version`, `policy`) is one request. `groups`: by level, innermost first, the number of
    each rank's group, from 0. The one group of all ranks is left out, so `groups` is empty where no groups are known.
    """

    version: Int64 = 0
    from_step: Int64 = 0
    mode: Literal["timed", "plain"] = "plain"
    slack_ns: Int64 = 0
    guard_ns: Int64 = 0
    phase: Phase | None = None
    reason: str = ""
    reason_code: PlanReason = PlanReason.UNKNOWN
    policy: PolicyText = ""
    policy_version: Count64 = 0
    groups: tuple[tuple[GroupNumber, ...], ...] = ()


@dataclass(frozen=True)
class Signals:
    """
    A job's two signals as a rank reads them: how well the clocks of its nodes agree, and what synchronization costs the
    job. docs/signals.md defines each number. None is *unknown*. Steps are keys, see `split_step`.

    `alignment_ns` has grown to the moment of reading. `sync_overhead` is the ratio of exposed synchronization time to
    elapsed time, over the hub's window, in the newest step and in this epoch; `comm_compute` is that of exposed
    communication to the rest. `last_rank` arrived last in the newest complete step (None: inconclusive),
    `straggler_rank` does so persistently. `trusted`: the skew exceeds the error of `method`.

    `wait_p50_ns` is by rank. `joined_ns` holds the CLOCK_BOOTTIME at which each process of this node joined that the
    hub knows as a rank; a process that is not in it reads the signals of a former run.
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
    alignment_reason_code: str = ""
    trusted: bool = False
    method: Method | None = None
    wait_p50_ns: tuple[int | None, ...] = ()
    joined_ns: tuple[int, ...] = ()
    age_ns: int = 0

    @property
    def one_clock(self) -> bool:
        """Whether all ranks read the same clock; no two clocks agree without error."""
        return self.alignment_ns == 0

    def at_age(self, age_ns: int) -> Signals:
        """These signals, `age_ns` after their publication, with the alignment grown accordingly."""
        aged = object.__new__(Signals)
        growth_ppb = self.alignment_growth_ppb
        known_ns = None if growth_ppb is None else self.alignment_ns
        # A tenth of the cost of `replace`: this runs in every barrier.
        aged.__dict__.update(self.__dict__, age_ns=age_ns, alignment_ns=Bound(known_ns, growth_ppb or 0).at(age_ns))
        return aged


#: These ratios are stored in parts per billion.
_RATIOS = ("sync_overhead", "sync_overhead_step", "sync_overhead_epoch", "comm_compute")

#: The words after the three of the epoch, in order. The reason and its code, the policy, the waits, the processes and
#: the groups follow.
_PLAN = (
    "as_of_ns", "version", "from_step", "timed", "slack_ns", "guard_ns",
    "phase_period_ns", "phase_shift_ns", "phase_hold_share_ppm", "policy_version", "reason_code",
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
_FIRST_REASON_CODE = _FIRST_REASON + MAX_REASON // 8
_REASON_CODE = struct.Struct(f"<{MAX_REASON_CODE // 8}q")
_FIRST_POLICY = _FIRST_REASON_CODE + MAX_REASON_CODE // 8
_POLICY = struct.Struct(f"<{MAX_POLICY // 8}q")
_FIRST_WAIT = _FIRST_POLICY + MAX_POLICY // 8
_FIRST_JOINED = _FIRST_WAIT + MAX_RANKS
_FIRST_GROUP = _FIRST_JOINED + MAX_RANKS
_WORD_COUNT = _FIRST_GROUP + MAX_RANKS
_SEGMENT = (int.from_bytes(b"tsyncjob", "little"), 4, _WORD_COUNT)

#: A rank's word holds the number of its inner group in the lower half and of its outer group in the upper half.
_GROUP_BITS = 32


def encode_segment(epoch: Epoch, as_of_ns: int, signals: Signals, plan: Plan) -> tuple[int, ...]:
    """
    The job segment's payload. `as_of_ns` is the CLOCK_BOOTTIME of the signals, at which the hub published them.

    Raises struct.error for a number that does not fit 64 bits and for a policy that is too long.
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
        plan.reason_code.number,
        *(_word(name, getattr(signals, name)) for name in _SIGNALS),
        *_REASON.unpack(_clipped(signals.alignment_reason, MAX_REASON).ljust(MAX_REASON, b"\0")),
        *_REASON_CODE.unpack(_clipped(signals.alignment_reason_code, MAX_REASON_CODE).ljust(MAX_REASON_CODE, b"\0")),
        *_POLICY.unpack(plan.policy.encode(errors="replace").ljust(MAX_POLICY, b"\0")),
        *_padded(signals.wait_p50_ns),
        *_padded(signals.joined_ns),
        *_padded(_group_words(plan.groups, signals.world_size)),
    ]
    struct.pack(f"<{len(words)}q", *words)
    return tuple(words)


@dataclass(frozen=True, slots=True)
class DecodedSegment:
    """The payload of a segment: the plan, and the signals as of `as_of_ns` on CLOCK_BOOTTIME."""

    as_of_ns: int
    signals: Signals
    plan: Plan

    @classmethod
    def of(cls, words: Sequence[int], epoch: Epoch) -> DecodedSegment | None:
        """None: another epoch. A code that only a newer daemon knows is read as unknown, None or the plain plan."""
        if tuple(words[:_EPOCH]) != _epoch_words(epoch):
            return None
        as_of_ns, version, from_step, timed, slack_ns, guard_ns, *phase, policy_version, reason = words[
            _EPOCH:_FIRST_SIGNAL
        ]
        plan = Plan(
            version=version,
            from_step=from_step,
            mode="timed" if timed == 1 else "plain",
            slack_ns=slack_ns,
            guard_ns=guard_ns,
            phase=Phase(*phase) if phase[0] > 0 and ABSENT not in phase else None,
            policy=_text(_POLICY, words[_FIRST_POLICY:_FIRST_WAIT]),
            policy_version=policy_version,
            reason_code=PlanReason.of_number(reason) or PlanReason.UNKNOWN,
            groups=_groups(words[_FIRST_GROUP : _FIRST_GROUP + MAX_RANKS], words[_FIRST_SIGNAL]),
        )
        return cls(as_of_ns, _signals(words), plan)

    def at(self, boottime_ns: int) -> tuple[Signals, Plan] | None:
        """The signals and the plan at that CLOCK_BOOTTIME; None: of the future, or too old."""
        age_ns = boottime_ns - self.as_of_ns
        return (self.signals.at_age(age_ns), self.plan) if 0 <= age_ns <= SIGNALS_VOID_AFTER_NS else None


def _signals(words: Sequence[int]) -> Signals:
    fields = {name: _value(name, word) for name, word in zip(_SIGNALS, words[_FIRST_SIGNAL:_FIRST_REASON], strict=True)}
    ranks = max(0, min(words[_FIRST_SIGNAL], MAX_RANKS))
    return Signals(
        **fields,  # type: ignore[arg-type]
        alignment_reason=_text(_REASON, words[_FIRST_REASON:_FIRST_REASON_CODE]),
        alignment_reason_code=_text(_REASON_CODE, words[_FIRST_REASON_CODE:_FIRST_POLICY]),
        wait_p50_ns=tuple(None if word == ABSENT else word for word in words[_FIRST_WAIT : _FIRST_WAIT + ranks]),
        joined_ns=tuple(word for word in words[_FIRST_JOINED : _FIRST_JOINED + MAX_RANKS] if word != ABSENT),
    )


def _word(name: str, value: float | Code | None) -> int:
    if isinstance(value, Code):
        return value.number
    if value is None or not math.isfinite(value):
        return ABSENT
    if name in _RATIOS:
        return round(value * 1e9) if 0 <= value <= MAX_RATIO else ABSENT
    return int(value)


def _value(name: str, word: int) -> float | bool | Code | None:
    if name == "trusted":
        return word == 1
    if name == "method":
        return Method.of_number(word)
    if word == ABSENT:
        return None
    return word / 1e9 if name in _RATIOS else word


def _padded(values: Sequence[int | None]) -> Iterable[int]:
    return [ABSENT if value is None else value for value in (*values, *(None,) * MAX_RANKS)[:MAX_RANKS]]


def _group_words(groups: Sequence[Sequence[int]], world_size: int) -> Sequence[int]:
    """By rank, the two innermost levels; none where the group of a rank is unknown or there are too many ranks."""
    if not groups or world_size > MAX_RANKS or any(len(level) != world_size for level in groups):
        return ()
    inner, outer = groups[0], groups[1] if len(groups) > 1 else (0,) * world_size
    return [high << _GROUP_BITS | low for low, high in zip(inner, outer, strict=True)]


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
    """The text cut to so many octets, at the end of a character."""
    return text.encode(errors="replace")[:octets].decode(errors="ignore").encode()


def segment_path(runtime_dir: Path, identifier: str) -> Path:
    return runtime_dir / JOBS_NAME / identifier


class JobWriter:
    """Writes one job's segment, in the daemon. Raises OSError when the file cannot be created."""

    def __init__(self, path: Path, epoch: Epoch) -> None:
        self._epoch = epoch
        self._segment = SegmentWriter(path, *_SEGMENT)

    @property
    def is_in_place(self) -> bool:
        """Whether its file is still there: neither removed nor replaced."""
        return self._segment.is_in_place

    def write(self, as_of_ns: int, signals: Signals, plan: Plan) -> None:
        """Raises struct.error, and writes nothing, for a number that does not fit 64 bits."""
        self._segment.write(encode_segment(self._epoch, as_of_ns, signals, plan))

    def close(self) -> None:
        self._segment.close()


class JobReader:
    """
    Reads a job's segment, in a rank. It never waits, and no state of the daemon makes it raise. Threads and forked
    processes can share it.
    """

    def __init__(self, path: Path, epoch: Epoch) -> None:
        self._epoch = epoch
        self._segment = SegmentReader(path, *_SEGMENT)
        self._decoded: tuple[tuple[int, ...], DecodedSegment | None] = ((), None)

    def read(self) -> tuple[Signals, Plan] | None:
        """The signals and the plan as of now; None: no segment, another layout or boot, or no new signals for 30 s."""
        words = self._segment.read()
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        decoded = None if words is None else self._decode(words)
        read = None if decoded is None else decoded.at(now_ns)
        if read is None:
            self._segment.remap()
        return read

    def _decode(self, words: tuple[int, ...]) -> DecodedSegment | None:
        """Each payload is decoded once: the segment reader returns the same tuple until the daemon publishes again."""
        known = self._decoded
        if known[0] is not words:
            known = self._decoded = (words, DecodedSegment.of(words, self._epoch))
        return known[1]
