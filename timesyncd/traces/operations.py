"""
What a rank's trace shows, in one form for all formats: its communications and when it computed. Profiler traces, the
NCCL Inspector and torch's flight recorder are read into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SEND = "send"
RECV = "recv"

#: The collectives that no rank can leave before all have arrived.
NEEDS_ALL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

#: No job has more ranks; a larger number in a trace is damage.
MAX_RANKS = 1 << 20

_KINDS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgathercoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallsingle": "all_to_all",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": SEND,
    "isend": SEND,
    "recv": RECV,
    "irecv": RECV,
    "recvanysource": RECV,
}


def communication_kind(name: str) -> str | None:
    """
    One name for what the formats spell in many ways, as `allreduce_`, `AllReduce` and `_allgather_base`. None: unknown.
    """
    return _KINDS.get(name.lower().replace("_", "").replace(" ", ""))


class EndKind(StrEnum):
    """
    What a recorded end is: the operation's own; when the rank went on after a wait for it, which is not before its
    own; or none, so `end_ns` is `begin_ns`.
    """

    OWN = "own"
    SEEN = "seen"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Communication:
    """
    One rank in one collective or point-to-point operation, on the clock of its trace.

    `ranks`: the group's, in the whole job; of a send or a receive (source, destination). `number`: its number in the
    group, equal on all its ranks; None: not recorded, so the order counts. `bytes` None: not recorded.
    """

    kind: str
    group: str
    ranks: tuple[int, ...]
    number: int | None
    begin_ns: int
    end_ns: int
    bytes: int | None = None
    end: EndKind = EndKind.OWN


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A group that a rank is in: its name, and its ranks in the whole job in the order of the group."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnplacedCall:
    """
    A communication whose process group the trace does not show. `lane`: the thread that ran it, which serves one group
    only; None: not recorded. `peer`: of a message its rank in the group; None: not recorded.
    """

    kind: str
    begin_ns: int
    end_ns: int
    lane: int | None
    peer: int | None
    bytes: int | None
    end: EndKind


@dataclass(frozen=True, slots=True)
class RankTrace:
    """
    One rank's trace. `communications` in the order of their begins.

    `busy`: when the rank computed, as disjoint intervals in order; None: the format does not show it, so every
    communication counts as waited for. `steps`: the number of annotated steps; None: not annotated. `world_size` None:
    not recorded. `reading_ns`: the error of one recorded time. `progress`: as of `UnusableTrace`. `unplaced`, `groups`:
    communications of unknown groups, and the groups of the rank in the order in which they were made.
    """

    name: str
    rank: int
    world_size: int | None
    host: str
    communications: tuple[Communication, ...]
    busy: tuple[tuple[int, int], ...] | None
    steps: int | None = None
    reading_ns: int = 0
    progress: tuple[tuple[str, int, str], ...] = ()
    unplaced: tuple[UnplacedCall, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class UnusableTrace:
    """
    A file that is well-formed, and why its operations cannot be timed. `progress`: by group the number and the name of
    the last collective that the rank called.
    """

    name: str
    rank: int | None
    world_size: int | None
    reason: str
    progress: tuple[tuple[str, int, str], ...] = ()


def merged(intervals: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same time as disjoint intervals in order; empty ones are dropped."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return tuple(found)
