"""
In which part of a step a rank of a mesh is slow, and what such a step consists of: by the parts of its own time that each
rank states. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from timesyncd.ipc.job_datagram import OwnPart
from timesyncd.jobs.exposed import OwnWait

#: A rank is slow in a part of the step that holds so much of what it takes longer, or more.
PLACE_SHARE = 0.5

#: For people, by part; None: all that hooks do not know. In the order of a step.
PART_TEXTS: Mapping[OwnPart | None, str] = {
    OwnPart.DATA: "data loading",
    None: "the forward pass and the rest of the loop",
    OwnPart.BACKWARD: "the backward pass",
    OwnPart.OPTIMIZER: "the optimizer",
}

#: The rest, in a job in which no hook sees data that is loaded.
REST_WITH_DATA = "data, the forward pass and the rest of the loop"


class PlaceUnknown(StrEnum):
    """Why the place of a slow rank is unknown, for programs."""

    NO_PARTS = "no_parts"
    SPREAD = "spread"


_REASONS = {
    PlaceUnknown.NO_PARTS: "the ranks do not state the parts of their steps: they run on a device, or an older timesyncd",
    PlaceUnknown.SPREAD: "no part of the step holds half of what the rank takes longer",
}


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """Where a rank loses its time, as a `text` after "in"; None: not known, for this reason."""

    text: str | None
    unknown: PlaceUnknown | None = None

    @property
    def reason(self) -> str | None:
        """The sentence for `unknown`."""
        return None if self.unknown is None else _REASONS[self.unknown]


OwnSteps = Sequence[Mapping[int, OwnWait]]
"""Step by step, each rank's."""


def own_place(rank: int, like: Collection[int], steps: OwnSteps) -> OwnPlace:
    """The part of the step in which the rank takes longer than those `like` it, among which it is."""
    known = [parts for own in steps if (parts := _parts_of(own, like)) is not None]
    if not known or 2 * len(known) < len(steps):
        return OwnPlace(None, PlaceUnknown.NO_PARTS)
    late_ns = _lower_median([_excess_ns(rank, {each: sum(own.values()) for each, own in of.items()}) for of in known])
    excess_ns = {
        part: _lower_median([_excess_ns(rank, {each: own[part] for each, own in of.items()}) for of in known])
        for part in PART_TEXTS
    }
    worst = max(excess_ns, key=lambda part: excess_ns[part])
    if excess_ns[worst] < PLACE_SHARE * late_ns or excess_ns[worst] <= 0:
        return OwnPlace(None, PlaceUnknown.SPREAD)
    return OwnPlace(part_texts(known)[worst])


@dataclass(frozen=True, slots=True)
class PartTimes:
    """
    The mean over ranks and steps: each rank's own time by part (None: the rest), and how long it only waited. `texts`:
    the parts for people.
    """

    steps: int
    parts_ns: Mapping[OwnPart | None, int]
    waited_ns: int
    texts: Mapping[OwnPart | None, str]


def step_parts(steps: Iterable[Mapping[int, OwnWait]], world_size: int) -> PartTimes | None:
    """Of the steps in which all ranks state their parts. None: there is none."""
    known, waited_ns = [], 0
    for own in steps:
        parts = _parts_of(own, range(world_size)) if len(own) == world_size else None
        if parts is not None:
            known.append(parts)
            waited_ns += sum(each.waited_ns or 0 for each in own.values())
    if not known:
        return None
    count = len(known) * world_size
    sums = {part: sum(own[part] for of in known for own in of.values()) for part in PART_TEXTS}
    return PartTimes(
        len(known), {part: ns // count for part, ns in sums.items()}, waited_ns // count, part_texts(known)
    )


_RankParts = Mapping[int, Mapping[OwnPart | None, int]]


def part_texts(steps: Sequence[_RankParts]) -> Mapping[OwnPart | None, str]:
    """For people: data that no hook sees is a part of the rest."""
    is_loaded = any(own[OwnPart.DATA] for of in steps for own in of.values())
    return PART_TEXTS if is_loaded else {**PART_TEXTS, None: REST_WITH_DATA}


def _parts_of(own: Mapping[int, OwnWait], ranks: Iterable[int]) -> _RankParts | None:
    """By rank the own time of each part, and of the rest. None: a rank does not state it."""
    found = {}
    for rank in ranks:
        of = own.get(rank)
        if of is None or of.parts_ns is None or of.own_ns is None:
            return None
        stated: dict[OwnPart | None, int] = {part: of.parts_ns.get(part, 0) for part in OwnPart}
        found[rank] = {**stated, None: max(0, of.own_ns - sum(stated.values()))}
    return found


def _excess_ns(rank: int, by_rank: Mapping[int, int]) -> int:
    """Above the (lower) median of all of them."""
    return by_rank[rank] - _lower_median(list(by_rank.values()))


def _lower_median(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]
