"""
The clock segment: an ErrorBound as 64-bit words. schemas/SHM.md draws its layout; each change of it is a new layout
version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from timesyncd.bound import Bound, ClockStatus, ErrorBound, Publication, Reason, Term
from timesyncd.sample import identity_number, identity_text

NAME = "clock"
#: The runtime folder of a daemon that is not configured otherwise.
DEFAULT_FOLDER = Path("/run/timesyncd")
MAGIC = int.from_bytes(b"tsyncclk", "little")
LAYOUT_VERSION = 4

#: An absent value is a number that no field can have: an unbounded error, an unknown identity, unknown seconds.
ABSENT = -(2**63)

#: The terms in the order of their words; a term that the bound does not have is ABSENT.
TERMS = tuple(sorted((term for term in Term if term.segment_index is not None), key=attrgetter("segment_index")))

_BOUNDS = ("parent_hard", "gm_hard", "utc_hard", "parent_stat", "gm_stat", "utc_stat")
_HEAD = 12
_STEERING = 7
WORD_COUNT = _HEAD + 3 * len(_BOUNDS) + 4 + len(TERMS) + _STEERING


class Epoch(NamedTuple):
    """The boot and time namespace of the CLOCK_BOOTTIME that a segment's times are on."""

    boot_id: int
    time_namespace: int


def encode(bound: ErrorBound, epoch: Epoch) -> list[int]:
    """The segment's payload."""
    words = [
        _signed(epoch.boot_id & (2**64 - 1)),
        _signed(epoch.boot_id >> 64),
        epoch.time_namespace,
        bound.as_of_ns,
        bound.real_minus_boot_ns,
        int(bound.gm_status),
        int(bound.utc_status),
        bound.holdover_after_ns,
        bound.void_after_ns,
        _absent(bound.utc_seconds_removed),
        bound.past_growth_ppb,
        bound.past_span_ns,
    ]
    for name in _BOUNDS:
        part: Bound = getattr(bound, name)
        words += [_absent(part.bound_ns), part.growth_ppb, int(part.reason)]
    words += [_identity_word(bound.grandmaster_identity), _identity_word(bound.parent_identity)]
    words += _clock_words(bound.clock)
    words += [bound.terms.get(term, ABSENT) for term in TERMS]
    return words + _steering_words(bound)


def decode(words: Sequence[int]) -> tuple[ErrorBound, Epoch]:
    """The inverse of `encode`. Raises ValueError for a status or reason that this version does not know."""
    rest = iter(words)
    epoch = Epoch(_unsigned(next(rest)) | _unsigned(next(rest)) << 64, next(rest))
    as_of_ns, real_minus_boot_ns = next(rest), next(rest)
    gm_status, utc_status = ClockStatus(next(rest)), ClockStatus(next(rest))
    holdover_after_ns, void_after_ns, seconds_removed = next(rest), next(rest), _present(next(rest))
    past_growth_ppb, past_span_ns = next(rest), next(rest)
    bounds = {name: _bound(rest) for name in _BOUNDS}
    grandmaster, parent = _identity(next(rest)), _identity(next(rest))
    clock = _clock(next(rest), next(rest))
    terms = {term: word for term in TERMS if (word := next(rest)) != ABSENT}
    frequency_ppb, steering_ppb, utc_steering_ppb = _present(next(rest)), next(rest), next(rest)
    publication = Publication(next(rest), next(rest), next(rest), next(rest))
    if frequency_ppb is None:
        steering_ppb = utc_steering_ppb = 0
    bound = ErrorBound(
        as_of_ns=as_of_ns,
        real_minus_boot_ns=real_minus_boot_ns,
        gm_status=gm_status,
        utc_status=utc_status,
        grandmaster_identity=grandmaster,
        parent_identity=parent,
        utc_seconds_removed=seconds_removed,
        clock=clock,
        holdover_after_ns=holdover_after_ns,
        void_after_ns=void_after_ns,
        past_growth_ppb=past_growth_ppb,
        past_span_ns=past_span_ns,
        terms=terms,
        frequency_ppb=frequency_ppb,
        steering_ppb=steering_ppb,
        utc_steering_ppb=utc_steering_ppb,
        publication=None if frequency_ppb is None else publication,
        parent_hard=bounds["parent_hard"],
        gm_hard=bounds["gm_hard"],
        utc_hard=bounds["utc_hard"],
        parent_stat=bounds["parent_stat"],
        gm_stat=bounds["gm_stat"],
        utc_stat=bounds["utc_stat"],
    )
    return bound, epoch


def _steering_words(bound: ErrorBound) -> list[int]:
    """All absent or 0 where a reader cannot measure how the clock was steered since."""
    if bound.publication is None:
        return [ABSENT, *[0] * (_STEERING - 1)]
    return [_absent(bound.frequency_ppb), bound.steering_ppb, bound.utc_steering_ppb, *bound.publication]


def _bound(words: Iterator[int]) -> Bound:
    return Bound(_present(next(words)), next(words), Reason(next(words)))


def _absent(value: int | None) -> int:
    return ABSENT if value is None else value


def _present(word: int) -> int | None:
    return None if word == ABSENT else word


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _unsigned(word: int) -> int:
    return word % 2**64


def _identity_word(identity: str | None) -> int:
    return ABSENT if identity is None else _signed(identity_number(identity))


def _identity(word: int) -> str | None:
    return None if word == ABSENT else identity_text(_unsigned(word))


def _clock_words(clock: str | None) -> list[int]:
    """The kind of the measured clock (0 none, 1 realtime, 2 PHC) and the PHC's index."""
    if clock is None:
        return [0, ABSENT]
    if clock == "realtime":
        return [1, ABSENT]
    index = clock.removeprefix("phc:")
    return [2, int(index) if index.isdecimal() else ABSENT]


def _clock(kind: int, index: int) -> str | None:
    if kind == 0:
        return None
    if kind == 1:
        return "realtime"
    return "phc" if index < 0 else f"phc:{index}"
