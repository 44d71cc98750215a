"""A backward pass whose gradients are reduced bucket by bucket: what a reduction costs, and what of it no compute hides. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from statistics import linear_regression
from typing import NamedTuple

MIB = 1 << 20

#: A petabyte a second: no transfer at all.
_LEAST_NS_PER_BYTE = 1e-6


class Bucket(NamedTuple):
    ready_ns: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """
    A typical step's buckets in the order in which they are reduced. Nanoseconds since the last one was ready: `ready_ns` is on all
    ranks, does not fall and ends with 0; `ends_ns`: reduced on all ranks.
    """

    bytes: tuple[int, ...]
    ready_ns: tuple[float, ...]
    ends_ns: tuple[float, ...]

    @property
    def buckets(self) -> list[Bucket]:
        return [Bucket(*each) for each in zip(self.ready_ns, self.bytes, strict=True)]

    @property
    def exposed_ns(self) -> float:
        """For how long the pass waits behind its last gradient."""
        return max(0.0, *self.ends_ns)


@dataclass(frozen=True, slots=True)
class Cost:
    """
    A reduction's work is `latency_ns` + bytes * `ns_per_byte`. Reductions that overlap, as gloo's do, share the link: together they take as long as one
    after the other.
    """

    latency_ns: float
    ns_per_byte: float

    @property
    def bytes_per_s(self) -> float:
        """Of gradients. Of n ranks in a ring each sends 2 (n - 1) / n times as many."""
        return 1e9 / self.ns_per_byte

    def work_ns(self, buckets: int, size: int) -> float:
        return buckets * self.latency_ns + size * self.ns_per_byte


def exposed_ns(buckets: Sequence[Bucket], cost: Cost) -> float:
    """For how long the last reduction goes on behind the last gradient."""
    through_ns = -math.inf
    for ready_ns, size in buckets:
        through_ns = max(ready_ns, through_ns) + cost.work_ns(1, size)
    return through_ns - buckets[-1].ready_ns


class _Piece(NamedTuple):
    """Bytes that become ready evenly from `from_ns` to `until_ns`; `whole`: a parameter, or part of one, which no bucket divides."""

    bytes: int
    from_ns: float
    until_ns: float
    whole: bool


def resized(profile: Profile, caps: Sequence[int]) -> list[Bucket]:
    """
    The same gradients in buckets that each close when they reach their cap in bytes, as DDP closes them; the last cap holds for all
    further ones.
    """
    limits = chain(caps, repeat(caps[-1]))
    limit, size = next(limits), 0
    found: list[Bucket] = []
    for piece in _pieces(profile):
        left = piece.bytes
        while left:
            taken = left if piece.whole else min(left, limit - size)
            size, left = size + taken, left - taken
            if size >= limit:
                part = 1 - left / piece.bytes
                found.append(Bucket(piece.from_ns + part * (piece.until_ns - piece.from_ns), size))
                limit, size = next(limits), 0
    if size:
        found.append(Bucket(profile.ready_ns[-1], size))
    return found


def _pieces(profile: Profile) -> Iterator[_Piece]:
    """
    What lies in the first bucket may have been ready at any time before: it is taken to be ready with the bucket. Without its last parameter a
    bucket is smaller than the cap, and so than the smallest bucket between the first and the last: what is above that is one parameter.
    """
    dividable = min(profile.bytes[1:-1], default=max(profile.bytes))
    before_ns = profile.ready_ns[0]
    for ready_ns, size in profile.buckets:
        evenly = min(size, dividable)
        until_ns = before_ns + (ready_ns - before_ns) * evenly / size
        yield _Piece(evenly, before_ns, until_ns, False)
        if size > evenly:
            yield _Piece(size - evenly, ready_ns, ready_ns, True)
        before_ns = ready_ns


class Busy(NamedTuple):
    """From an idle link to an idle link: so many buckets, their bytes, and how long that took."""

    buckets: int
    bytes: int
    took_ns: float

    @property
    def mean_bytes(self) -> float:
        return self.bytes / self.buckets


def busy(profile: Profile) -> list[Busy]:
    """
    What is over when within it depends on how the reductions share the link; how long all of it takes does not. A bucket that queues behind nothing,
    with none behind it, is one by itself.
    """
    found: list[Busy] = []
    began_ns = until_ns = -math.inf
    for size, ready_ns, end_ns in zip(profile.bytes, profile.ready_ns, profile.ends_ns, strict=True):
        if ready_ns >= until_ns:
            found.append(Busy(0, 0, 0.0))
            began_ns = ready_ns
        until_ns = max(until_ns, end_ns)
        found[-1] = Busy(found[-1].buckets + 1, found[-1].bytes + size, until_ns - began_ns)
    return found


def fit(found: Sequence[Busy]) -> Cost:
    """Least squares of the relative errors: what a byte took is `ns_per_byte` and its share of the latencies. Two of different mean sizes are needed."""
    latency_ns, ns_per_byte = linear_regression(
        [each.buckets / each.bytes for each in found], [each.took_ns / each.bytes for each in found]
    )
    took_ns = math.fsum(each.took_ns for each in found)
    if latency_ns < 0:
        latency_ns, ns_per_byte = 0.0, took_ns / sum(each.bytes for each in found)
    elif ns_per_byte <= 0:
        latency_ns, ns_per_byte = took_ns / sum(each.buckets for each in found), 0.0
    return Cost(latency_ns, max(_LEAST_NS_PER_BYTE, ns_per_byte))


def misfit_ns(found: Sequence[Busy], cost: Cost) -> float:
    """By how much the fitted times differ from those that were taken, in the mean."""
    return math.fsum(abs(cost.work_ns(each.buckets, each.bytes) - each.took_ns) for each in found) / len(found)
