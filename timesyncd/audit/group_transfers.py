"""
What the collectives of traced ranks consist of: waiting for ranks, latency and bandwidth, by their kind and the size of
their group. Pure.

Every rank is inside a collective from its own begin until its end, which the last one to come makes possible. So the rank
that is inside shortest came last: that time is the transfer, and what another rank is inside longer is waiting. No two
clocks are compared. NCCL Inspector's logs and profilers' kernels show these times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from timesyncd.audit.buckets import BusyPeriod, ReductionCost, fit_cost
from timesyncd.audit.headline import percent, short_duration
from timesyncd.audit.transfers import APART, MIN_STEPS, PARTS, half_interval
from timesyncd.ipc.wire_types import Int64
from timesyncd.messages.node import Message
from timesyncd.traces.operations import NEEDS_ALL, Communication, EndKind, RankTrace

#: A share is stated with its error or not at all: fewer calls give none.
MIN_CALLS = MIN_STEPS


class TransferShare(Message):
    """A share of the time inside collectives, and half of its 95 % interval."""

    value: float
    error: float


class GroupTransfers(Message):
    """
    The collectives of one kind in groups of so many ranks. `inside_ns`: for so long a rank was inside one, in the mean.

    `waiting`, `latency`, `bandwidth` are shares of that time; what is missing to 1 no fit explains. `latency` and
    `bandwidth` null: the sizes are too alike to separate them. `latency_ns`, `bytes_per_s`: of the fit, by the octets
    of one rank.
    """

    kind: str
    ranks: Int64
    calls: Int64
    inside_ns: Int64
    waiting: TransferShare
    latency: TransferShare | None
    bandwidth: TransferShare | None
    latency_ns: Int64 | None
    bytes_per_s: Int64 | None


@dataclass(frozen=True, slots=True)
class _Call:
    """One collective with the durations of all its ranks."""

    bytes: int
    inside_ns: tuple[int, ...]

    @property
    def transfer_ns(self) -> int:
        return min(self.inside_ns)


def group_transfers(traces: Sequence[RankTrace]) -> list[GroupTransfers]:
    """
    The costliest first; without collectives whose ends, sizes or ranks are not all recorded. `traces`: of equal steps
    (`with_equal_steps`), since a rank's calls are paired with the others' by their order.
    """
    found: dict[tuple[str, int], list[_Call]] = defaultdict(list)
    for (kind, ranks), call in _calls(traces):
        found[kind, ranks].append(call)
    usable = [_summary(*key, calls) for key, calls in sorted(found.items()) if len(calls) >= MIN_CALLS]
    return sorted(usable, key=lambda one: -one.inside_ns * one.calls * one.ranks)


def _calls(traces: Sequence[RankTrace]) -> Iterator[tuple[tuple[str, int], _Call]]:
    """In the order of their begins on their first rank."""
    by_rank = {trace.rank: _numbered(trace) for trace in traces}
    for rank, own in sorted(by_rank.items()):
        for key, first in own.items():
            others = [by_rank.get(each, {}).get(key) for each in first.ranks if each != rank]
            if rank != min(first.ranks) or None in others:
                continue
            all_of_it = [first, *(each for each in others if each is not None)]
            sizes = {each.bytes for each in all_of_it}
            size = sizes.pop()
            if not sizes and size and all(each.end_ns > each.begin_ns for each in all_of_it):
                yield (first.kind, len(first.ranks)), _Call(size, tuple(one.end_ns - one.begin_ns for one in all_of_it))


_Key = tuple[str, tuple[int, ...], str, int]


def _numbered(trace: RankTrace) -> dict[_Key, Communication]:
    """A rank's collectives by group, kind and number: the recorded one, else the order."""
    counts: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    found: dict[_Key, Communication] = {}
    for one in trace.communications:
        if one.kind not in NEEDS_ALL or one.end is not EndKind.OWN or len(one.ranks) < 2:
            continue
        of = one.group, one.ranks, one.kind
        found[*of, counts[of] if one.number is None else one.number] = one
        counts[of] += 1
    return found


@dataclass(frozen=True, slots=True)
class _Sums:
    """Over calls and their ranks, in ns."""

    inside: float
    waiting: float
    latency: float
    bandwidth: float


def _summary(kind: str, ranks: int, calls: Sequence[_Call]) -> GroupTransfers:
    cost = _cost(calls)
    whole = _sums(calls, cost)
    parts = [_sums(part, _cost(part) or cost) for part in _parts(calls)]

    def share(name: str) -> TransferShare:
        value = getattr(whole, name) / whole.inside
        mean = fmean(part.inside for part in parts)
        error = half_interval([getattr(part, name) - value * part.inside for part in parts]) / mean
        return TransferShare(value=value, error=error)

    return GroupTransfers(
        kind=kind,
        ranks=ranks,
        calls=len(calls),
        inside_ns=round(whole.inside / (len(calls) * ranks)),
        waiting=share("waiting"),
        latency=None if cost is None else share("latency"),
        bandwidth=None if cost is None else share("bandwidth"),
        latency_ns=None if cost is None else round(cost.latency_ns),
        bytes_per_s=None if cost is None else round(cost.bytes_per_s),
    )


def _cost(calls: Sequence[_Call]) -> ReductionCost | None:
    """None: the sizes are too alike."""
    took: dict[int, list[int]] = defaultdict(list)
    for call in calls:
        took[call.bytes].append(call.transfer_ns)
    if max(took) < APART * min(took):
        return None
    return fit_cost([BusyPeriod(1, size, median(found)) for size, found in took.items()])


def _sums(calls: Sequence[_Call], cost: ReductionCost | None) -> _Sums:
    """A call's latency and bandwidth are at most its transfer: what is above is unexplained."""
    inside = waiting = latency = bandwidth = 0.0
    for call in calls:
        ranks, transfer_ns = len(call.inside_ns), call.transfer_ns
        inside += sum(call.inside_ns)
        waiting += sum(call.inside_ns) - ranks * transfer_ns
        if cost is not None:
            first_ns = min(cost.latency_ns, transfer_ns)
            latency += ranks * first_ns
            bandwidth += ranks * min(cost.ns_per_byte * call.bytes, transfer_ns - first_ns)
    return _Sums(inside, waiting, latency, bandwidth)


def _parts(calls: Sequence[_Call]) -> list[Sequence[_Call]]:
    return [calls[at * len(calls) // PARTS : (at + 1) * len(calls) // PARTS] for at in range(PARTS)]


def transfer_lines(found: Sequence[GroupTransfers]) -> list[str]:
    """A sentence for each kind of collective."""
    return [_line(one) for one in found]


def _line(one: GroupTransfers) -> str:
    shares = [f"{_with_error(one.waiting)} waiting for ranks"]
    if one.latency is None or one.bandwidth is None or one.latency_ns is None or one.bytes_per_s is None:
        shares.append(
            f"{percent(1 - one.waiting.value, 0)} transfer, of sizes too alike to separate latency and bandwidth"
        )
        cost = ""
    else:
        shares += [f"{_with_error(one.latency)} latency", f"{_with_error(one.bandwidth)} bandwidth"]
        cost = f"; it takes {short_duration(one.latency_ns)} plus its octets at {one.bytes_per_s / 1e9:.3g} GB/s"
    took = short_duration(one.inside_ns)
    return f"{one.kind} of {one.ranks} ranks: inside for {took}, {', '.join(shares)}{cost}"


def _with_error(share: TransferShare) -> str:
    return f"{percent(share.value, 0)} \N{PLUS-MINUS SIGN} {percent(share.error, 0)}"
