"""
Aligns the clocks of ranks' traces by what the ranks do together: all leave a collective at nearly the same time, and no
message is received before it is sent. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from timesyncd.traces.operations import NEEDS_ALL, SEND, Communication, EndKind
from timesyncd.units import SIGMA_PER_MAD

#: An error is so many standard errors of a median, which holds 99.7 % of a Gaussian distribution.
_STANDARD_ERRORS = 3 * math.sqrt(math.pi / 2)

#: In the median two ranks leave a collective within one part in so many of its shortest transfer.
_ASYMMETRY_PART = 4

#: A collective's ends are compared if at least so many are recorded.
_MIN_ENDS = 3

Matched = Sequence[tuple[tuple[int, ...], Sequence[Communication]]]
"""Communications that belong together: the ranks that have a trace, and each one's part."""


@dataclass(frozen=True, slots=True)
class TraceClockOffset:
    """A trace's clock minus the reference rank's, +-`error_ns`: a statistical estimate, or half a causal interval."""

    offset_ns: float
    error_ns: float


def clock_offsets(
    matched: Matched, reading_ns: int = 0, hosts: Mapping[int, str] | None = None
) -> dict[int, TraceClockOffset]:
    """
    By rank, against the lowest rank that has a trace; ranks that share no chain of operations with it are absent.

    `reading_ns`: the error of one recorded time. `hosts`: ranks of one host read one clock, unless it contradicts.
    """
    pairs = _pairs(matched)
    ranks = sorted({rank for ranks, _ in matched for rank in ranks})
    if not ranks:
        return {}
    found = {ranks[0]: TraceClockOffset(0.0, 0.0)}
    waiting = [ranks[0]]
    while waiting:
        near = waiting.pop(0)
        for far, link in pairs.get(near, {}).items():
            if far not in found:
                own = found[near]
                is_one_clock = hosts is not None and hosts.get(near) and hosts.get(near) == hosts.get(far)
                if is_one_clock and abs(link.offset_ns) <= link.error_ns + 2 * reading_ns:
                    link = TraceClockOffset(0.0, 0.0)
                found[far] = TraceClockOffset(
                    own.offset_ns + link.offset_ns, math.hypot(own.error_ns, link.error_ns) + 2 * reading_ns
                )
                waiting.append(far)
    return found


def _pairs(matched: Matched) -> dict[int, dict[int, TraceClockOffset]]:
    """By rank and by another rank the latter's clock minus the former's. Ends of collectives count before messages."""
    ends: dict[tuple[int, int], list[tuple[float, float]]] = {}
    most: dict[tuple[int, int], float] = {}
    for ranks, parts in matched:
        if parts[0].kind in NEEDS_ALL:
            if all(part.end is EndKind.OWN for part in parts):
                _add_ends(ends, ranks, parts)
        elif len(ranks) == 2 and parts[0].kind == SEND:
            sent, received = parts
            # The receiver's end is later than the sender's begin, on one clock.
            _lower(most, ranks, received.end_ns - sent.begin_ns)
            if sent.end is EndKind.SEEN:
                # A host sends once the receive is called, so the sender's end is later than the receiver's begin.
                _lower(most, (ranks[1], ranks[0]), sent.end_ns - received.begin_ns)
    found: dict[int, dict[int, TraceClockOffset]] = {}
    for (near, far), width in most.items():
        if (back := most.get((far, near))) is not None:
            _link(found, near, far, TraceClockOffset((width - back) / 2, abs(width + back) / 2))
    for (near, far), seen in ends.items():
        if len(seen) >= _MIN_ENDS:
            _link(found, near, far, _from_ends(seen))
    return found


def _lower(most: dict[tuple[int, int], float], ends: tuple[int, ...], width: float) -> None:
    """The other clock is ahead by at most this much."""
    pair = ends[0], ends[1]
    most[pair] = min(most.get(pair, math.inf), width)


def _add_ends(
    ends: dict[tuple[int, int], list[tuple[float, float]]], ranks: Sequence[int], parts: Sequence[Communication]
) -> None:
    """The first rank of the group with each other one, both ways round are the same."""
    transfer_ns = min(part.end_ns - part.begin_ns for part in parts)
    for rank, part in zip(ranks[1:], parts[1:], strict=True):
        ends.setdefault((ranks[0], rank), []).append((part.end_ns - parts[0].end_ns, transfer_ns))


def _from_ends(seen: Sequence[tuple[float, float]]) -> TraceClockOffset:
    offset = median(difference for difference, _ in seen)
    spread = SIGMA_PER_MAD * median(abs(difference - offset) for difference, _ in seen)
    transfer = median(transfer for _, transfer in seen)
    return TraceClockOffset(offset, _STANDARD_ERRORS * spread / math.sqrt(len(seen)) + transfer / _ASYMMETRY_PART)


def _link(found: dict[int, dict[int, TraceClockOffset]], near: int, far: int, link: TraceClockOffset) -> None:
    found.setdefault(near, {})[far] = link
    found.setdefault(far, {})[near] = TraceClockOffset(-link.offset_ns, link.error_ns)


def left_early(
    sends: Mapping[tuple[int, int], Sequence[tuple[Communication, Communication]]],
    offsets: Mapping[int, TraceClockOffset],
) -> set[tuple[int, int]]:
    """
    The (sender, receiver) pairs whose sender does not wait for its receiver: a send ended before its receive began, by
    more than the clocks' error, in a tenth of the messages.
    """
    found = set()
    for (sender, receiver), messages in sends.items():
        if sender not in offsets or receiver not in offsets:
            continue
        near, far = offsets[sender], offsets[receiver]
        error_ns = math.hypot(near.error_ns, far.error_ns)
        early = sum(
            sent.end_ns - near.offset_ns + error_ns < received.begin_ns - far.offset_ns for sent, received in messages
        )
        if early * 10 > len(messages):
            found.add((sender, receiver))
    return found
