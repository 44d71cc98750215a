"""
A hang: which ranks wait for which synchronization, which never came there, and why, as far as their last marks show.
Pure.

Every duration is of one rank's own clock, so no clock error enters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from timesyncd.clocks import NS_PER_S
from timesyncd.ipc.job_datagram import Kind, Mark, Trait, kind_text, kinds_with, step_text
from timesyncd.ipc.wire_types import Code
from timesyncd.jobs.stragglers import position_text
from timesyncd.units import duration_text

#: Signs of where a rank is, between its marks.
SIGNS = frozenset({Kind.ARRIVAL, Kind.ALIVE, Kind.LEFT})

#: A wait of so long, and of so many usual steps, is no slow step.
MIN_WAIT_NS = 10 * NS_PER_S
USUAL_STEPS = 10

#: A missing rank was outside of every synchronization for at least this part of the wait, by its own clock.
_IDLE_PART = 0.5

#: A sentence lists so many ranks before "and others".
MAX_RANKS_LISTED = 8

_NO_SIGN = kinds_with(Trait.VALUE) | kinds_with(Trait.OF_STEP)
_NEEDS_ALL_RANKS = kinds_with(Trait.NEEDS_ALL_RANKS)
_BUCKETS = kinds_with(Trait.BUCKET)

_Place = tuple[int, int, int]
"""(step key, kind, number of synchronizations of this kind before it in the step)."""


class HangCause(Code):
    """What keeps a rank from the synchronization that others wait for."""

    UNKNOWN = "unknown"
    UNEQUAL_STEPS = "unequal_steps"
    EXTRA_SYNCHRONIZATION = "extra_synchronization"
    FAILED = "failed"
    BUSY = "busy"
    NO_SIGN = "no_sign"


#: The rank closed its job without an error.
_ENDED = frozenset({HangCause.UNEQUAL_STEPS, HangCause.EXTRA_SYNCHRONIZATION})


@dataclass(frozen=True, slots=True)
class Presence:
    """
    What a rank sent: its newest mark, and its newest sign (ARRIVAL, ALIVE or LEFT); None: none yet. `failed`: an error
    in the synchronization that it was inside ended it.
    """

    last: Mark | None = None
    sign: Mark | None = None
    failed: bool = False

    def updated(self, mark: Mark) -> Presence:
        """With this mark, in whatever order marks come."""
        if mark.kind in _NO_SIGN:
            return self
        if mark.kind in SIGNS:
            inside = self.current
            if inside is not None and inside.kind == Kind.ARRIVAL and mark.kind == Kind.LEFT and mark.bytes:
                # The synchronization failed, which ended the process: until then the rank was inside it.
                return Presence(self.last, replace(inside, end_ns=max(inside.end_ns, mark.end_ns)), failed=True)
            newer = self.sign is None or mark.end_ns >= self.sign.end_ns
            return Presence(self.last, mark if newer else self.sign, self.failed)
        newer = self.last is None or mark.end_ns >= self.last.end_ns
        return Presence(mark if newer else self.last, self.sign, self.failed)

    @property
    def current(self) -> Mark | None:
        """The sign, unless a mark followed it."""
        if self.sign is None or (self.last is not None and self.last.end_ns > self.sign.end_ns):
            return None
        return self.sign

    @property
    def place(self) -> _Place | None:
        """The synchronization that the rank is inside."""
        sign = self.current
        return (sign.step, sign.bytes, sign.sync) if sign is not None and sign.kind == Kind.ARRIVAL else None

    @property
    def waited_ns(self) -> int:
        sign = self.current
        return sign.end_ns - sign.arrival_ns if sign is not None and sign.kind == Kind.ARRIVAL else 0

    @property
    def idle_ns(self) -> int:
        """From its last mark to its sign that it is inside no synchronization."""
        sign = self.current
        if sign is None or self.last is None or sign.kind == Kind.ARRIVAL:
            return 0
        return sign.end_ns - self.last.end_ns


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """
    A rank that did not come. `cause` NO_SIGN: nothing is known of it since its last mark, so it may be there.
    A wait in a group or for a message leaves no sign.
    """

    rank: int
    last: Mark | None
    cause: HangCause


@dataclass(frozen=True, slots=True)
class Hang:
    """
    `waiting` ranks are inside a synchronization, the longest since `waited_ns`. `absent`: those that did not come.
    `elsewhere`: those inside another synchronization, with its text: the ranks do not call the same ones. `failed`: the
    synchronization failed, which ended a waiting rank.
    """

    step: int
    where: str
    waiting: tuple[int, ...]
    waited_ns: int
    absent: tuple[AbsentRank, ...]
    elsewhere: tuple[tuple[int, str], ...]
    failed: bool = False

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that certainly did not come."""
        return tuple(each.rank for each in self.absent if each.cause is not HangCause.NO_SIGN)


def find_hang(presence: Mapping[int, Presence], world_size: int, usual_step_ns: int | None) -> Hang | None:
    """
    The hang that the ranks' newest signs show; None: there is none.

    A rank is missing where a sign of its own, later than its last mark, says that it was inside no synchronization for
    at least half of the wait. Without such a sign nothing is known of it: its marks may be lost. A synchronization that
    failed sooner is a hang only if all ranks that did not come had ended without an error.
    """
    places = {rank: place for rank, each in presence.items() if (place := each.place) is not None}
    at_least_ns = max(MIN_WAIT_NS, USUAL_STEPS * (usual_step_ns or 0))
    long = [
        (list(places.values()).count(place), -place[0], place)
        for rank, place in places.items()
        if place[1] in _NEEDS_ALL_RANKS and (presence[rank].waited_ns >= at_least_ns or presence[rank].failed)
    ]
    if not long:
        return None
    place = max(long)[2]
    waiting = tuple(sorted(rank for rank, each in places.items() if each == place))
    if len(waiting) == world_size:
        return None
    failed = any(presence[rank].failed for rank in waiting)
    waited_ns = max(presence[rank].waited_ns for rank in waiting)
    absent = [
        AbsentRank(rank, each.last, _cause(each, place, waited_ns))
        for rank in range(world_size)
        if rank not in places
        for each in (presence.get(rank, Presence()),)
    ]
    causes = {each.cause for each in absent}
    if waited_ns < at_least_ns and not (causes and causes <= _ENDED):
        return None
    elsewhere = [(rank, _place_text(each)) for rank, each in sorted(places.items()) if each != place]
    return Hang(place[0], position_text(place[1:]), waiting, waited_ns, tuple(absent), tuple(elsewhere), failed)


def _cause(absent: Presence, place: _Place, waited_ns: int) -> HangCause:
    sign, last = absent.current, absent.last
    if sign is None or last is None:
        return HangCause.NO_SIGN
    if sign.kind == Kind.LEFT:
        if sign.bytes:
            return HangCause.FAILED
        # Every step has gradients: a rank that ended before them took fewer steps, even after a barrier of this step.
        is_extra = last.step >= place[0] and place[1] not in _BUCKETS
        return HangCause.EXTRA_SYNCHRONIZATION if is_extra else HangCause.UNEQUAL_STEPS
    return HangCause.NO_SIGN if absent.idle_ns < _IDLE_PART * waited_ns else HangCause.BUSY


_CAUSE_TEXTS = {
    HangCause.UNEQUAL_STEPS: "it ended: the ranks take unequal numbers of steps",
    HangCause.EXTRA_SYNCHRONIZATION: "the other ranks call a synchronization more in this step, as a barrier on one rank alone",
    HangCause.FAILED: "it ended by an error: see its output",
    HangCause.BUSY: "it runs, outside of any synchronization: fewer steps than the others, an evaluation, or a checkpoint",
    HangCause.NO_SIGN: "nothing is known of it since: it waits in a group or for a message, was killed, or its marks do not arrive",
}


def hang_text(hang: Hang) -> str:
    """One sentence: who waits where since when, who never came, and its last mark."""
    text = f"{_ranks_text(hang.waiting)} waited {duration_text(hang.waited_ns)} in {hang.where} of step {step_text(hang.step)}"
    text += ", which failed" if hang.failed else ""
    parts = []
    for each in hang.absent[:MAX_RANKS_LISTED]:
        came = "is not known to have come" if each.cause is HangCause.NO_SIGN else "never came"
        last = "it has no mark" if each.last is None else f"its last mark: {_last_text(each.last)}"
        parts.append(f"rank {each.rank} {came}; {last}; {_CAUSE_TEXTS.get(each.cause, 'cause unknown')}")
    if len(hang.absent) > MAX_RANKS_LISTED:
        parts.append(f"{len(hang.absent) - MAX_RANKS_LISTED} more ranks did not come")
    parts += [
        f"rank {rank} waits in {where} instead: the ranks do not call the same synchronizations"
        for rank, where in hang.elsewhere[:MAX_RANKS_LISTED]
    ]
    return "; ".join([text, *parts])


def _ranks_text(ranks: Sequence[int]) -> str:
    others = " and others" if len(ranks) > MAX_RANKS_LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MAX_RANKS_LISTED]))}{others}"


def _place_text(place: _Place) -> str:
    return f"{position_text(place[1:])} of step {step_text(place[0])}"


def _last_text(mark: Mark) -> str:
    what = "update" if mark.kind == Kind.STEP else kind_text(mark.kind)
    return f"step {step_text(mark.step)}, {what}"
